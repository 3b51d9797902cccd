"""What a volunteer puts through the model at once."""

from pathlib import Path

from dedloc_kit.events import Left, LocalProgress, State, Warned
from dedloc_kit.run import seed_of
from dedloc_kit.tasks import create_task
from tests.swarm.harness import Swarm
from tests.tiny import tiny_run


def test_a_volunteer_whose_memory_runs_out_takes_fewer_samples_at_once_and_loses_none(tmp_path: Path) -> None:
    run = tiny_run(global_batch=32)
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator(until_step=2)
        small = {"TINY_MEMORY": "2", "TINY_PAUSE": "0.01"}
        chosen = swarm.volunteer("chosen", small, microbatch=8, until_step=2)
        tried = swarm.volunteer("tried", small, until_step=2)
        ends = [peer.wait_for(Left) for peer in (chosen, tried)]
        steps = [coordinator.wait_for_step(step) for step in (1, 2)]
    warnings = [event.text for event in chosen.events if isinstance(event, Warned) and "memory" in event.text]
    assert warnings == [
        "the memory does not hold 8 samples at once; going on with 4",
        "the memory does not hold 4 samples at once; going on with 2",
    ]
    assert any(
        isinstance(event, State) and event.text == "this machine takes 2 samples at once" for event in tried.events
    )
    assert not any(isinstance(event, Warned) and "memory" in event.text for event in tried.events)
    assert sum(end.session_samples for end in ends) == sum(step.step.samples for step in steps)
    # The first losses are those of the first two samples of the first batch, then of its next two.
    task = create_task(run, "tests.tiny")
    batch = next(task.batches(8, seed_of(run.run_id, chosen.joined.peer, chosen.joined.session), lambda _: None))
    model = task.build_model()
    losses = [event.loss for event in chosen.events if isinstance(event, LocalProgress)]
    expected = [task.loss(model, {"x": batch["x"][start : start + 2]}, 0).item() for start in (0, 2)]
    assert losses[:2] == expected


def test_in_a_run_with_a_microbatch_volunteers_take_it_without_a_trial(tmp_path: Path) -> None:
    with Swarm(tiny_run(global_batch=32, microbatch=8), tmp_path) as swarm:
        swarm.coordinator(until_step=1)
        volunteer = swarm.volunteer("volunteer", until_step=1)
        volunteer.wait_for(Left)
    counts = [event.samples for event in volunteer.events if isinstance(event, LocalProgress)]
    assert counts[:3] == [8, 16, 24]
    assert not any(isinstance(event, State) and "at once" in event.text for event in volunteer.events)
