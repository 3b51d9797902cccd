"""What a volunteer reads of a training that says nothing: a slow machine is no broken line."""

from dedloc_kit.session.snapshot import Snapshot, overdue

TRAINING = Snapshot(phase="training", text="training", global_batch=64)


def test_before_its_first_samples_a_machine_computes_however_long_it_takes() -> None:
    assert overdue(TRAINING, 5.0, None) == TRAINING
    first = overdue(TRAINING, 100.0, None)
    assert first.phase == "training"
    assert "the first samples" in first.text


def test_whoever_is_silent_for_much_longer_than_usual_waits_for_the_others() -> None:
    assert overdue(TRAINING, 100.0, 40.0) == TRAINING
    assert overdue(TRAINING, 9.0, 0.1) == TRAINING
    assert overdue(TRAINING, 11.0, 0.1).phase == "waiting"
