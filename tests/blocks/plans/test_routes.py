"""A client takes the quickest way through those who serve a model's layers, and many clients take different ones."""

import random
from collections import Counter
from itertools import pairwise, product
from typing import Any

import pytest

from dedloc_kit.blocks.plans.plan import LayerRange, Server
from dedloc_kit.blocks.plans.routes import LOOKED_AT, NEAR, UNMEASURED, Hop, NoRoute, route

FAST = 100.0


def server(name: str, span: str, speed: float = FAST) -> Server:
    return Server(name, LayerRange(*map(int, span.split(":"))), speed)


def near(*names: str, seconds: float = 0.01) -> dict[tuple[str, str], float]:
    """All of these so near to each other."""
    return dict.fromkeys(product(names, names), seconds)


def seconds_of(way: tuple[Hop, ...], servers: list[Server], trips: dict[tuple[str, str], float], client: str) -> float:
    """Of one token, along that way and back."""
    by_name = {server.name: server for server in servers}
    stops = [client, *(hop.server for hop in way), client]
    travelled = sum(trips[one, other] / 2 for one, other in pairwise(stops))
    hops = ((hop, by_name[hop.server]) for hop in way)
    return travelled + sum(len(hop.span) / len(server.span) / server.speed for hop, server in hops)


def test_a_way_goes_through_all_layers_in_order() -> None:
    servers = [server("b", "4:8"), server("a", "0:4"), server("c", "8:12")]
    assert route(LayerRange(0, 12), servers, "me", {}) == (
        Hop("a", LayerRange(0, 4)),
        Hop("b", LayerRange(4, 8)),
        Hop("c", LayerRange(8, 12)),
    )


def test_a_server_is_used_for_a_part_of_its_span() -> None:
    servers = [server("a", "0:8"), server("b", "6:12")]
    way = route(LayerRange(0, 12), servers, "me", {})
    assert [hop.server for hop in way] == ["a", "b"]
    assert way[0].span.end == way[1].span.begin in (6, 7, 8)


def test_one_server_far_away_is_left_for_two_that_are_near() -> None:
    servers = [server("far", "0:8"), server("a", "0:4"), server("b", "4:8")]
    trips = near("me", "a", "b") | {("me", "far"): 0.5}
    assert [hop.server for hop in route(LayerRange(0, 8), servers, "me", trips)] == ["a", "b"]
    assert [hop.server for hop in route(LayerRange(0, 8), servers, "me", near("me", "a", "b", "far"))] == ["far"]


def test_a_slow_server_is_left_for_a_fast_one_however_near_it_is() -> None:
    servers = [server("slow", "0:8", 2.0), server("fast", "0:8", 50.0)]
    trips = {("me", "slow"): 0.001, ("fast", "me"): 0.1}  # in either order
    assert route(LayerRange(0, 8), servers, "me", trips) == (Hop("fast", LayerRange(0, 8)),)


@pytest.mark.parametrize("nonsense", [float("nan"), -1.0, float("-inf")])
def test_a_round_trip_that_cannot_be_counts_as_unmeasured(nonsense: float) -> None:
    servers = [server("liar", "0:8"), server("near", "0:8")]
    trips = {("me", "liar"): nonsense, ("me", "near"): UNMEASURED / 2}
    assert route(LayerRange(0, 8), servers, "me", trips) == (Hop("near", LayerRange(0, 8)),)


def test_only_missing_layers_are_replaced_and_by_others() -> None:
    servers = [server("dead", "4:8"), server("a", "0:6"), server("b", "6:12"), server("whole", "0:12", 0.1)]
    way = route(LayerRange(4, 8), servers, "me", {}, without={"dead"})
    assert way == (Hop("a", LayerRange(4, 6)), Hop("b", LayerRange(6, 8)))


def test_where_there_is_no_way_the_missing_layers_are_named() -> None:
    servers = [server("a", "0:4"), server("b", "6:9"), server("dead", "4:6")]
    with pytest.raises(NoRoute, match="nobody serves the layers 4:6, 9:12") as caught:
        route(LayerRange(0, 12), servers, "me", {}, without={"dead"})
    assert caught.value.missing == (LayerRange(4, 6), LayerRange(9, 12))


def test_clients_take_different_ones_of_equal_servers_and_each_always_the_same() -> None:
    servers = [server(name, "0:8") for name in "abcd"] + [server(name, "8:16") for name in "efgh"]
    ways = {f"client {i}": route(LayerRange(0, 16), servers, f"client {i}", {}) for i in range(120)}
    for part in (0, 1):
        used = Counter(way[part].server for way in ways.values())
        assert len(used) == 4
        assert min(used.values()) >= 15
    assert all(route(LayerRange(0, 16), servers[::-1], client, {}) == way for client, way in ways.items())


def test_no_way_is_longer_than_the_quickest_by_more_than_equals_are() -> None:
    chance = random.Random(1)
    for _ in range(20):
        servers = [
            server(f"{i}", f"{b}:{b + n}", chance.uniform(1, 50)) for i, (b, n) in enumerate(product((0, 2), (2, 4)))
        ]
        servers.append(server("last", "4:6", 10.0))
        names = [*(server.name for server in servers), "me"]
        trips = {(one, other): 0.0 for one in names for other in names}
        for one, other in product(names, names):
            trips[one, other] = trips[other, one] = 0.0 if one == other else chance.uniform(0.01, 0.3)
        quickest = min(
            seconds_of(merged(choice), servers, trips, "me")
            for choice in product(servers, repeat=6)
            if all(layer in server.span for layer, server in enumerate(choice))
        )
        taken = seconds_of(route(LayerRange(0, 6), servers, "me", trips), servers, trips, "me")
        assert quickest - 1e-9 <= taken <= quickest * (1 + NEAR) + 1e-9


def merged(choice: tuple[Server, ...]) -> tuple[Hop, ...]:
    """One server for each layer, as hops."""
    hops: list[Hop] = []
    for layer, server in enumerate(choice):
        if hops and hops[-1].server == server.name:
            hops[-1] = Hop(server.name, LayerRange(hops[-1].span.begin, layer + 1))
        else:
            hops.append(Hop(server.name, LayerRange(layer, layer + 1)))
    return tuple(hops)


class Counted(dict[tuple[str, str], float]):
    """How often is it asked?"""

    asked = 0

    def get(self, *args: Any) -> Any:
        self.asked += 1
        return super().get(*args)


def test_many_servers_cost_no_more_than_those_that_seem_quickest() -> None:
    servers = [server(f"{i}", "0:8", speed=1.0 + i) for i in range(10 * LOOKED_AT)]
    trips = Counted()
    [hop] = route(LayerRange(0, 8), servers, "me", trips)
    assert int(hop.server) >= 9 * LOOKED_AT
    assert trips.asked <= 2 * (len(servers) + 8 * LOOKED_AT**2)
