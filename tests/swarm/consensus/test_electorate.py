"""Who is a quorum."""

from itertools import combinations
from random import Random

import pytest

from dedloc_kit.swarm.consensus.electorate import Electorate
from tests.swarm.consensus.table import entry, instance, voter


def electorate(*weights: int) -> Electorate:
    return Electorate({voter(f"p{place}"): weight for place, weight in enumerate(weights, 1)}, voter("p0"))


@pytest.mark.parametrize(
    ("weights", "present", "enough"),
    [
        ((4, 4, 4), "1 2", True),  # two of three go on without the coordinator
        ((4, 4, 4), "1", False),
        ((4, 4, 4), "0 1", False),
        ((4, 4), "0 1", True),  # the coordinator breaks the tie
        ((4, 4), "1", False),
        ((4,), "1", True),
        ((4,), "0", False),
        ((4, 4), "0", False),
        ((), "0", True),  # a reset without voters
        ((), "1", False),
        ((3, 1), "1", True),
        ((3, 1), "0 2", False),
    ],
)
def test_a_quorum_has_more_than_half_of_all_weight(weights: tuple[int, ...], present: str, enough: bool) -> None:
    assert electorate(*weights).enough(voter(f"p{place}") for place in present.split()) is enough


@pytest.mark.parametrize("seed", range(40))
def test_two_quorums_share_a_voter(seed: int) -> None:
    random = Random(seed)
    some = electorate(*(random.choice([1, 2, 3, 50, 2**45]) for _ in range(random.randint(1, 6))))
    everybody = [*some.weights, voter("p0")]
    for size in range(len(everybody) + 1):
        for part in combinations(everybody, size):
            rest = [each for each in everybody if each not in part]
            assert not (some.enough(part) and some.enough(rest))


def test_another_incarnation_and_a_peer_that_stands_twice_have_no_further_vote() -> None:
    some = electorate(4, 4, 4)
    assert not some.enough([voter("p1"), voter("p1")])
    assert not some.enough([voter("p1"), voter("p2", 2)])
    assert not some.enough([voter("p1"), voter("p0", 2), voter("p2", 0)])


def test_a_vote_weighs_what_counted_but_at_most_a_third_of_the_step() -> None:
    where = instance({"p1": 1})
    counted = [
        entry(where, "p1", 90),
        entry(where, "p2", 5),
        entry(where, "p3", 5),
        entry(where, "p4", 5, incarnation=0),
    ]
    value = where.value([*counted, entry(where, "p0", 0)], [90, 5, 5, 5, 0], "0" * 64)
    some = Electorate.of_value(value, voter("p0"))
    assert some.weights == {voter("p1"): 105, voter("p2"): 15, voter("p3"): 15}
    bounded = where.value([*counted, entry(where, "p0", 0)], [3, 5, 4, 5, 0], "0" * 64)
    assert Electorate.of_value(bounded, voter("p0")).weights == {voter("p1"): 9, voter("p2"): 15, voter("p3"): 12}
    assert voter("p0") in some
    assert voter("p4", 0) not in some
