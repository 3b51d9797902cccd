"""Who keeps each expert, who stands in, and how many tokens it gets, by what hosts say."""

import pytest

from dedloc_kit.experts_state import held, single, unkept
from dedloc_kit.records.experts import MAX_ASSIGNED_CELLS
from dedloc_kit.swarm.experts.load import Load, read, told
from dedloc_kit.swarm.experts.placing import Holder, Plan
from dedloc_kit.swarm.experts.standing import Told, standing
from tests.experts.mixed_run import mixed_run
from tests.swarm.experts.local_hosts import GRID, NAMES, RUN

assert RUN.experts is not None
SETTINGS = RUN.experts
FIRST = NAMES[0]


def said(name: str, keeps: list[int], copies: list[int] | None = None, tokens: int = 0) -> Told:
    kept = [NAMES[at] for at in keeps]
    return Told(name, Holder(keeps=kept, copies=[NAMES[at] for at in copies or ()]), dict.fromkeys(kept, tokens))


def test_each_expert_has_the_keeper_that_is_to_keep_it_and_one_that_stands_in() -> None:
    hosts = {
        "o": said("organizer", [*range(8), 9], tokens=2),
        "a": said("Asha", list(range(6)), [6], tokens=7),
        "b": said("Bo", [0, 6], list(range(1, 6)), tokens=9),
    }
    plan = Plan(dict.fromkeys(NAMES[:6], "a") | {NAMES[6]: "b"}, dict.fromkeys(NAMES[:6], "b"))
    found = standing(SETTINGS, NAMES, hosts, plan, "o")
    assert [host.name for host in found.hosts] == ["Asha", "Bo", "organizer"]
    first, second = found.layers
    assert first.keepers == (0,) * 6, "the organizer, and Bo, have not heard yet that it is Asha"
    assert first.stand_ins == (1,) * 6
    assert first.tokens == (7,) * 6
    assert second.keepers == (1, 2, None, 2, None, None)
    assert second.stand_ins == (0, None, None, None, None, None)
    assert [(host.kept, host.copies) for host in found.hosts] == [(6, 1), (1, 6), (2, 0)]
    assert [host.organizer for host in found.hosts] == [False, False, True]
    assert unkept(found.layers, GRID[1]) == ("2.0.2", "2.1.1", "2.1.2")
    assert single(found.layers, GRID[1]) == ("2.0.1", "2.1.0")
    assert found.held.startswith("nobody keeps 3 of 12 experts (2.0.2, 2.1.1, 2.1.2); one machine alone has 2 of 12")


def test_of_too_many_experts_none_is_told() -> None:
    run = mixed_run(layers=[0, 1], grid=[32, 33])
    assert run.experts is not None
    assert run.experts.count > MAX_ASSIGNED_CELLS
    names = [FIRST] * run.experts.count
    found = standing(run.experts, names, {"o": Told("o", Holder(keeps=names))}, Plan(), "o")
    assert (found.layers, found.hosts) == ((), ())
    assert held(found.layers, 33).startswith("the organizer's machine has all experts")


def test_tokens_are_told_of_the_last_finished_step_and_the_hosts_own_calls_are_no_gift() -> None:
    load = Load("me")
    load.add("other", FIRST, 100, 4)
    assert load.of_a_step() == {}
    load.add("me", FIRST, 900, 5)
    load.add("other", NAMES[1], 50, 5)
    assert load.of_a_step() == {FIRST: 100}
    load.add("other", FIRST, 1, 6)
    assert load.of_a_step() == {FIRST: 900, NAMES[1]: 50}
    assert load.for_others == 151


@pytest.mark.parametrize("tokens", [0, 1, 5, 1000, 123_456, 2**31])
def test_a_record_tells_tokens_to_about_one_part_in_twelve(tokens: int) -> None:
    kept = [NAMES[3], NAMES[1]]
    again = read(told(Load("").of_a_step() | {NAMES[3]: tokens}, kept), kept)
    assert again[NAMES[3]] == pytest.approx(tokens, rel=1 / 12, abs=0.5)
    assert again[NAMES[1]] == 0
    assert read(b"\xff" * 3, kept) == {}, "it is of other experts"
    assert max(read(b"\xff\xff", kept).values()) < 2**53
