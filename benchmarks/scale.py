"""What do the directory and the rounds cost with many peers?

Light volunteers (a tiny model, a simulated device that leaves the CPU idle) and a coordinator on one machine, for
each number of peers anew.
"""

import argparse
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.lib.forked import (
    COORDINATOR,
    Snapshot,
    Swarm,
    count_calls,
    free_memory,
    has_own_loopback,
    memory_of,
    own_loopback,
    snapshot,
)
from benchmarks.lib.peers import Event, step_of
from benchmarks.lib.task import simulated_run
from dedloc_kit.config.machine import CoordinatorConfig, JoinOptions
from dedloc_kit.config.run import RunConfig
from dedloc_kit.coordinator.coordinator import coordinator
from dedloc_kit.errors import UserError
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.roles.volunteer import volunteer

JOINING_AT_ONCE = 4
FIRST_PORT = 20_000
"""Below the ports that the kernel gives to outgoing connections; the next number of peers takes the next ports."""


@dataclass(frozen=True)
class Row:
    """What one swarm showed; rates and medians are over the measured steps. The coordinator counts as a member of a
    group, and not as a peer elsewhere unless said."""

    peers: int
    joined: int
    steps: int
    join_seconds: float
    """From the first volunteer's start until all had joined."""
    group_sizes: list[int]
    """Members of each measured all-reduce."""
    group_share: float
    """The median group over all who had joined, the coordinator included."""
    step_seconds: float
    round_seconds: float
    """From the full batch to the averaged gradient."""
    overfull: float
    """Samples that went into a step over the global batch."""
    peer_cpu: float
    """CPU seconds per second of a volunteer's processes, its training included."""
    coordinator_cpu: float
    cores: float
    """CPU seconds per second of them all: near the machine's number of cores, the machine is what is measured."""
    finds: float
    """Look-ups that a peer's part of the directory answers in a second; the coordinator is one of the peers."""
    stores: float
    dht_bytes: float
    """Their requests and answers in a second and peer, before libp2p wraps them."""
    wire_bytes: float | None
    """All that passed the loopback in a second, headers and acknowledgements included, over the peers."""
    wire_packets: float | None
    memory: float
    """Bytes of a volunteer's processes (proportional set size: what they share counts once for all)."""
    troubles: dict[str, int] = field(default_factory=dict)
    """Warnings and failures, and how often they came."""


COLUMNS: dict[str, tuple[str, Callable[[Row], float | None]]] = {
    "group size": ("", lambda row: median(row.group_sizes) if row.group_sizes else None),
    "group share": ("", lambda row: row.group_share if row.steps else None),
    "step": (" s", lambda row: row.step_seconds if row.steps else None),
    "round": (" s", lambda row: row.round_seconds if row.steps else None),
    "overfull": ("", lambda row: row.overfull if row.steps else None),
    "CPU/peer": (" s/s", lambda row: row.peer_cpu),
    "CPU/coord": (" s/s", lambda row: row.coordinator_cpu),
    "CPU/all": (" s/s", lambda row: row.cores),
    "DHT finds": (" /s", lambda row: row.finds),
    "DHT stores": (" /s", lambda row: row.stores),
    "DHT bytes": (" kB/s", lambda row: row.dht_bytes / 1e3),
    "wire": (" kB/s", lambda row: None if row.wire_bytes is None else row.wire_bytes / 1e3),
    "joining": (" s/peer", lambda row: row.join_seconds / row.joined if row.joined else None),
    "memory": (" MB", lambda row: row.memory / 1e6),
}


def measure(peers: int, options: argparse.Namespace, port: int, folder: Path) -> Row:
    """One swarm, from its coordinator's start to its end; raises UserError if the coordinator does not start."""
    batch = round(peers * options.step_seconds / options.microbatch_seconds)
    run = simulated_run(f"scale-{peers}", int(options.parameters), options.microbatch_seconds, batch)
    with Swarm(folder) as swarm:
        swarm.forget_calls()
        config = CoordinatorConfig(**_settings(folder, COORDINATOR, port), evaluate_every=1_000_000)
        swarm.fork(COORDINATOR, lambda emit, stop: coordinator(run, config, emit, stop))
        started = swarm.wait_for("joined", 1, time.monotonic() + 120.0, COORDINATOR)
        if not started:
            raise UserError(f"the coordinator did not start; its log is {folder}/peer{COORDINATOR}.log")
        begin = time.monotonic()
        joined = _join(swarm, run, tuple(started[0]["addresses"]), peers, port, options)
        join_seconds = time.monotonic() - begin
        if not joined:
            raise UserError(f"no volunteer joined; the logs are in {folder}")
        (folder / "start").touch()
        patience = 60.0 + 3.0 * options.step_seconds
        first = swarm.wait_for("step", 1, time.monotonic() + 2 * patience, COORDINATOR)
        before = snapshot(swarm)
        deadline = time.monotonic() + patience * options.steps
        steps = swarm.wait_for("step", 1 + options.steps, deadline, COORDINATOR) if first else []
        after = snapshot(swarm)
        return _row(run, peers, joined, join_seconds, [*first, *steps[1:]], before, after, swarm)


def _join(swarm: Swarm, run: RunConfig, addresses: tuple[str, ...], peers: int, port: int, options: Any) -> int:
    """Let the volunteers come, a few at a time; returns how many have joined."""
    invitation = Invitation.of(run, addresses)
    os.environ["BENCH_START"] = str(swarm.folder / "start")  # read by the volunteers' data; nobody trains before
    begin = time.monotonic()
    deadline = begin + 60.0 + options.seconds_per_join * peers
    for slot in range(1, 1 + peers):
        if free_memory() < options.spare_memory:
            print(f"      no more than {slot - 1} volunteers were started: the machine's memory is running out")
            break
        config = JoinOptions(**_settings(swarm.folder, slot, port, client_mode=options.clients), microbatch=1)
        swarm.fork(slot, lambda emit, stop, config=config: volunteer(invitation, config, emit, stop))  # type: ignore[misc]
        # One that does not get on must not hold up the others for ever.
        soon = min(deadline, time.monotonic() + 4 * options.seconds_per_join)
        swarm.wait_for("joined", 1 + slot - JOINING_AT_ONCE, soon)
    joined = len(swarm.wait_for("joined", len(swarm.pids), deadline)) - 1
    del os.environ["BENCH_START"]
    return joined


def _settings(folder: Path, slot: int, port: int, client_mode: bool = False) -> dict[str, Any]:
    name = f"peer{slot}" if slot else "coordinator"
    return {
        "folder": folder / name,
        "name": name,
        "swarm_host": "127.0.0.1",
        # Ports that many peers look for at the same moment may be given twice; here they are ours alone.
        "swarm_port": port + slot if has_own_loopback() and not client_mode else 0,
        "devices": "cpu",
        "threads": 1,
        "task_module": "benchmarks.lib.task",
        "client_mode": client_mode,  # so many on one host may not all ask whether they can be reached
    }


def _row(
    run: RunConfig,
    peers: int,
    joined: int,
    join_seconds: float,
    events: Sequence[Event],
    before: Snapshot,
    after: Snapshot,
    swarm: Swarm,
) -> Row:
    steps, seconds = [event["step"] for event in events[1:]], after.at - before.at
    gaps = [(b["at"] - a["at"]) / (step_of(b) - step_of(a)) for a, b in pairwise(events)]
    cpu = {slot: (after.cpu[slot] - before.cpu[slot]) / seconds for slot in after.cpu}
    sizes = [step["peers"] for step in steps]
    wire = None
    if before.wire is not None and after.wire is not None:
        wire = [(b - a) / seconds / (len(cpu) - 1) for a, b in zip(before.wire, after.wire, strict=True)]
    return Row(
        peers=peers,
        joined=joined,
        steps=len(steps),
        join_seconds=join_seconds,
        group_sizes=sizes,
        group_share=median(sizes) / (1 + joined) if sizes else 0.0,
        step_seconds=median(gaps) if gaps else 0.0,
        round_seconds=median(step["seconds"] for step in steps) if steps else 0.0,
        overfull=median(step["samples"] for step in steps) / run.global_batch if steps else 0.0,
        peer_cpu=mean(cpu[slot] for slot in cpu if slot != COORDINATOR),
        coordinator_cpu=cpu[COORDINATOR],
        cores=sum(cpu.values()),
        finds=(after.finds - before.finds) / seconds / len(cpu),
        stores=(after.stores - before.stores) / seconds / len(cpu),
        dht_bytes=(after.size - before.size) / seconds / len(cpu),
        wire_bytes=wire[0] if wire else None,
        wire_packets=wire[1] if wire else None,
        memory=memory_of(swarm),
        troubles=swarm.troubles(),
    )


def _report(row: Row, steps: int) -> None:
    values = [_text(value(row), unit) for unit, value in COLUMNS.values()]
    print("".join(f"{text:>14}" for text in [str(row.peers), *values]), flush=True)
    if row.joined < row.peers:
        print(f"      only {row.joined} of {row.peers} volunteers joined in {row.join_seconds:.0f} s")
    if row.steps < steps:
        print(f"      only {row.steps} of {steps} global steps were done in the time that there was")
    for text, count in row.troubles.items():
        print(f"      {count} x {text}")


def _text(value: float | None, unit: str) -> str:
    return "n/a" if value is None else f"{value:.3g}{unit}" if value < 1000 else f"{value:.0f}{unit}"


def _growth(rows: Sequence[Row]) -> None:
    """For each column a line: what it becomes from one row to the next."""
    print("\nGrowth from row to row, peers " + ", ".join(f"{a.peers} -> {b.peers}" for a, b in pairwise(rows)))
    for name, (unit, value) in COLUMNS.items():
        pairs = [(value(a), value(b)) for a, b in pairwise(rows)]
        ratios = [f"x{b / a:.2f}" if a and b is not None else "n/a" for a, b in pairs]
        print(f"  {name:12}{', '.join(ratios):30}{' -> '.join(_text(value(row), unit) for row in rows)}")


def main() -> int:
    options = _parse()
    own_loopback()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    count_calls()
    gc.freeze()  # a collection would write to what the peers share, and so copy it
    folder = Path(tempfile.mkdtemp(prefix="dedloc-scale-"))
    rows: list[Row] = []
    print("".join(f"{name:>14}" for name in ["peers", *COLUMNS]))
    for number, peers in enumerate(options.peers):
        try:
            row = measure(peers, options, FIRST_PORT + 1000 * number, folder / str(number))
        except UserError as error:
            print(f"{peers:>13} {error}", flush=True)
            continue
        rows.append(row)
        _report(row, options.steps)
        if options.json:
            options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    if len(rows) > 1:
        _growth(rows)
    whole = len(rows) == len(options.peers) and all(row.joined == row.peers and not row.troubles for row in rows)
    print(f"\nThe peers' logs and events are in {folder}") if not whole else shutil.rmtree(folder)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--peers", type=int, nargs="+", default=[8, 16, 32, 64], help="volunteers of each swarm")
    add("--steps", type=int, default=5, help="global steps to measure, after one to warm up")
    add("--step-seconds", type=float, default=15.0, help="work in a global step, if no device waits")
    add("--microbatch-seconds", type=float, default=0.5, help="of the simulated device; one sample")
    add("--parameters", type=float, default=1e4, help="of the simulated model")
    add("--clients", action="store_true", help="volunteers only make outgoing connections, as behind a firewall")
    add("--seconds-per-join", type=float, default=6.0, help="patience for each volunteer that joins")
    add("--spare-memory", type=float, default=2e9, help="bytes to leave free; with less no more volunteers start")
    add("--json", type=Path, help="a file for the results")
    options = parser.parse_args()
    if min(*options.peers, options.steps, 1000 - max(options.peers)) < 1:
        parser.error("--peers must be 1 to 999, --steps 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
