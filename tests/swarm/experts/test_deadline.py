"""How long a host may take follows from what its calls have taken."""

import pytest

from dedloc_kit.swarm.experts.deadline import MAX_SECONDS, MIN_SECONDS, REMEMBERED, Deadline


def after(*seconds: float) -> Deadline:
    deadline = Deadline()
    for each in seconds:
        deadline.took(100, each)
    return deadline


def test_nothing_is_known_before_the_first_call() -> None:
    assert Deadline().seconds(100) is None


@pytest.mark.parametrize(
    ("taken", "size", "seconds"),
    [
        ((0.01, 0.02), 100, MIN_SECONDS),
        ((0.5, 0.5, 0.5), 100, 2.0),
        ((0.1, 0.1, 3.0), 100, 6.0),
        ((0.5,), 300, 6.0),
        ((0.5,), 10, 2.0),
        ((50.0,), 100, MAX_SECONDS),
    ],
)
def test_it_follows_what_calls_took_and_how_large_they_were(
    taken: tuple[float, ...], size: int, seconds: float
) -> None:
    assert after(*taken).seconds(size) == pytest.approx(seconds)


def test_what_was_slow_long_ago_is_forgotten() -> None:
    assert after(20.0, *[0.1] * REMEMBERED).seconds(100) == MIN_SECONDS


def test_after_a_late_call_there_is_twice_the_time_until_one_is_answered() -> None:
    deadline = after(0.5)
    deadline.late()
    deadline.late()
    assert deadline.seconds(100) == 8.0
    deadline.took(100, 0.5)
    assert deadline.seconds(100) == 2.0


def test_small_calls_that_take_long_on_the_way_do_not_give_a_large_one_minutes() -> None:
    deadline = Deadline()
    for size in (2, 400, 3):
        deadline.took(size, 1.0)
    assert deadline.seconds(400) == 4.0
    assert deadline.seconds(800) == 8.0
