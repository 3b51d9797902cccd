"""What a volunteer puts through the model at once."""

from pathlib import Path

import pytest

from dedloc_kit.config.trust import TrustConfig
from dedloc_kit.events import Left, LocalProgress, Peers, State, Warned
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.tasks.batches import seed_for
from dedloc_kit.learning.train.gradients.accumulator import MAX_STALENESS
from dedloc_kit.roles.volunteer import COMPILED
from dedloc_kit.swarm.audits.audit import GIVEN_UP_STEPS, KEPT_STEPS
from tests.batches import batches_from
from tests.learning.tasks.bytes_run import run_of
from tests.swarm.harness import Peer, Swarm
from tests.text_runs import text_run, write_text
from tests.tiny import tiny_run

SMALL = {"TINY_MEMORY": "2", "TINY_PAUSE": "0.01"}


@pytest.mark.soak
def test_a_volunteer_whose_memory_runs_out_takes_fewer_samples_at_once_and_loses_none(tmp_path: Path) -> None:
    run = tiny_run(global_batch=32)
    with Swarm(run, tmp_path) as swarm:  # with nobody else who trains, its first losses are those of the first weights
        coordinator = swarm.coordinator(until_step=2)
        chosen = swarm.volunteer("chosen", SMALL, microbatch=8, until_step=2)
        end = chosen.wait_for(Left)
        steps = [coordinator.wait_for_step(step) for step in (1, 2)]
    assert memory_warnings(chosen) == [
        "the memory does not hold 8 samples at once; going on with 4",
        "the memory does not hold 4 samples at once; going on with 2",
    ]
    assert end.session_samples == sum(step.step.samples for step in steps)
    # The first losses are those of the first two samples of the first batch, then of its next two.
    task = create_task(run, "tests.tiny")
    batch = next(batches_from(task, 8, seed_for(run, chosen.joined.peer), lambda _: None))
    model = task.model()
    losses = [event.loss for event in chosen.events if isinstance(event, LocalProgress)]
    expected = [task.loss(model, {"x": batch["x"][start : start + 2]}, 0).mean.item() for start in (0, 2)]
    assert losses[:2] == expected


@pytest.mark.soak
def test_a_volunteer_tries_what_its_memory_holds_before_it_trains(tmp_path: Path) -> None:
    with Swarm(tiny_run(global_batch=32), tmp_path) as swarm:
        coordinator = swarm.coordinator(until_step=1)
        volunteer = swarm.volunteer("volunteer", SMALL, until_step=1)
        end = volunteer.wait_for(Left)
        step = coordinator.wait_for_step(1)
    assert any(
        isinstance(event, State) and event.text == "this machine takes 2 samples at once" for event in volunteer.events
    )
    assert memory_warnings(volunteer) == []
    assert end.session_samples == step.step.samples


@pytest.mark.soak
def test_in_a_run_with_a_microbatch_volunteers_take_it_without_a_trial(tmp_path: Path) -> None:
    with Swarm(tiny_run(global_batch=32, microbatch=8), tmp_path) as swarm:
        swarm.coordinator(until_step=1)
        volunteer = swarm.volunteer("volunteer", until_step=1)
        volunteer.wait_for(Left)
    counts = [event.samples for event in volunteer.events if isinstance(event, LocalProgress)]
    assert counts[:3] == [8, 16, 24]
    assert not any(isinstance(event, State) and "at once" in event.text for event in volunteer.events)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_volunteer_that_compiles_loses_no_sample_whether_or_not_that_is_faster(tmp_path: Path) -> None:
    write_text(tmp_path)
    with Swarm(text_run(tmp_path, "causal", sequence_length=32), tmp_path) as swarm:
        coordinator = swarm.coordinator(until_step=2)
        volunteer = swarm.volunteer("volunteer", microbatch=4, until_step=2, compile=True)
        end = volunteer.wait_for(Left, deadline=400)
        steps = [coordinator.wait_for_step(step) for step in (1, 2)]
    told = [event.text for event in volunteer.events if isinstance(event, State | Warned)]
    assert any("the compiled model is" in text or ("takes" in text and "times as long" in text) for text in told)
    assert end.session_samples == sum(step.step.samples for step in steps)
    assert list((tmp_path / "volunteer" / COMPILED).rglob("*.so"))


@pytest.mark.soak
def test_a_device_whose_memory_runs_out_for_good_is_left_out_and_the_host_goes_on_with_the_other(
    tmp_path: Path,
) -> None:
    run = tiny_run(global_batch=32, averaging={"overlap": False})
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator()
        lost = {"TINY_LOST_AT": "5", "TINY_PAUSE": "0.01"}
        volunteer = swarm.volunteer("volunteer", lost, microbatch=1, devices="cpu,cpu")
        coordinator.wait_for(
            Peers, lambda event: any(p.device.startswith("CPU, ") and not p.follower for p in event.peers)
        )
        volunteer.wait_for_step(3)
        assert volunteer.worker.stop() == 0
        end = volunteer.wait_for(Left)
        coordinator.wait_for_step(end.step)
    assert volunteer.joined.device.startswith("2 x CPU, ")
    assert any(text.startswith("CPU, ") and "is left out, the others go on" in text for text in warnings(volunteer))
    assert end.session_samples == sum(step.step.samples for step in coordinator.steps)
    counts = [event.samples for event in volunteer.events if isinstance(event, LocalProgress)]
    assert counts[:4] == [2, 4, 6, 8], "two at once"
    assert counts[4:6] == [5, 6], "then one, and without what the lost device had added up"


def warnings(volunteer: Peer) -> list[str]:
    return [event.text for event in volunteer.events if isinstance(event, Warned)]


def memory_warnings(volunteer: Peer) -> list[str]:
    """What it warned of that has to do with memory."""
    return [event.text for event in volunteer.events if isinstance(event, Warned) and "memory" in event.text]


@pytest.mark.soak
def test_a_volunteer_goes_on_without_what_it_cannot_read_and_tells_how_much_that_is(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    run = run_of(data)
    good = '"the boat is on the river. it is wide."'
    lines = "".join(f'{{"text": {text}}}\n' for text in [good] * 99 + ["7", good, "8", "[9]"])
    (data / "rows.jsonl").write_text(lines)
    (data / "broken.parquet").write_bytes(b"PAR1 this is not Parquet")
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator(task_module="tests.bytes_task")
        volunteer = swarm.volunteer("volunteer", task_module="tests.bytes_task")
        lost = (3, 1, 3)
        coordinator.wait_for(
            Peers, lambda event: lost in [(p.files, p.unreadable_files, p.bad_rows) for p in event.peers]
        )
        volunteer.wait_for(LocalProgress)
    warned = [event.text for event in volunteer.events if isinstance(event, Warned)]
    assert len([text for text in warned if "broken.parquet" in text]) == 1
    assert len([text for text in warned if "row 100 of" in text and "holds int, not text" in text]) == 1


@pytest.mark.soak
def test_in_a_run_with_checks_volunteers_train_on_named_data_and_keep_the_parameters_of_the_last_steps_until_they_leave(
    tmp_path: Path,
) -> None:
    write_text(tmp_path)
    run = text_run(tmp_path, "causal")
    lasting = run.optimizer.model_copy(update={"total_steps": 1000})
    run = run.model_copy(update={"trust": TrustConfig(checks="on"), "optimizer": lasting})
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator()
        volunteers = [swarm.volunteer(name, microbatch=4) for name in ("one", "two")]
        for peer in (coordinator, *volunteers):
            peer.wait_for_step(MAX_STALENESS + 2 * KEPT_STEPS + 2)
            most = MAX_STALENESS + (GIVEN_UP_STEPS if peer is coordinator else 2 * KEPT_STEPS)
            assert 1 <= len(list(kept(peer).iterdir())) <= most + 1, "one more while it is written"
        for peer in volunteers:
            assert peer.worker.stop() == 0
            assert not kept(peer).exists()
    assert not any("cannot be checked" in text for peer in volunteers for text in warnings(peer))


def kept(peer: Peer) -> Path:
    return peer.config.folder / "recent-parameters"
