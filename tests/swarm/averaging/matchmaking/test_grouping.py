"""Who leads: every peer ranks the same peers alike, and a group is found by asking, not by searching."""

from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.averaging.matchmaking.grouping import MAX_LEADERS, OneGroup
from tests.swarm.harness import progress


def leaders_of(
    after: str, me: str, follower: bool, others: dict[str, Progress], *, client_mode: bool = False
) -> tuple[str, ...]:
    return OneGroup(1).leaders(after, me, follower, others, client_mode)


def others_of(peer: str, swarm: dict[str, Progress]) -> dict[str, Progress]:
    return {other: progress for other, progress in swarm.items() if other != peer}


def test_everyone_but_the_first_asks_the_first_and_the_first_asks_nobody() -> None:
    swarm = {f"peer-{number}": progress() for number in range(8)}
    asked = {peer: leaders_of("a1", peer, False, others_of(peer, swarm)) for peer in swarm}
    (first,) = [peer for peer, leaders in asked.items() if not leaders]
    assert all(leaders[0] == first for peer, leaders in asked.items() if peer != first)
    assert max(map(len, asked.values())) == MAX_LEADERS


def test_a_follower_leads_before_those_who_compute_and_a_client_never() -> None:
    swarm = {"client": progress(client_mode=True, follower=True), "idle": progress(follower=True), "busy": progress()}
    for after in ("a1", "b2", "c3", "d4"):
        assert leaders_of(after, "busy", False, others_of("busy", swarm)) == ("idle",)
        assert leaders_of(after, "idle", True, others_of("idle", swarm)) == ()


def test_a_client_always_has_somebody_to_ask_for_nobody_can_ask_it() -> None:
    swarm = {"full": progress(), "client": progress(client_mode=True)}
    for number in range(20):
        assert leaders_of(f"{number:x}", "client", False, others_of("client", swarm), client_mode=True) == ("full",)


def test_volunteers_lead_by_turns() -> None:
    swarm = {f"peer-{number}": progress() for number in range(4)}
    first = {next(p for p in swarm if not leaders_of(f"{n:x}", p, False, others_of(p, swarm))) for n in range(40)}
    assert first == swarm.keys()


def test_whoever_is_about_to_finish_the_last_step_is_waited_for_too() -> None:
    assert OneGroup(1).expected({"a": progress()}, {"b": progress(step=3)}).keys() == {"a", "b"}


def test_no_group_takes_a_step_with_too_few_samples() -> None:
    grouping = OneGroup(10)
    assert [grouping.enough_samples(samples) for samples in (9, 10)] == [False, True]
