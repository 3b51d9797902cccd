"""Which groups may take a step, by who took the last one; the clock is the test's."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from dedloc_kit.learning.train.state.state import Position
from dedloc_kit.swarm.directory.belief import GONE_SECONDS
from dedloc_kit.swarm.directory.rows import ONE, Division
from dedloc_kit.swarm.rounds.companions import Companions
from tests.swarm.harness import progress

STEP = Position(3, "ab")
NINE = "abcdefghi"


class Swarm:
    """What one of nine peers, `a`, sees of those who took the last step with it."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, members: str = NINE, organizer: str = "z", ago: float = 0.0
    ) -> None:
        self.now, self.here, self.left = 1000.0, set(members), set[str]()
        self.positions: dict[str, Position] = {}
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        tracker: Any = SimpleNamespace(
            others=lambda: {p: self._told(p) for p in self.here - {"a"}},
            gone=lambda peers: frozenset(self.left.intersection(peers)),
            division=ONE,
            belief=SimpleNamespace(organizer=organizer),
        )
        state: Any = SimpleNamespace(position=STEP)
        self.tracker = tracker
        self.companions = Companions(state, tracker, "a")
        self.companions.stepped(members, ago)

    def _told(self, peer: str) -> Any:
        position = self.positions.get(peer, STEP)
        return progress(step=position.step, round=position.round)

    def passes(self, seconds: float) -> None:
        """It goes on looking."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 1.0)
            self.companions.look(())


def test_more_than_half_of_those_who_took_the_last_step_take_the_next_and_half_of_them_with_the_organizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nine, eight = Swarm(monkeypatch), Swarm(monkeypatch, "abcdefgh")
    assert nine.companions.enough("bcde")
    assert not nine.companions.enough("bcd")
    assert not nine.companions.enough("bcd" + "uvwxy"), "who is new is nobody's half"
    assert not eight.companions.enough("bcd")
    led = Swarm(monkeypatch, "abcdefgh", organizer="c")
    assert led.companions.enough("bcd")
    assert not led.companions.enough("efg")
    assert not led.companions.enough("bc")


def test_a_part_of_a_swarm_goes_on_by_itself_once_the_others_were_not_seen_for_a_minute_or_have_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = Swarm(monkeypatch)
    some.here = set("abcd")
    some.passes(GONE_SECONDS - 2.0)
    assert not some.companions.enough("bcd")
    some.here = set("abcde")
    some.passes(1.0)
    some.here = set("abcd")
    some.passes(3.0)
    assert some.companions.enough("bcd"), "the one that was seen again counts, the others do not"
    few = Swarm(monkeypatch)
    few.here, few.left = set("abc"), set("fghi")
    few.passes(1.0)
    assert few.companions.enough("bc")
    few.left.clear()  # what they said has lapsed
    few.passes(1.0)
    assert few.companions.enough("bc")


def test_who_learns_later_of_a_step_waits_for_those_who_took_it_until_a_minute_has_passed_since_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new = Swarm(monkeypatch, "bcdefghi", ago=GONE_SECONDS - 10.0)
    new.here = set("auvwxyz") | set("bcd")
    new.passes(5.0)
    assert not new.companions.enough("bcd" + "uvwxyz"), "those who come at once, with few who were there"
    assert new.companions.enough("bcd" + "ef")
    new.passes(10.0)
    assert new.companions.enough("bcd"), "the others are not there"
    assert not new.companions.enough("b" + "uvwxyz"), "whom it sees itself counts"


def test_while_a_machine_sleeps_nobody_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Swarm(monkeypatch)
    some.here = set("abcd")
    some.now += 10 * GONE_SECONDS
    some.companions.look(())
    assert not some.companions.enough("bcd")


def test_whoever_is_there_with_another_state_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Swarm(monkeypatch)
    some.positions = dict.fromkeys("efghi", Position(4, "cd"))
    assert some.companions.enough("bcd")
    some.positions = dict.fromkeys("efghi", Position(2, "aa"))
    assert not some.companions.enough("bcd"), "they are about to come"
    some.positions = dict.fromkeys("efghi", Position(4, "cd"))
    some.here = set("abcd")
    assert not some.companions.enough("bcd"), "they may have said so before the lines were cut"


def test_of_other_rows_those_are_there_of_whose_row_somebody_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Swarm(monkeypatch)
    some.here = {"a"}
    some.tracker.division = division = Division(4, 3)
    rows = {division.row_of(peer) for peer in NINE if peer != "a"}
    assert some.companions.of(rows) >= set(NINE) - {"a"}
    assert some.companions.enough(some.companions.of(rows))
    for _ in range(2 * int(GONE_SECONDS)):
        some.now += 1.0
        some.companions.look(rows)
    assert not some.companions.enough("")


def test_who_knows_of_no_step_takes_one_with_whoever_is_there_but_not_without_the_organizer_if_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = Swarm(monkeypatch, "")
    assert first.companions.enough("b"), "it is not there"
    first.here = set("bz")
    first.passes(1.0)
    assert not first.companions.enough("b")
    assert first.companions.enough("bz")
    first.here = set("b")
    first.passes(GONE_SECONDS - 2.0)
    assert not first.companions.enough("b")
    first.passes(3.0)
    assert first.companions.enough("b"), "it does not come again"
