"""Which way a client takes through those who serve a model's layers."""

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dedloc_kit.blocks.plans.plan import LayerRange, Server, draw, unserved

UNMEASURED, MAX_ROUND_TRIP = 0.2, 60.0
"""Seconds of a round trip that nobody has measured, and from which on none is believed."""
LOOKED_AT = 32
"""Of those who serve a layer, the ones that seem quickest from where the client is."""
NEAR = 0.1
"""Ways that differ by less are equals: clients take different ones."""


@dataclass(frozen=True)
class Hop:
    """A part of a way: these layers on this server."""

    server: str
    span: LayerRange


class NoRoute(Exception):
    """Nobody serves some of the layers that a client needs."""

    def __init__(self, missing: tuple[LayerRange, ...]) -> None:
        super().__init__(f"nobody serves the layers {', '.join(map(str, missing))}")
        self.missing = missing


def route(
    needed: LayerRange,
    servers: Iterable[Server],
    client: str,
    round_trips: Mapping[tuple[str, str], float],
    without: Collection[str] = (),
) -> tuple[Hop, ...]:
    """The quickest way of one token through these layers, server by server and back to the client.

    A server may be used for a part of its span. Each client takes another one of ways that are about equal: none is
    longer than the quickest one by more than `NEAR`. Raises NoRoute.

    :param servers: those that are ready
    :param round_trips: seconds between two names, in either order
    :param without: names of servers that are not to be used
    """
    usable = sorted((s for s in servers if s.name not in without), key=lambda server: (server.name, server.span))
    if missing := unserved(needed, usable):
        raise NoRoute(missing)
    dearer = [1 + NEAR * draw(client, server.name) for server in usable]
    alone = [dearer[i] * (1 / s.speed + _trip(round_trips, client, s.name)) / len(s.span) for i, s in enumerate(usable)]
    by_cost = sorted(range(len(usable)), key=alone.__getitem__)
    serving = {
        layer: [i for i in by_cost if layer in usable[i].span][:LOOKED_AT] for layer in range(needed.begin, needed.end)
    }
    home = len(usable)  # the client, where every way begins and ends
    names = [*(server.name for server in usable), client]
    came_from: dict[tuple[int, int], tuple[int, int]] = {}
    heap = [(0.0, (needed.begin, home), (needed.begin, home))]
    while True:
        cost, node, before = heapq.heappop(heap)
        if node in came_from:
            continue
        came_from[node] = before
        layer, at = node
        if node == (needed.end, home):
            return _hops(usable, came_from, node, needed)
        if layer == needed.end:
            step = _trip(round_trips, names[at], client) * dearer[at]
            heapq.heappush(heap, (cost + step, (layer, home), node))
            continue
        for index in serving[layer]:
            server, there = usable[index], (layer + 1, index)
            if there not in came_from:
                step = 1 / (server.speed * len(server.span)) + _trip(round_trips, names[at], server.name)
                heapq.heappush(heap, (cost + step * dearer[index], there, node))


def _trip(round_trips: Mapping[tuple[str, str], float], one: str, other: str) -> float:
    """Seconds from one to the other."""
    if one == other:
        return 0.0
    measured = round_trips.get((one, other), round_trips.get((other, one), UNMEASURED))
    return (measured if 0 <= measured <= MAX_ROUND_TRIP else UNMEASURED) / 2


def _hops(
    usable: Sequence[Server],
    came_from: Mapping[tuple[int, int], tuple[int, int]],
    end: tuple[int, int],
    needed: LayerRange,
) -> tuple[Hop, ...]:
    """Back from the end of a way; layers of one server in a row are one hop."""
    hops: list[Hop] = []
    layer, index = came_from[end]
    while layer > needed.begin:
        name = usable[index].name
        if hops and hops[-1].server == name:
            hops[-1] = replace(hops[-1], span=LayerRange(layer - 1, hops[-1].span.end))
        else:
            hops.append(Hop(name, LayerRange(layer - 1, layer)))
        layer, index = came_from[(layer, index)]
    return tuple(reversed(hops))
