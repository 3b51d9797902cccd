"""For how many samples members count: for what they claim, within what is usual among them."""

import pytest

from dedloc_kit.run import TrustConfig
from dedloc_kit.swarm.trust.weight import allowed, in_rows, weighing

HONEST = {f"honest{number}": 40 + number for number in range(9)}
LIARS = {f"liar{number}": 64_000 for number in range(7)}


def test_what_fewer_than_half_claim_counts_for_no_more_than_what_an_honest_member_claims() -> None:
    counted = allowed(HONEST | LIARS)
    assert {peer: counted[peer] for peer in HONEST} == HONEST
    assert sum(counted[peer] for peer in LIARS) < sum(HONEST.values())
    assert {counted[peer] for peer in LIARS} == {max(HONEST.values())}
    assert allowed(HONEST | LIARS | {"organizer": 0}) == {peer: min(n, 47) for peer, n in counted.items()} | {
        "organizer": 0
    }
    assert allowed({"one": 5}) == {"one": 5}
    assert allowed({}) == {}


def test_claims_count_for_nothing_until_half_of_the_members_have_brought_something() -> None:
    late = dict.fromkeys(HONEST, 0)
    assert set(allowed(late | LIARS).values()) == {0}
    assert set(allowed(late | {"honest0": 8, "liar0": 64_000}).values()) == {0}
    assert allowed({"organizer": 0, "one": 40}) == {"organizer": 0, "one": 40}


def test_a_run_without_it_believes_all_claims() -> None:
    assert weighing(TrustConfig())(HONEST | LIARS) == HONEST | LIARS
    assert weighing(TrustConfig(aggregate="clip"))(HONEST | LIARS) == allowed(HONEST | LIARS)


@pytest.mark.parametrize("known", [(0, 1), (0, 2), (0, 1, 2)])
def test_a_row_is_weighed_alike_whatever_is_known_of_the_others(known: tuple[int, ...]) -> None:
    claims = {0: 10, 1: 1000, 2: 90, 3: 7, 4: 12}
    rows = (0, 1, 0, 1, 0)
    some = {member: claim for member, claim in claims.items() if rows[member] in known}
    every = in_rows(allowed, rows.__getitem__, claims)
    assert in_rows(allowed, rows.__getitem__, some) == {member: every[member] for member in some}
    assert every == {0: 10, 1: 1000, 2: 12, 3: 7, 4: 12}
    assert list(every) == list(claims)
