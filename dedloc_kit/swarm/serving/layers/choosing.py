"""Which layers a server takes, and when it moves to others: `blocks.plans.plan` with what the others say."""

import time
from collections.abc import Collection, Mapping

from hivemind.utils import get_dht_time

from dedloc_kit.blocks.plans.plan import MAX_SPEED, Intention, LayerRange, Server, intend, may_begin, place
from dedloc_kit.serving.offer import Moving, Serving
from dedloc_kit.swarm.remote.offers import Offers

_SLOWEST = 1e-3
"""For who has not measured yet."""


def servers_of(
    others: Mapping[str, Serving], offers: Offers[Serving], versions: Collection[str], *, ready: bool
) -> list[Server]:
    """As the plans want them.

    :param versions: one of which they serve; digests of manifests
    :param ready: only those that answer now, each with what it serves; else all, with what they will serve
    """
    found = []
    for peer, each in others.items():
        if not {each.version, each.older} & set(versions) or (
            each.state != "online" if ready else each.state == "leaving"
        ):
            continue
        target = each.moving if each.moving is not None and each.moving.begun and not ready else each
        moved = offers.first_seen(peer, each.moved) if each.moved else None
        speed = min(MAX_SPEED, max(_SLOWEST, each.decoding))
        found.append(Server(peer, LayerRange(target.begin, target.end), speed, moved, each.pinned))
    return found


class Choice:
    """Of one server.

    :param layers: of the model
    """

    def __init__(self, me: str, layers: int, offers: Offers[Serving]) -> None:
        self._me, self._layers, self._offers = me, layers, offers
        self._intention: Intention | None = None
        self._moved: float | None = None
        self.moved = 0.0
        """When it last began to move, by the clock of the directory; 0 if never."""

    def first(self, speed: float, memory: int, versions: Collection[str]) -> LayerRange:
        """For a newcomer; `memory` is in layers."""
        servers = servers_of(self._offers.others(), self._offers, versions, ready=False)
        return place(self._layers, servers, self._me, speed, memory)

    def next(self, span: LayerRange, speed: float, version: str) -> LayerRange | None:
        """To which layers this server is to move now, if it is its turn; call it now and then.

        :param version: the one that users use
        """
        now, others = time.monotonic(), self._offers.others()
        servers = servers_of(others, self._offers, {version}, ready=False)
        servers.append(Server(self._me, span, max(_SLOWEST, speed), self._moved))
        self._intention = intend(self._layers, servers, self._me, self._intention, now)
        if self._intention is None:
            return None
        intentions = [
            Intention(peer, span_of(said.moving), first, first if said.moving.begun else None)
            for peer, said in others.items()
            if said.moving is not None
            for first in [self._offers.first_seen(peer, said.moving)]
        ]
        if not may_begin(self._layers, servers, self._intention, intentions, now):
            return None
        self._moved, self.moved = now, float(get_dht_time())
        return self._intention.span

    def done(self) -> None:
        """The move is over."""
        self._intention = None

    def announced(self, begun: bool) -> Moving | None:
        """What this server has to say of its next move."""
        if self._intention is None:
            return None
        span = self._intention.span
        return Moving(begin=span.begin, end=span.end, announced=float(get_dht_time()), begun=begun)


def span_of(moving: Moving) -> LayerRange:
    return LayerRange(moving.begin, moving.end)
