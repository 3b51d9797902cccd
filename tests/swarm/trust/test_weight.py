"""For how many samples members count: for what they claim, within what is usual among them."""

from typing import Any

from dedloc_kit.swarm.trust.weight import Claim, Counting, Earned, allowed, claimed, weighing
from tests.swarm.audits.audited import pledged
from tests.swarm.gathering.positions import position
from tests.tiny import tiny_run


def claims_of(samples: dict[Any, int], **confirmed: int) -> dict[Any, Claim]:
    return {member: Claim(claim, confirmed.get(member, 0)) for member, claim in samples.items()}


HONEST = {f"honest{number}": 40 + number for number in range(9)}
LIARS = {f"liar{number}": 64_000 for number in range(7)}


def test_what_fewer_than_half_claim_counts_for_no_more_than_what_an_honest_member_claims() -> None:
    counted = allowed(claims_of(HONEST | LIARS))
    assert {peer: counted[peer] for peer in HONEST} == HONEST
    assert sum(counted[peer] for peer in LIARS) < sum(HONEST.values())
    assert {counted[peer] for peer in LIARS} == {max(HONEST.values())}
    with_organizer = allowed(claims_of(HONEST | LIARS | {"organizer": 0}))
    assert with_organizer == {peer: min(n, 47) for peer, n in counted.items()} | {"organizer": 0}
    assert allowed(claims_of({"one": 5})) == {"one": 5}
    assert allowed(claims_of({})) == {}


def test_claims_count_for_nothing_until_half_of_the_members_have_brought_something() -> None:
    late = dict.fromkeys(HONEST, 0)
    assert set(allowed(claims_of(late | LIARS)).values()) == {0}
    assert set(allowed(claims_of(late | {"honest0": 8, "liar0": 64_000})).values()) == {0}
    assert allowed(claims_of({"organizer": 0, "one": 40})) == {"organizer": 0, "one": 40}


def test_a_run_without_it_believes_all_claims() -> None:
    claims = claims_of(HONEST | LIARS)
    assert weighing(tiny_run())(claims) == HONEST | LIARS
    assert weighing(tiny_run(trust={"aggregator": "clip"}))(claims) == allowed(claims)


def test_only_a_run_with_checks_and_open_to_all_puts_newcomers_on_probation() -> None:
    settings: list[tuple[dict[str, Any], str, int]] = [
        ({}, "open", 0),
        ({"checks": "on"}, "open", 3),
        ({"checks": "on"}, "invite", 0),
    ]
    for trust, access, needed in settings:
        run = tiny_run(trust=trust, access=access)
        assert run.probation == needed
        assert isinstance(weighing(run), Earned) == bool(needed)


def test_newcomers_count_together_for_a_quarter_of_those_with_standing_however_many_they_are() -> None:
    weigh, known = Earned(claimed), dict.fromkeys(HONEST, 50)
    for liars in (1, 7, 100):
        fresh = {f"liar{number}": 64_000 for number in range(liars)}
        counted = weigh(claims_of(HONEST | fresh, **known))
        assert {peer: counted[peer] for peer in HONEST} == HONEST
        assert sum(counted[peer] for peer in fresh) <= sum(HONEST.values()) / 4
    one = weigh(claims_of(HONEST | {"newcomer": 30}, **known))
    assert one["newcomer"] == 30, "there is room for one that brings what is usual"


def test_who_has_standing_counts_for_twice_of_what_is_confirmed_and_a_fast_machine_for_all() -> None:
    known = dict.fromkeys(HONEST, 50) | {"fast": 500, "climber": 40}
    counted = Earned(allowed)(claims_of(HONEST | {"fast": 900, "climber": 900}, **known))
    assert counted == HONEST | {"fast": 900, "climber": 80}


def test_as_long_as_nobody_has_standing_all_are_weighed_as_usual() -> None:
    claims = claims_of(HONEST | LIARS)
    assert Earned(allowed)(claims) == allowed(claims)
    assert Earned(claimed)({}) == {}


def test_what_peers_tell_counts_as_what_was_last_seen_of_them_says() -> None:
    counting = Counting(Earned(claimed), "me")
    others = {"old": position(0, samples=40), "new": position(0, samples=40)}

    def samples(mine: int) -> int:
        return counting.samples({**others, "me": position(0, samples=mine)})

    assert samples(40) == 120, "nobody has standing"
    brought = {peer: pledged(peer, 1, confirmed=30) for peer in ("me", "old")}
    assert counting.saw(brought | {"new": pledged("new", 1)}) == set()
    assert samples(40) == 40 + 40 + 20
    assert samples(70) == 60 + 40 + 25
    assert counting.saw({"old": pledged("old", 2, samples=0, microbatches=0)}) == set(), "it has nothing to show now"
    assert samples(40) == 40 + 40 + 20
    assert counting.saw({"old": pledged("old", 2)}) == {"old"}, "it hides what it has: it does not count so any more"
    assert samples(40) == 40 + 10


def test_newcomers_count_for_nothing_before_those_with_standing_have_begun_and_in_full_where_all_of_those_pause() -> (
    None
):
    counting = Counting(Earned(claimed), "me")
    counting.saw({"old": pledged("old", 1, confirmed=30), "me": pledged("me", 1)})
    mine, newcomer = position(0, samples_per_second=1.0), position(0, samples=40)
    begun, pauses = position(0, samples_per_second=1.0), position(0)
    assert counting.samples({"me": mine, "old": begun, "new": newcomer}) == 0
    assert counting.samples({"me": mine, "old": pauses, "new": newcomer}) == 40
