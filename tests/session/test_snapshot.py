"""What a volunteer reads of a training that says nothing: a slow machine is no broken line."""

from dedloc_kit.events import LocalProgress
from dedloc_kit.session.snapshot import FULL_SECONDS, Fill, Snapshot, overdue

TRAINING = Snapshot(phase="training", text="training", global_batch=64)


def test_before_its_first_samples_a_machine_computes_however_long_it_takes() -> None:
    assert overdue(TRAINING, 5.0, None, 0.0) == TRAINING
    first = overdue(TRAINING, 100.0, None, 0.0)
    assert first.phase == "training"
    assert "the first samples" in first.text


def test_whoever_is_silent_for_much_longer_than_usual_waits_for_the_others() -> None:
    assert overdue(TRAINING, 100.0, 40.0, 0.0) == TRAINING
    assert overdue(TRAINING, 9.0, 0.1, 0.0) == TRAINING
    assert overdue(TRAINING, 11.0, 0.1, 0.0).phase == "waiting"


def progress(swarm_samples: int, step: int = 7, averaging: bool = False) -> LocalProgress:
    return LocalProgress(
        step=step,
        samples=9,
        swarm_samples=swarm_samples,
        global_batch=64,
        averaging=averaging,
        session_samples=9,
        loss=1.0,
        samples_per_second=1.0,
    )


def test_a_full_batch_is_told_of_only_after_a_time_in_which_no_round_began() -> None:
    now = [0.0]
    fill = Fill(lambda: now[0])

    def shown() -> Snapshot:
        return overdue(TRAINING, 1.0, 1.0, fill.seconds)

    def goes_on(said: LocalProgress) -> None:
        fill.heard(said)
        assert shown() == TRAINING
        now[0] += 0.9 * FULL_SECONDS

    for step in range(5):  # of one volunteer, which gathers many batches in each round
        goes_on(progress(400, step))
        goes_on(progress(500, step, averaging=True))
        goes_on(progress(600, step, averaging=True))
        fill.stepped()
    goes_on(progress(100))
    goes_on(progress(400))
    now[0] += 0.2 * FULL_SECONDS
    fill.heard(progress(500))
    assert shown().phase == "waiting"
    assert "the other peers do not come" in shown().text
    fill.heard(progress(500, averaging=True))
    assert shown() == TRAINING
