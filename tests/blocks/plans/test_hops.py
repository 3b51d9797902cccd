"""A driver's calls go to whom it expects to be done first, by what it has measured itself."""

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from dedloc_kit.blocks.plans.hops import NEAR, STALE, TRIED, Hop, Measured, after, choose

MB = 1e6


def measured(travelling: float = 0.5, computing: float = 1.0, at: float = 0.0) -> Measured:
    return Measured(MB, travelling, computing, at)


def chosen(hops: list[Hop], now: float = 1.0, size: float = MB) -> Counter[str]:
    """Of a thousand choices."""
    chance = random.Random(1)
    return Counter(choose(hops, size, now, chance.random()).name for _ in range(1000))


def test_the_soonest_gets_the_call() -> None:
    assert chosen([Hop("a", measured(), calls=1), Hop("b", measured(), calls=2)]).keys() == {"a"}
    assert chosen([Hop("a", measured()), Hop("b", measured(computing=2.0))]).keys() == {"a"}


def test_bytes_and_the_time_beside_them_count_apart() -> None:
    """A slow line is no matter where little travels, a slow device none where much does."""
    line, device = Hop("slow line", measured(travelling=2.0)), Hop("slow device", measured(computing=2.0))
    assert chosen([line, device], size=MB / 10).keys() == {"slow line"}
    assert chosen([line, device], size=10 * MB).keys() == {"slow device"}


def test_the_longer_queue_counts_be_it_told_or_ones_own() -> None:
    assert chosen([Hop("a", measured(), queue=3), Hop("b", measured(), calls=2)]).keys() == {"b"}
    assert chosen([Hop("liar", measured(), calls=3, queue=0), Hop("b", measured(), queue=2)]).keys() == {"b"}


def test_equals_share_the_calls() -> None:
    equals = [Hop(name, measured(computing=1.0 + NEAR / 2 * i)) for i, name in enumerate("abc")]
    taken = chosen([*equals, Hop("d", measured(computing=1.5))])
    assert taken.keys() == {"a", "b", "c"}
    assert min(taken.values()) > 250


def test_the_unmeasured_get_their_share_and_one_call_at_a_time() -> None:
    taken = chosen([Hop("known", measured()), Hop("new"), Hop("newer")])
    assert min(taken["new"], taken["newer"]) > 1000 * TRIED / 4
    assert taken["new"] + taken["newer"] < 2000 * TRIED
    assert chosen([Hop("known", measured()), Hop("new", calls=1)]).keys() == {"known"}


def test_at_first_calls_spread_over_all() -> None:
    taken = chosen([Hop(name) for name in "abc"])
    assert min(taken[name] for name in "abc") > 250
    assert chosen([Hop("a", calls=1), Hop("b", calls=2), Hop("c", calls=1)]).keys() == {"a", "c"}


def test_who_has_gone_slow_is_left_and_tried_again_later() -> None:
    slow = measured()
    for _ in range(3):
        slow = after(slow, int(MB), seconds=12.0, computed=10.0, ahead=0, now=5.0)
    hops = [Hop("slow", slow), Hop("other", measured(at=5.0))]
    assert chosen(hops, now=5.0 + STALE - 1).keys() == {"other"}
    again = chosen([hops[0], Hop("other", measured(at=60.0))], now=5.0 + STALE)
    assert 0 < again["slow"] < 2000 * TRIED


def test_who_is_silent_is_left_before_it_has_answered() -> None:
    assert chosen([Hop("silent", measured(), calls=1, oldest=8.0), Hop("b", measured(), calls=3)]).keys() == {"b"}


def test_averages_follow_what_came_last() -> None:
    found = after(None, 1000, seconds=4.0, computed=1.0, ahead=2, now=1.0)
    assert found == Measured(1000, travelling=1.0, computing=1.0, at=1.0)
    later = after(found, 2000, 9.0, 5.0, 0, 2.0)
    assert (later.bytes, later.at) == (1200, 2.0)
    assert (later.travelling, later.computing) == pytest.approx((1.6, 1.8))


@pytest.mark.parametrize("computed", [0.0, -5.0, 0.5, 1.0, 4.0, 1e9])
@pytest.mark.parametrize("ahead", [0, 3])
def test_a_peer_gains_nothing_by_what_it_tells_of_its_time(computed: float, ahead: int) -> None:
    """The next call like it is expected to take as long."""
    found = after(None, 1000, 4.0, computed, ahead, now=1.0)
    assert min(found.travelling, found.computing) >= 0
    assert found.expected(1000, ahead) == 4.0


def steps(speeds: Iterable[float], seconds: float, depth: int) -> tuple[float, float]:
    """Calls a second that a driver with `depth` calls on their way gets done by peers of these speeds, and their sum.

    Peers compute one call after the other; nothing is lost on the way.
    """
    rates, chance = list(speeds), random.Random(1)
    known: list[Measured | None] = [None] * len(rates)
    free, out = [0.0] * len(rates), list[tuple[float, float, int, int]]()  # ends, sent, ahead, peer
    now, done = 0.0, 0
    while now < seconds:
        while len(out) < depth:
            calls = [[sent for _, sent, _, peer in out if peer == i] for i in range(len(rates))]
            hops = [
                Hop(str(i), known[i], len(calls[i]), oldest=now - min(calls[i], default=now)) for i in range(len(rates))
            ]
            hop = choose(hops, MB, now, chance.random())
            peer = int(hop.name)
            free[peer] = max(now, free[peer]) + 1 / rates[peer]
            out.append((free[peer] + 0.05, now, hop.ahead, peer))
        now, sent, ahead, peer = first = min(out)
        out.remove(first)
        known[peer] = after(known[peer], int(MB), now - sent, 1 / rates[peer], ahead, now)
        done += 1
    return done / now, sum(rates)


def test_peers_of_different_speeds_are_all_kept_busy() -> None:
    done, most = steps([1.0, 2.0, 4.0], seconds=300.0, depth=9)
    assert done >= 0.95 * most
