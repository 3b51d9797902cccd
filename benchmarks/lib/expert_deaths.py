"""What does it cost trainers that a host of experts dies?

A coordinator, two hosts, each of which keeps half of the experts and stands in for the other half, and two trainers:
real processes on loopback with a simulated device. Hosts train as well, as volunteers do. All processes of one host are
killed at once.
"""

import math
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.lib.measure import Microbatch, read_microbatches
from benchmarks.lib.mixed_task import GRID, mixed_run
from benchmarks.lib.peers import Event, Peer, start_coordinator, start_volunteer, step_of
from dedloc_kit.records.invitation import Invitation

TRAINERS, HOSTS, MICROBATCH = 2, 2, 4
BATCH_MICROBATCHES = 16
SECONDS = 0.5
"""Of a microbatch, beside its calls."""
CALM_STEPS, LATER_STEPS = 5, 3
"""Global steps before the death, and those after it which may suffer."""
START_SECONDS, STEP_SECONDS = 600.0, 300.0


@dataclass(frozen=True)
class Death:
    """:ivar nan: losses that are no numbers, of microbatches and of global steps
    :ivar failed_steps: global steps that hold less than a global batch
    :ivar wait_seconds: that a trainer waited for experts longer than usual, in all; of the trainer that waited longest
    :ivar usual_seconds: for which a microbatch waits for experts, the median before
    :ivar longest_step: seconds of the longest global step after the death
    :ivar usual_step: their median before
    """

    nan: int
    failed_steps: int
    wait_seconds: float
    usual_seconds: float
    longest_step: float
    usual_step: float


def after_kill() -> Death:
    """Raises UserError."""
    run = mixed_run(SECONDS, BATCH_MICROBATCHES * MICROBATCH)
    settings: dict[str, Any] = {"task_module": "benchmarks.lib.mixed_task"}
    each = GRID[0] * GRID[1] // HOSTS
    with tempfile.TemporaryDirectory(prefix="dedloc-experts-") as name, ExitStack() as stack:
        folder = Path(name)
        go = folder / "go"
        coordinator = stack.enter_context(start_coordinator(run, folder, **settings))
        addresses = tuple(coordinator.wait_for("joined", deadline=START_SECONDS)["addresses"])

        def start(name: str, **own: Any) -> Peer:
            logs = {"BENCH_START": str(go), "BENCH_LOG": str(folder / f"{name}.microbatches")}
            invitation = Invitation.of(run, addresses)
            own = {"microbatch": MICROBATCH, **own, **settings}
            return stack.enter_context(start_volunteer(invitation, folder, name, environment=logs, **own))

        hosts = [start(f"host {number}", host_experts=True) for number in range(HOSTS)]
        trainers = [start(f"trainer {number}") for number in range(TRAINERS)]
        for peer in (*hosts, *trainers):
            peer.wait_for("joined", deadline=START_SECONDS)
        for host in hosts:
            host.wait_for("hosted", lambda event: event["kept"] == event["copies"] == each, START_SECONDS)
        coordinator.wait_for("hosted", lambda event: not (event["kept"] or event["copies"]), START_SECONDS)
        go.touch()
        coordinator.wait_for_step(CALM_STEPS, CALM_STEPS * STEP_SECONDS)
        died, before = time.monotonic(), step_of(coordinator.steps()[-1])
        hosts[-1].kill()
        coordinator.wait_for_step(before + 1 + LATER_STEPS, LATER_STEPS * STEP_SECONDS)
        waits = [_waited(read_microbatches(folder / f"{peer.name}.microbatches"), died) for peer in trainers]
        return _death(coordinator.steps(), [*hosts, *trainers], waits, died, run.global_batch)


def _waited(microbatches: list[Microbatch], died: float) -> tuple[float, float]:
    """How much longer microbatches took than usual after the death, in all, and what is usual."""
    took = [each.end - each.begin for each in microbatches if each.end < died]
    usual = statistics.median(took)
    return sum(max(0.0, each.end - each.begin - usual) for each in microbatches if each.end >= died), usual


def _death(
    steps: list[Event], peers: list[Peer], waits: list[tuple[float, float]], died: float, global_batch: int
) -> Death:
    losses = [event["step"]["loss"] for event in steps]
    losses += [event["loss"] for peer in peers for event in peer.events if event["event"] == "progress"]
    ends = [event["at"] for event in steps]
    calm = [after - before for before, after in pairwise(ends) if after < died]
    late = [after - before for before, after in pairwise(ends) if after >= died]
    return Death(
        nan=sum(loss is None or not math.isfinite(loss) for loss in losses),
        failed_steps=sum(event["step"]["samples"] < global_batch for event in steps),
        wait_seconds=max(waited for waited, _ in waits),
        usual_seconds=statistics.median(usual for _, usual in waits),
        longest_step=max(late),
        usual_step=statistics.median(calm),
    )
