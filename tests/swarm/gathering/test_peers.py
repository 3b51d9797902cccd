"""Who is there, and who counts, whatever the directory and the others' clocks do."""

from collections.abc import Mapping

import pytest

from dedloc_kit.records.position import Position, check_position
from dedloc_kit.swarm.gathering.peers import MAX_PEERS, MISSED, REMEMBERED, SILENT, PeerTable
from tests.swarm.gathering.positions import position


def looks(table: PeerTable, begin: float, end: float, found: Mapping[str, Position | None]) -> None:
    """One a second, that find the same."""
    at = begin
    while at <= end:
        table.look(found, at)
        at += 1.0


def test_a_peer_that_tells_nothing_new_is_gone_after_some_seconds() -> None:
    table = PeerTable("me")
    told = {"a": position(0)}
    looks(table, 0, SILENT - 1, told)
    assert table.alive() == told
    looks(table, SILENT, SILENT + 1, told)
    assert table.alive() == {}
    table.look({"a": position(SILENT + 2)}, SILENT + 2)
    assert list(table.alive()) == ["a"]


def test_an_old_record_neither_replaces_a_new_one_nor_revives_its_author() -> None:
    table, new = PeerTable("me"), position(5, samples=3)
    table.look({"a": new}, 5)
    looks(table, 6, 6 + SILENT, {"a": position(1)})
    assert table.alive() == {}
    table.look({"a": new}, 7 + SILENT)
    assert table.alive() == {}


def test_a_peer_that_was_started_anew_with_an_earlier_clock_is_seen_in_the_end() -> None:
    table = PeerTable("me")
    looks(table, 0, REMEMBERED + 1, {"a": position(0, skew=3600)})
    table.look({"a": position(REMEMBERED + 2)}, REMEMBERED + 2)
    assert list(table.alive()) == ["a"]


def test_time_in_which_nobody_looked_does_not_count() -> None:
    table = PeerTable("me")
    table.look({"a": position(0)}, 0)
    table.look({}, 3600)
    assert list(table.alive()) == ["a"]
    looks(table, 3601, 3600 + SILENT, {})
    assert table.alive() == {}


def test_a_peer_that_leaves_is_gone_at_once_and_may_return() -> None:
    table = PeerTable("me")
    table.look({"a": position(0)}, 0)
    table.look({"a": None}, 1)
    assert table.alive() == {}
    assert table.left({"a", "b"}) == {"a"}
    table.look({"a": position(0)}, 2)
    assert table.alive() == {}, "an old record"
    table.look({"a": position(3)}, 3)
    assert (list(table.alive()), table.left({"a"})) == (["a"], frozenset())


@pytest.mark.parametrize("skew", [-3600.0, 0.0, 3600.0])
def test_how_old_a_record_is_does_not_depend_on_its_authors_clock(skew: float) -> None:
    table = PeerTable("me")
    table.look({"a": position(0, skew=skew)}, 0.5)
    table.look({"a": position(4, skew=skew)}, 7)
    assert table.told_at("a") == pytest.approx(4.5)


@pytest.mark.parametrize("jump", [-60.0, 60.0])
def test_a_clock_that_jumps_makes_a_record_at_most_some_seconds_old(jump: float) -> None:
    table, time = PeerTable("me"), position(0).time
    for at in range(0, 60, 4):
        time = max(time + 0.001, position(at, skew=jump if at >= 20 else 0).time)
        table.look({"a": position(at).model_copy(update={"time": time})}, at)
        assert at - 10.0 <= table.told_at("a") <= at


def test_a_suspect_counts_again_with_what_it_tells_afterwards() -> None:
    table = PeerTable("me")
    table.look({"a": position(0), "b": position(0)}, 0)
    table.look({"a": position(3)}, 3)
    table.doubt({"a"}, 5)
    assert list(table.counted(5)) == ["b"]
    table.look({"a": position(4)}, 6)
    assert list(table.counted(6)) == ["b"], "it was told before, and came late"
    table.look({"a": position(6)}, 7)
    assert sorted(table.counted(7)) == ["a", "b"]


def test_a_peer_that_fails_again_and_again_is_backed_off_for_longer_and_longer() -> None:
    table = PeerTable("me")

    def fails(at: float) -> float:
        """Seconds until it counts again, though it speaks on."""
        table.look({"a": position(at)}, at)
        table.suspect({"a"}, at + 0.1)
        for seconds in range(1, 100):
            table.look({"a": position(at + seconds)}, at + seconds)
            if table.counted(at + seconds):
                return seconds
        return 100

    waits = [fails(100 * number) for number in range(5)]
    assert waits[:2] == [1, 1]
    assert waits[2] < waits[3] < waits[4] < 100
    table.suspect({"a"}, 600)
    table.need({"a"})
    table.look({"a": position(601)}, 601)
    assert list(table.counted(601)) == ["a"], "nothing goes on without it"
    table.trust({"a"})
    assert fails(700) == 1


def test_a_swarm_of_strangers_does_not_fill_the_memory() -> None:
    table = PeerTable("me")
    told = position(0)
    table.look({f"p{number}": told for number in range(MAX_PEERS + 10)}, 0)
    assert len(table.alive()) == MAX_PEERS


def test_a_peer_does_not_see_itself() -> None:
    table = PeerTable("me")
    table.look({"me": position(0)}, 0)
    assert table.alive() == {}


def test_a_peer_is_lonely_if_looks_find_nobody_for_a_while_or_ever() -> None:
    table = PeerTable("me")
    assert not table.lonely(0), "it has not looked"
    table.look({}, 0)
    assert table.lonely(0)
    assert not table.lonely(SILENT + 1), "it looks no more"
    table.look({"a": position(16)}, 16)
    assert not table.lonely(16)
    looks(table, 17, 17 + SILENT, {})
    assert not table.lonely(17 + SILENT), "it has just gone"
    looks(table, 18 + SILENT, 18 + 2 * SILENT, {})
    assert table.lonely(18 + 2 * SILENT)
    table.line_was_down()
    assert not table.lonely(18 + 2 * SILENT)
    looks(table, 19 + 2 * SILENT, 19 + 3 * SILENT, {})
    assert table.lonely(19 + 3 * SILENT)


def test_a_machine_that_slept_is_not_lonely_before_it_has_looked_for_a_while() -> None:
    table = PeerTable("me")
    table.look({"a": position(0)}, 0)
    table.look({}, 3600)
    assert not table.lonely(3600)
    looks(table, 3601, 3600 + 2 * SILENT, {})
    assert table.lonely(3600 + 2 * SILENT)


@pytest.mark.parametrize(
    ("found", "missed"),
    [
        ({}, True),
        ({"a": position(4)}, True),
        ({"a": position(4), "b": None}, False),
        ({"a": position(4), "b": position(0)}, False),
        ({"a": position(3), "b": position(0)}, True),
    ],
    ids=["nobody", "one is missing", "it has left", "it tells nothing new", "an old record"],
)
def test_one_node_that_was_asked_may_know_less_than_others(found: Mapping[str, Position | None], missed: bool) -> None:
    table = PeerTable("me")
    table.look({"a": position(4), "b": position(0)}, 4)
    assert table.may_have_missed(found) == missed


def test_other_nodes_are_asked_about_a_peer_that_has_been_silent_for_too_long() -> None:
    table, told = PeerTable("me"), {"a": position(0)}
    looks(table, 0, MISSED - 1, told)
    assert not table.may_have_missed(told)
    looks(table, MISSED, MISSED, told)
    assert table.may_have_missed(told)
    assert not table.may_have_missed({"a": position(MISSED)})


@pytest.mark.parametrize(("more", "wrong"), [({"run_id": "other"}, "run"), ({"samples": 9}, "claims 9")])
def test_a_position_of_another_run_or_with_too_many_samples_is_refused(more: dict[str, object], wrong: str) -> None:
    good = position(0, samples=8)
    assert check_position(good, "run", 8) == good
    with pytest.raises(ValueError, match=wrong):
        check_position(good.model_copy(update=more), "run", 8)
