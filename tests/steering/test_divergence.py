"""When a run is said to have diverged, and when no longer."""

import math

import pytest

from dedloc_kit.events import PeerSeen
from dedloc_kit.steering.divergence import EVALUATIONS, SKIPPED, STEPS, STUCK_SECONDS, Divergence, far_above


class Watched:
    """A run whose losses began at 10 and whose clock stands still unless it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.divergence = Divergence(64, 10.0, 10.0, clock=lambda: self.now)

    def wait(self, seconds: float, *peers: PeerSeen, waits: bool = False) -> str:
        self.now += seconds
        self.divergence.seen(1, peers, waits)
        return self.divergence.problem


@pytest.fixture
def watched() -> Watched:
    return Watched()


def volunteer(samples: int = 0, skipped: int = 0, follower: bool = False) -> PeerSeen:
    return PeerSeen(
        peer="p",
        name="Asha",
        device="CPU",
        step=1,
        samples=samples,
        samples_per_second=1.0,
        skipped=skipped,
        follower=follower,
        client_mode=True,
    )


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_one_evaluation_that_is_no_number_is_enough_and_one_that_is_ends_it(watched: Watched, loss: float) -> None:
    watched.divergence.evaluated(20, loss)
    assert watched.divergence.problem == (
        "the training has diverged: the held-out loss of step 20 is not a finite number"
    )
    watched.divergence.evaluated(40, 9.0)
    assert watched.divergence.problem == ""


def test_a_held_out_loss_is_far_above_the_start_only_after_several_evaluations(watched: Watched) -> None:
    for step in range(1, EVALUATIONS):
        watched.divergence.evaluated(step, 15.1)
        assert watched.divergence.problem == ""
    watched.divergence.evaluated(EVALUATIONS, 15.1)
    assert watched.divergence.problem == (
        f"the training has diverged: the held-out loss is 15.1 at step {EVALUATIONS}, after 10 at the start"
    )
    watched.divergence.evaluated(9, 14.9)
    assert watched.divergence.problem == ""


def test_what_interrupts_a_row_of_bad_losses_begins_it_anew(watched: Watched) -> None:
    for step, loss in enumerate([20.0, 20.0, 9.0, 20.0, 20.0]):
        watched.divergence.evaluated(step, loss)
        assert watched.divergence.problem == ""


def test_the_training_loss_is_judged_by_more_steps(watched: Watched) -> None:
    for step in range(1, STEPS + 1):
        assert watched.divergence.problem == ""
        watched.divergence.stepped(step, 15.1)
    assert "the training loss is 15.1 at step 10, after 10 at the start" in watched.divergence.problem


def test_a_start_that_is_not_known_is_the_first_loss_and_a_negative_one_has_its_own_far_above() -> None:
    divergence = Divergence(64)
    for loss in [-2.0, -1.1, -1.1, -1.1]:
        divergence.evaluated(1, loss)
    assert divergence.problem == ""
    for loss in [-0.9, -0.9, -0.9]:
        divergence.evaluated(1, loss)
    assert "after -2 at the start" in divergence.problem


def test_volunteers_who_get_no_finite_loss_are_believed_if_they_are_most(watched: Watched) -> None:
    follower = volunteer(follower=True)
    assert watched.wait(1, volunteer(skipped=SKIPPED), volunteer(), follower) == ""
    assert watched.wait(1, volunteer(skipped=SKIPPED - 1)) == ""
    assert watched.wait(1, volunteer(skipped=SKIPPED), follower) == (
        "the training has diverged: 1 of 1 volunteer no longer get a finite loss or gradient"
    )
    watched.divergence.stepped(2, 9.0)
    assert watched.divergence.problem == ""


def test_no_step_for_long_though_volunteers_compute_is_a_problem_until_there_is_one(watched: Watched) -> None:
    watched.divergence.stepped(1, 9.0)
    assert watched.wait(STUCK_SECONDS - 1, volunteer()) == ""
    assert watched.wait(2, volunteer()) == "no global step follows number 1, though volunteers compute"
    watched.divergence.stepped(2, 9.0)
    assert watched.divergence.problem == ""


def test_a_batch_that_fills_up_slowly_and_one_that_nobody_fills_are_none(watched: Watched) -> None:
    for samples in range(1, 60):
        assert watched.wait(STUCK_SECONDS - 1, volunteer(samples)) == "", "it grows"
    assert watched.wait(10 * STUCK_SECONDS) == "", "nobody is here"
    assert watched.wait(10 * STUCK_SECONDS, volunteer(60), waits=True) == "", "it is paused"
    assert watched.wait(STUCK_SECONDS - 1, volunteer(70)) == ""
    assert watched.wait(2, volunteer(80)) != "", "the batch is full, and more of it leads nowhere"


def test_what_the_coordinator_measures_itself_counts_at_once_and_ends_what_is_claimed(watched: Watched) -> None:
    for step in range(1, STEPS + 1):
        watched.divergence.stepped(step, 15.1)
    assert "the training loss" in watched.divergence.problem
    watched.divergence.measured(10, 9.1, untrained=6.0)
    assert watched.divergence.problem == (
        "the training has diverged: the measured loss is 9.1 at step 10, after 6 at the start"
    )
    watched.divergence.measured(11, 9.0, untrained=6.0)
    assert watched.divergence.problem == ""
    watched.divergence.stepped(12, 15.1)
    assert watched.divergence.problem == "", "the row begins anew"


def test_a_sound_held_out_loss_ends_what_is_claimed_of_the_training(watched: Watched) -> None:
    for step in range(1, STEPS + 1):
        watched.divergence.stepped(step, 15.1)
    watched.divergence.evaluated(10, 16.0)
    assert "the training loss" in watched.divergence.problem, "the first of those that are too high"
    watched.divergence.evaluated(20, 9.0)
    assert watched.divergence.problem == ""


def test_what_is_lost_begins_with_the_state_that_gave_the_first_bad_loss_but_never_with_the_untrained_one(
    watched: Watched,
) -> None:
    assert watched.divergence.first_lost(7) == 7, "its losses were good up to now"
    for step in range(5, 9):
        watched.divergence.stepped(step, 15.1)
    assert [watched.divergence.first_lost(step) for step in (3, 8)] == [3, 4]
    watched.divergence.stepped(9, 9.0)
    assert watched.divergence.first_lost(9) == 9
    early = Divergence(64, None, 10.0)
    early.stepped(1, 15.1)
    assert early.first_lost(3) == 1


@pytest.mark.parametrize(
    ("loss", "start", "far"),
    [(15.0, 10.0, False), (15.1, 10.0, True), (-1.0, -2.0, False), (-0.9, -2.0, True), (math.nan, 1.0, True)],
)
def test_what_is_far_above_the_start(loss: float, start: float, far: bool) -> None:
    assert far_above(loss, start) == far


def test_after_a_rewind_all_is_well_until_something_new_is_bad(watched: Watched) -> None:
    watched.divergence.evaluated(20, math.nan)
    watched.wait(1, volunteer(skipped=SKIPPED))
    watched.divergence.went_back()
    assert watched.divergence.problem == ""
    watched.divergence.evaluated(22, math.nan)
    assert "step 22" in watched.divergence.problem
