"""What a window of some global steps shows: how much the devices worked, waited, and what it cost."""

import json
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any, Self

from benchmarks.lib.network import Line, Loopback, Network, open_network
from benchmarks.lib.peers import Event, Peer, start_coordinator, start_volunteer, step_of
from dedloc_kit.config.run import RunConfig
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.swarm.pipeline.moving import STATE_BYTES

SYSTEMS = ("alone", "ours", "hivemind")
WARM_UP_STEPS = 2
SAMPLES_PER_MICROBATCH = 8
START_SECONDS = 180.0
"""By then a peer has joined, or it never will."""
_NAP_SECONDS = 0.1


@dataclass(frozen=True)
class Setting:
    """One piece of work for any of the three systems."""

    run: RunConfig
    microbatch: int
    step_seconds: float
    """How long a global step takes if no device ever waits."""
    steps: int
    """Global steps that are measured, after those that warm up."""
    warm_up: int
    slowness: Sequence[float]
    """For each peer, how many times as long its simulated device takes."""
    line: Line | None
    """The hosts' lines; none: loopback."""
    cores: int = 0
    """Each peer is pinned to one of so many cores; 0: none is."""
    reachable: int | None = None
    """So many of ours, the first ones, can be reached by others; none: a test finds out of each."""
    helpers: int = 0
    """Beside ours, so many who lend a line like the others'."""

    @property
    def states_seconds(self) -> float:
        """That one line needs to hand every volunteer the state with which it begins."""
        parameters = self.run.task.options.get("parameters", 0)
        rate = self.line.up_mbit * 1e6 / 8 if self.line else 0.0
        return len(self.slowness) * STATE_BYTES * parameters / rate if rate else 0.0


@dataclass(frozen=True)
class Measured:
    """What a window showed; where nothing else is said, the mean over its steps and the volunteers."""

    samples_per_second: float
    """Of all volunteers together."""
    step_samples_per_second: tuple[float, ...]
    """The same in each global step."""
    device_wait_per_step: float
    """Seconds in a global step in which a volunteer's device had nothing to do."""
    usual_wait: float
    """The median of the waits between two microbatches, in seconds."""
    longest_wait: float
    bytes_per_step: float | None
    """Sent by a volunteer; None if the network cannot tell."""
    busiest_line_bytes: float | None
    """Sent in a step over the line with most of that, whosever it is; None likewise."""
    cpu_seconds_per_step: float
    """Of all of a volunteer's processes, the simulated device's idling not included."""
    step_seconds: float
    counted: float | None
    """Samples that went into the window's global steps over those computed in it; None where that is not told."""
    machine_stalls: float
    """Seconds in which this process, which only waits, could not run: much of it, and the numbers are worth little."""
    batches_per_step: float
    """Samples computed over the global batch; more than 1 if the swarm notices late, or if a round takes longer."""
    overfull: tuple[float, ...]
    """Samples that went into each global step over the global batch; empty where that is not told."""


@dataclass(frozen=True)
class _Snapshot:
    sent: list[int | None]
    """Of the coordinator's host, the volunteers' and the helpers'."""
    cpu: list[float]


class Stalls:
    """Notices when the machine is too busy to wake a sleeper, or stands still for want of memory."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._over.wait(_NAP_SECONDS):
            now = time.monotonic()
            late = now - before - _NAP_SECONDS
            self.seconds += late if late > _NAP_SECONDS else 0.0
            before = now


def measure(system: str, setting: Setting, folder: Path) -> Measured:
    """Run `ours`, `hivemind` or `alone` on a network of its own; raises UserError if it does not get there."""
    peers = len(setting.slowness)
    start = folder / "start"
    with ExitStack() as stack:
        network = open_network(setting.line, 1 + peers + setting.helpers)
        stack.enter_context(network)
        volunteers = start_peers(system, setting, network, folder, stack)[:peers]
        for volunteer in volunteers:
            volunteer.wait_for("joined", deadline=START_SECONDS + setting.states_seconds)
        start.touch()
        patience = START_SECONDS + 10 * setting.step_seconds
        first = volunteers[0].wait_for_step(setting.warm_up, patience)
        stalls = stack.enter_context(Stalls())
        before = _snapshot(network, volunteers, setting.helpers)
        last = volunteers[0].wait_for_step(step_of(first) + setting.steps, patience + setting.steps * patience)
        after = _snapshot(network, volunteers, setting.helpers)
        steps = [e for e in volunteers[0].steps() if step_of(first) <= step_of(e) <= step_of(last)]
    logs = [read_microbatches(folder / f"{volunteer.name}.jsonl") for volunteer in volunteers]
    return _summary(setting, steps, logs, before, after, stalls.seconds)


def strike_file(folder: Path, peer: int) -> Path:
    """Where a volunteer reads at which stage of a round it dies."""
    return folder / f"peer{peer}.strike"


def start_peers(
    system: str, setting: Setting, network: Network | Loopback, folder: Path, stack: ExitStack
) -> list[Peer]:
    """Start the system's coordinator, if it has one, on host 0, and the volunteers on the hosts after it, then helpers;
    all but the coordinator are given back, in this order."""
    peers = len(setting.slowness)
    environments = [
        {
            "BENCH_LOG": str(folder / f"peer{k}.jsonl"),
            "BENCH_START": str(folder / "start"),
            "BENCH_SLOWNESS": str(setting.slowness[k]),
            "BENCH_STRIKE": str(strike_file(folder, k)),
        }
        for k in range(peers)
    ]
    prefixes = [network.run_in(0)]
    for k in range(peers):
        pin = ["taskset", "-c", str(k % setting.cores)] if setting.cores else []
        prefixes.append([*network.run_in(1 + k), *pin])
    addresses: tuple[str, ...] = ()
    if system == "ours":
        host = network.address(0)
        coordinator = stack.enter_context(start_coordinator(setting.run, folder, prefix=prefixes[0], host=host))
        addresses = tuple(coordinator.wait_for("joined", deadline=START_SECONDS)["addresses"])
        invitation = Invitation.of(setting.run, addresses)
        helpers = []
        for k in range(setting.helpers):
            where, host = network.run_in(1 + peers + k), network.address(1 + peers + k)
            lending: dict[str, Any] = {"lends": True, "client_mode": False}
            helper = start_volunteer(invitation, folder, f"helper{k}", prefix=where, host=host, **lending)
            helpers.append(stack.enter_context(helper))
            helper.wait_for("joined", deadline=START_SECONDS)
        volunteers = [
            stack.enter_context(
                start_volunteer(
                    invitation,
                    folder,
                    f"peer{k}",
                    prefix=prefixes[1 + k],
                    host=network.address(1 + k),
                    environment=environments[k],
                    microbatch=setting.microbatch,
                    client_mode=None if setting.reachable is None else k >= setting.reachable,
                )
            )
            for k in range(peers)
        ]
        return [*volunteers, *helpers]
    if system == "hivemind":
        job = {"role": "welcome", "host": network.address(0), "peers": []}
        node = Peer("benchmarks.lib.baseline", job, name="welcome", folder=folder, prefix=prefixes[0])
        addresses = tuple(stack.enter_context(node).wait_for("joined", deadline=START_SECONDS)["addresses"])
    return [
        stack.enter_context(
            Peer(
                "benchmarks.lib.baseline",
                {
                    "role": system,
                    "run": setting.run.model_dump(mode="json"),
                    "microbatch": setting.microbatch,
                    "step_seconds": setting.step_seconds,
                    "host": network.address(1 + k),
                    "peers": addresses,
                },
                name=f"peer{k}",
                folder=folder,
                prefix=prefixes[1 + k],
                environment=environments[k],
            )
        )
        for k in range(peers)
    ]


def _snapshot(network: Network | Loopback, volunteers: Sequence[Peer], helpers: int) -> _Snapshot:
    hosts = range(1 + len(volunteers) + helpers)
    return _Snapshot([network.bytes_sent(host) for host in hosts], [peer.cpu_seconds() for peer in volunteers])


@dataclass(frozen=True)
class Microbatch:
    begin: float
    end: float
    samples: int


def read_microbatches(log: Path) -> list[Microbatch]:
    return [Microbatch(**json.loads(line)) for line in log.read_text().splitlines() if line.endswith("}")]


def overlap(microbatch: Microbatch, begin: float, end: float) -> float:
    return max(0.0, min(microbatch.end, end) - max(microbatch.begin, begin))


def samples_within(logs: Sequence[Sequence[Microbatch]], begin: float, end: float) -> float:
    """Samples computed in a span of time; of a microbatch across its edge, the part that lies inside."""
    return sum(m.samples * overlap(m, begin, end) / (m.end - m.begin) for log in logs for m in log)


def _summary(
    setting: Setting,
    events: Sequence[Event],
    logs: Sequence[Sequence[Microbatch]],
    before: _Snapshot,
    after: _Snapshot,
    stalls: float,
) -> Measured:
    begin, end = events[0]["at"], events[-1]["at"]
    seconds, count = end - begin, step_of(events[-1]) - step_of(events[0])
    busy = mean(sum(overlap(m, begin, end) for m in log) for log in logs)
    sent = [a - b for a, b in zip(after.sent, before.sent, strict=True) if a is not None and b is not None]
    samples = samples_within(logs, begin, end)
    times = sorted({event["at"] for event in events})
    counted = [event["step"]["samples"] for event in events[1:] if isinstance(event["step"], dict)]
    waits = [b.begin - a.end for log in logs for a, b in pairwise(log) if begin <= a.end and b.begin <= end]
    return Measured(
        samples_per_second=samples / seconds,
        step_samples_per_second=tuple(samples_within(logs, a, b) / (b - a) for a, b in pairwise(times)),
        device_wait_per_step=(seconds - busy) / count,
        usual_wait=median(waits),
        longest_wait=max(waits),
        bytes_per_step=mean(sent[1 : 1 + len(logs)]) / count if sent else None,
        busiest_line_bytes=max(sent) / count if sent else None,
        cpu_seconds_per_step=mean(a - b for a, b in zip(after.cpu, before.cpu, strict=True)) / count,
        step_seconds=seconds / count,
        counted=sum(counted) / samples if counted else None,
        machine_stalls=stalls,
        batches_per_step=samples / count / setting.run.global_batch,
        overfull=tuple(samples / setting.run.global_batch for samples in counted),
    )
