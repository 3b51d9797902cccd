"""What a peer believes of how far the swarm is."""

import pytest

from dedloc_kit.known_peers import Taken
from dedloc_kit.learning.train.state.state import START, Position
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.directory.belief import GONE_SECONDS, Belief
from tests.swarm.harness import belief, progress

NOW = 1000.0
TEN, ELEVEN = Position(10, "aa"), Position(11, "bb")


def at(position: Position, *peers: str) -> dict[str, Progress]:
    return {peer: progress(step=position.step, round=position.round) for peer in peers}


def having_taken_ten(**samples: int) -> Belief:
    """One that took step 10 with these, a second ago."""
    mine = belief()
    mine.took(10, NOW - 1.0, samples)
    return mine


def test_the_organizers_word_counts_and_that_of_strangers_does_not_however_many_they_are() -> None:
    mine = having_taken_ten(me=6, asha=4)
    strangers = at(Position(12, "ff"), *map(str, range(21)))
    assert mine.newest(TEN, strangers | at(TEN, "organizer", "asha"), NOW) == TEN
    assert mine.newest(TEN, strangers | at(ELEVEN, "organizer"), NOW) == ELEVEN


def test_without_the_organizer_those_count_who_brought_more_than_half_of_the_last_step() -> None:
    mine = having_taken_ten(me=4, asha=3, badal=3)
    assert mine.newest(TEN, at(ELEVEN, "asha") | at(TEN, "badal"), NOW) == TEN
    assert mine.newest(TEN, at(ELEVEN, "asha") | at(Position(12, "cc"), "badal"), NOW) == ELEVEN
    assert mine.newest(TEN, at(ELEVEN, "asha", "badal") | at(Position(11, "ff"), "x", "y", "z"), NOW) == ELEVEN


def test_exactly_half_is_not_more_than_half() -> None:
    mine = having_taken_ten(me=5, asha=5)
    assert mine.newest(TEN, at(ELEVEN, "asha"), NOW) == TEN
    assert having_taken_ten(me=5, asha=6).newest(TEN, at(ELEVEN, "asha"), NOW) == ELEVEN


def test_whose_path_has_parted_goes_where_the_organizer_is_or_who_brought_most() -> None:
    mine, other = having_taken_ten(me=4, asha=6), Position(10, "cc")
    assert mine.newest(TEN, at(other, "asha"), NOW) == other
    assert mine.newest(TEN, at(TEN, "asha") | at(other, "organizer"), NOW) == other
    assert mine.newest(TEN, at(TEN, "organizer") | at(other, "asha"), NOW) == TEN
    assert mine.newest(TEN, at(other, "x", "y", "z"), NOW) == TEN, "strangers do not count"


def test_the_organizer_keeps_its_own_state_of_a_step_but_follows_to_a_newer_one() -> None:
    organizer = belief(me="organizer", step=10, round="aa")
    organizer.took(10, NOW - 1.0, {"organizer": 0, "asha": 6})
    assert organizer.newest(TEN, at(Position(10, "cc"), "asha"), NOW) == TEN
    assert organizer.newest(Position(10, "dd"), at(TEN, "asha"), NOW) == Position(10, "dd")
    assert organizer.newest(TEN, at(ELEVEN, "asha"), NOW) == ELEVEN


def test_whoever_starts_anew_knows_how_far_others_are_once_a_companion_has_spoken_or_all_are_gone() -> None:
    organizer = belief(me="organizer")
    assert organizer.hears([], NOW), "it has none"
    organizer.remember(Taken(step=10, time=NOW - 100.0, samples={"asha": 6, "organizer": 0}))
    assert not organizer.hears(["stranger"], NOW)
    assert organizer.hears(["asha"], NOW)
    for seconds in range(0, 70, 10):
        organizer.see([], NOW + seconds)
    assert organizer.hears([], NOW + 60.0)


def test_nobody_is_followed_back() -> None:
    mine = having_taken_ten(me=4, asha=6)
    assert mine.newest(TEN, at(Position(9, "dd"), "organizer", "asha"), NOW) == TEN


def test_a_newcomer_takes_the_organizers_word_and_without_it_that_of_three_holders_of_one_state() -> None:
    assert belief().newest(START, at(ELEVEN, "x", "y", "z") | at(TEN, "organizer"), NOW) == TEN
    assert belief().newest(START, at(ELEVEN, "x", "y"), NOW) == START
    assert belief().newest(START, at(ELEVEN, "x", "y") | at(Position(11, "ff"), "z"), NOW) == START
    assert belief().newest(START, at(ELEVEN, "x", "y", "z"), NOW) == ELEVEN
    lent = {"z": at(ELEVEN, "z")["z"].model_copy(update={"holds_state": False})}
    assert belief().newest(START, at(ELEVEN, "x", "y") | lent, NOW) == START, "who lends a line only says what it heard"


def test_the_notice_of_an_organizer_that_is_away_is_the_least_that_a_newcomer_believes() -> None:
    mine = belief(step=11, round="bb")
    assert mine.newest(START, at(TEN, "x", "y", "z"), NOW) == START
    assert mine.newest(START, at(ELEVEN, "x", "y", "z"), NOW) == ELEVEN
    assert mine.newest(START, at(ELEVEN, "x"), NOW) == ELEVEN, "it is proven, though the state of one is not"


def test_what_an_organizer_that_is_away_has_said_holds_nobody_up_where_nobody_has_that_state() -> None:
    mine = belief(step=11, round="bb")
    mine.took(10, NOW - 1.0, {"me": 4, "asha": 6})
    assert mine.newest(TEN, at(TEN, "asha"), NOW) == TEN
    assert mine.newest(TEN, at(ELEVEN, "x") | at(TEN, "asha"), NOW) == ELEVEN


def long_without(mine: Belief, *here: str) -> float:
    """The time after which everybody else is gone."""
    time = NOW
    while time <= NOW + GONE_SECONDS:
        mine.see(here, time)
        time += 1.0
    return time


def test_what_those_brought_who_are_gone_for_long_does_not_count() -> None:
    mine = having_taken_ten(asha=6, badal=4)
    assert mine.newest(TEN, at(ELEVEN, "badal"), NOW) == TEN
    later = long_without(mine, "badal")
    assert mine.newest(TEN, at(ELEVEN, "badal"), later - 5.0) == TEN
    assert mine.newest(TEN, at(ELEVEN, "badal"), later) == ELEVEN
    mine.see(["asha"], later)
    assert mine.newest(TEN, at(ELEVEN, "badal"), later) == TEN, "it is back"


def test_whoever_took_part_in_the_last_step_was_there() -> None:
    mine = having_taken_ten(asha=6, badal=4)
    later = long_without(mine)
    mine.took(11, later, {"asha": 6, "chitra": 4})
    assert mine.newest(ELEVEN, at(Position(12, "cc"), "chitra"), later) == ELEVEN


def test_who_slept_looks_for_its_companions_for_a_while_before_it_believes_that_they_are_gone() -> None:
    mine = having_taken_ten(asha=6, badal=4)
    mine.see(["asha", "badal"], NOW)
    later = NOW + 2 * GONE_SECONDS
    mine.see(["badal"], later)
    assert mine.newest(TEN, at(ELEVEN, "badal"), later) == TEN


def test_whose_companions_have_all_gone_is_as_a_newcomer_but_for_the_organizer() -> None:
    strangers = at(ELEVEN, "x", "y", "z")
    mine = having_taken_ten(me=5, asha=5)
    assert mine.newest(TEN, strangers, NOW) == TEN, "they may be back in a moment"
    assert mine.newest(TEN, strangers, long_without(mine, *strangers)) == ELEVEN
    organizer = belief("me", "me")
    assert organizer.newest(START, strangers, NOW) == START, "it starts the run"
    organizer.took(10, NOW - 1.0, {"asha": 5})
    later = long_without(organizer, *strangers)
    assert organizer.newest(TEN, strangers, later) == TEN
    organizer.see(["asha"], later)
    assert organizer.newest(TEN, strangers | at(ELEVEN, "asha"), later) == ELEVEN


def test_of_one_that_was_started_anew_only_what_the_others_brought_counts() -> None:
    mine = belief()
    mine.remember(having_taken_ten(me=9, asha=1).taken)
    assert mine.newest(START, at(ELEVEN, "asha"), NOW) == ELEVEN
    assert mine.newest(START, at(ELEVEN, "x", "y", "z"), NOW) == START


@pytest.mark.parametrize("samples", [{}, {"me": 10, "asha": 10, "badal": 10}])
def test_a_state_is_proven_as_a_step_is(samples: dict[str, int]) -> None:
    mine = having_taken_ten(**samples) if samples else belief()
    assert mine.proves({"organizer"}, NOW)
    assert mine.proves({"x", "y", "z"}, NOW) != bool(samples)
    assert mine.proves({"asha", "badal"}, NOW) == bool(samples)
    assert not mine.proves({"asha"}, NOW)
