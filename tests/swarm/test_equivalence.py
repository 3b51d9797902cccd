"""Many peers do what one machine with the same batch would do."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.events import Left, Warned
from tests.swarm.harness import Peer, Swarm, difference
from tests.swarm.plain_loop import plain_loop
from tests.text_runs import write_text
from tests.tiny import tiny_run

STEPS = 5


def three_uneven_volunteers(run: RunConfig, folder: Path, tasks: str, pause: float = 0.05) -> tuple[Peer, list[Peer]]:
    """Let them make some global steps and leave; the coordinator and the volunteers.

    :param pause: for each sample, in seconds: what they compute while they average is computed again by the plain loop
    """
    with Swarm(run, folder) as swarm:
        coordinator = swarm.coordinator(until_step=STEPS, task_module=tasks)
        volunteers = [
            swarm.volunteer(
                f"volunteer-{n}",
                {"TINY_PAUSE": str(pause * n), "START_FILE": str(folder / "start")},
                microbatch=n,
                devices="cpu,cpu" if n == 2 else "cpu",
                until_step=STEPS,
                task_module=tasks,
            )
            for n in (1, 2, 3)
        ]
        assert all(peer.joined.step == 0 for peer in volunteers)
        (folder / "start").touch()
        for peer in volunteers:
            peer.wait_for(Left)
        coordinator.wait_for_step(STEPS)
        assert coordinator.worker.stop() == 0
    assert all(event.step.samples >= run.global_batch for event in coordinator.steps)
    assert all(event.step.samples == sum(event.contributions.values()) for event in coordinator.steps)
    assert len({samples for event in coordinator.steps for samples in event.contributions.values()}) > 1, "uneven"
    for peer in volunteers:
        assert difference(peer.parameters(), coordinator.parameters()) == 0.0
    return coordinator, volunteers


@pytest.mark.real
def test_three_uneven_peers_make_the_same_five_steps_as_one_plain_loop(tmp_path: Path) -> None:
    run = tiny_run(global_batch=48, averaging={"overlap": False, "compression": "none"})
    coordinator, volunteers = three_uneven_volunteers(run, tmp_path, "tests.tiny")
    expected = plain_loop(run, "tests.tiny", volunteers, coordinator)
    for name, parameter in coordinator.parameters().items():
        assert float((parameter - expected[name]).norm() / expected[name].norm()) < 1e-5, name


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_text_task_with_an_unreadable_shard_makes_the_same_steps_as_one_plain_loop(tmp_path: Path) -> None:
    run = text_run("encoder", tmp_path)
    coordinator, volunteers = three_uneven_volunteers(run, tmp_path, "tests.told_tasks", pause=0.2)
    warning = volunteers[0].wait_for(Warned)
    assert "1 of 3 files of" in warning.text
    assert "train-00001-of-00003.parquet" in warning.text

    expected = plain_loop(run, "tests.told_tasks", volunteers, coordinator)
    found = coordinator.parameters()
    error = sum(float((found[name] - expected[name]).square().sum()) for name in found) ** 0.5
    norm = sum(float(parameter.square().sum()) for parameter in expected.values()) ** 0.5
    assert error / norm < 1e-5, f"relative error {error / norm:.2g}"


def text_run(task: str, folder: Path) -> RunConfig:
    """A very small model on text in three shards, the second of which is damaged."""
    documents = write_text(folder)
    data = folder / "data"
    data.mkdir()
    for number in range(3):
        table = pa.table({"text": documents[number:60:3]})  # few, so that everyone comes to each shard
        pq.write_table(table, data / f"train-{number:05d}-of-00003.parquet")
    (data / "train-00001-of-00003.parquet").write_bytes(b"PAR1 this is not Parquet PAR1")
    model = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    return parse_run(
        {
            "name": f"{task}-test",
            "global_batch": 48,
            "task": {
                "name": f"told-{task}",
                "tokenizer": str(folder / ("causal" if task == "causal" else "masked")),
                "sequence_length": 64,
                "model": model,
            },
            "data": {"train": [{"dataset": str(data)}]},
            "optimizer": {"learning_rate": 0.01, "warmup_steps": 0, "total_steps": 100},
            "averaging": {"overlap": False, "compression": "none"},
        }
    )
