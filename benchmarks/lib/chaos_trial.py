"""One swarm under random faults: the program that chaos.py runs by its path, with any version of the kit.

Arguments: a folder, the seed, seconds of faults, the number of volunteers. The result goes to `result.json` there.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.lib.measure import SAMPLES_PER_MICROBATCH, START_SECONDS, read_microbatches
from benchmarks.lib.peers import Event, Peer, end_on_signal, start_coordinator, start_volunteer, step_of
from benchmarks.lib.task import simulated_run
from dedloc_kit.errors import UserError
from dedloc_kit.ledger import Ledger
from dedloc_kit.records.invitation import Invitation

PARAMETERS = 1_000_000
MICROBATCH_SECONDS = 0.25
STEP_SECONDS = 1.0
"""Work in a global step, if all volunteers are there."""
COORDINATOR = 0
"""The slot of the coordinator; the volunteers have 1, 2 ..."""
GAP_SECONDS = (4.0, 16.0)
"""Between two faults."""
LONGEST_FREEZE = 25.0
LONGEST_ABSENCE = 10.0
REJOIN_SECONDS = 10.0
"""A peer that returned has this long before the next fault strikes it."""
CALM_SECONDS = 20.0
"""At the end, without a new fault."""
RESTART_SECONDS = 3.0
"""After which a peer that gave up is started again, as its session would."""
SETTLE_SECONDS = 180.0
LEAVE_SECONDS = 60.0
END_SECONDS = 10.0
"""In which what a killed peer started has ended."""
POLL_SECONDS = 0.1
LOGGED_LINES = 30
"""Of each peer, of the longest time without a step."""
_MARK = "BENCH_CHAOS"
_FREEZE = """
import contextlib, os, select, signal, sys
with contextlib.suppress(ProcessLookupError):
    os.killpg(int(sys.argv[1]), signal.SIGSTOP)
    select.select([sys.stdin], [], [], float(sys.argv[2]))
    os.killpg(int(sys.argv[1]), signal.SIGCONT)
"""


@dataclass(frozen=True)
class Fault:
    """What befalls one peer."""

    at: float
    """Seconds after all have joined."""
    kind: str
    """`kill`, `freeze` or `leave`."""
    slot: int
    seconds: float
    """Until it returns or goes on; after `leave`, until another one joins in its place."""

    def __str__(self) -> str:
        peer = "coordinator" if self.slot == COORDINATOR else f"volunteer {self.slot}"
        return f"{self.at:6.1f} s  {self.kind:7}{peer} for {self.seconds:.1f} s"


def plan(seed: int, seconds: float, volunteers: int) -> list[Fault]:
    """The faults of a run, by time. Two peers at least are always there; none is struck while it is away."""
    chance = random.Random(seed)
    busy = [0.0] * (1 + volunteers)
    faults, at = [], 0.0
    while (at := round(at + chance.uniform(*GAP_SECONDS), 1)) < seconds - CALM_SECONDS:
        free = [slot for slot, until in enumerate(busy) if until <= at]
        if len(free) <= 2:
            continue
        slot = chance.choice(free)
        kind = chance.choice(("kill", "freeze", "leave") if slot != COORDINATOR else ("kill", "kill", "freeze"))
        absent = round(chance.uniform(1.0, LONGEST_FREEZE if kind == "freeze" else LONGEST_ABSENCE), 1)
        faults.append(Fault(at, kind, slot, absent))
        busy[slot] = at + absent + REJOIN_SECONDS
    return faults


class Swarm:
    """The peers of one trial, slot by slot; the end of the context kills them."""

    def __init__(self, folder: Path, volunteers: int) -> None:
        batch = round(volunteers * SAMPLES_PER_MICROBATCH * STEP_SECONDS / MICROBATCH_SECONDS)
        self.run = simulated_run("chaos", PARAMETERS, MICROBATCH_SECONDS, batch)
        self.folder, self.volunteers = folder, range(1, 1 + volunteers)
        self.peers: list[Peer] = []
        """One for each start; a peer that returns has its name and its folder again."""
        self.here: dict[int, Peer] = {}
        self.gave_up: list[str] = []
        """Who ended by itself, and why."""
        self._due: list[tuple[float, Callable[[], object]]] = []
        self._stack = ExitStack()

    def __enter__(self) -> "Swarm":
        os.environ[_MARK] = str(self.folder)  # whatever a peer starts has it, in any session
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start_all(self) -> None:
        """Start everyone and wait until all train; raises UserError."""
        self._start(COORDINATOR, "coordinator")
        addresses = self.here[COORDINATOR].wait_for("joined", deadline=START_SECONDS)["addresses"]
        self._invitation = Invitation.of(self.run, tuple(addresses))
        for slot in self.volunteers:
            self._start(slot, f"volunteer{slot}.1")
        for slot in self.volunteers:
            self.here[slot].wait_for("step", deadline=START_SECONDS)

    def suffer(self, faults: Sequence[Fault], seconds: float) -> float:
        """Let these faults happen within so many seconds; returns when that began."""
        began = time.monotonic()
        self._due += [(began + fault.at, lambda fault=fault: self._strike(fault)) for fault in faults]  # type: ignore[misc]
        self._go_on(lambda: not self._due and time.monotonic() >= began + seconds, began + 2 * seconds)
        return began

    def settle(self) -> float | None:
        """Wait until everyone takes new steps; returns after how many seconds, None if that does not come."""
        began, target = time.monotonic(), max(map(newest_step, self.peers)) + 1

        def settled() -> bool:
            return len(self.here) > len(self.volunteers) and min(map(newest_step, self.here.values())) >= target

        return time.monotonic() - began if self._go_on(settled, began + SETTLE_SECONDS) else None

    def leave(self) -> None:
        """Let everyone leave, the coordinator last."""
        for last in (False, True):
            leavers = [peer for slot, peer in self.here.items() if (slot == COORDINATOR) == last]
            for peer in leavers:
                peer.leave()
            for peer in leavers:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    peer.wait(LEAVE_SECONDS)

    def _go_on(self, done: Callable[[], bool], until: float) -> bool:
        """Do what is due, and start again whoever gives up, until this is so."""
        while not done():
            if (now := time.monotonic()) > until:
                return False
            due = [act for at, act in self._due if at <= now]
            self._due = [(at, act) for at, act in self._due if at > now]
            for act in due:
                act()
            for slot, peer in list(self.here.items()):
                if not peer.running:
                    failures = [event["text"] for event in peer.events if event["event"] == "failed"]
                    self.gave_up.append(f"{peer.name}: {(failures or ['it ended'])[-1]}")
                    self._later(RESTART_SECONDS, slot, peer.name)
            time.sleep(POLL_SECONDS)
        return True

    def _strike(self, fault: Fault) -> None:
        peer = self.here.get(fault.slot)
        if peer is None:  # it gave up, and is about to be started again
            return
        if fault.kind == "freeze":
            freezer = freeze(peer.pid, fault.seconds)
            self._stack.callback(freezer.communicate)
        elif fault.kind == "kill":
            peer.kill()
            self._later(fault.seconds, fault.slot, peer.name)
        else:
            peer.leave()
            number = int(peer.name.partition(".")[2]) + 1
            self._later(fault.seconds, fault.slot, f"volunteer{fault.slot}.{number}")

    def _later(self, seconds: float, slot: int, name: str) -> None:
        """In this slot is nobody until then."""
        del self.here[slot]
        self._due.append((time.monotonic() + seconds, lambda: self._start(slot, name)))

    def _start(self, slot: int, name: str) -> None:
        if slot == COORDINATOR:
            peer = start_coordinator(self.run, self.folder, evaluate_every=1_000_000)
        else:
            environment = {"BENCH_LOG": str(self.folder / f"{name}.jsonl")}
            settings: dict[str, Any] = {"microbatch": SAMPLES_PER_MICROBATCH, "environment": environment}
            peer = start_volunteer(self._invitation, self.folder, name, **settings)
        self.peers.append(self._stack.enter_context(peer))
        self.here[slot] = peer


def freeze(group: int, seconds: float) -> "subprocess.Popen[bytes]":
    """Stop a process group; it goes on after so many seconds, and at once if this process ends."""
    command = [sys.executable, "-S", "-c", _FREEZE, str(group), str(seconds)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def newest_step(peer: Peer) -> int:
    """That this peer has taken."""
    return max(map(step_of, peer.steps()), default=0)


def audit(path: Path, given: Mapping[str, int]) -> dict[str, Any]:
    """What the coordinator's ledger says, and what is wrong with it.

    :param given: the samples that each peer has computed
    """
    with closing(Ledger(path, read_only=True)) as ledger:
        steps, people = ledger.steps(), ledger.contributors()
        wrong = [
            f"step {step.step} has {step.samples} samples, its contributions have {found}"
            for step in steps
            if (found := sum(ledger.contributions_of(step.step).values())) != step.samples
        ]
        total, counted = ledger.samples_total(), sum(person.samples for person in people)
    if total != counted:
        wrong.append(f"{total} samples in all, of the peers {counted}")
    missing = steps[-1].step - len(steps) if steps else 0
    if not missing and total != sum(step.samples for step in steps):
        wrong.append(f"{total} samples in all, of the steps {sum(step.samples for step in steps)}")
    for person in people:
        if person.samples > given.get(person.peer, 0):
            wrong.append(f"{person.name} computed {given.get(person.peer, 0)} samples, {person.samples} count")
    computed = sum(given.values())
    return {"steps": len(steps), "missing_steps": missing, "counted": total, "computed": computed, "wrong": wrong}


def remains(mark: str, seconds: float = END_SECONDS) -> list[str]:
    """The commands of all processes that have this mark, once those had their seconds that are about to end."""
    until = time.monotonic() + seconds
    while found := _marked(f"{_MARK}={mark}".encode()):
        if time.monotonic() > until:
            break
        time.sleep(POLL_SECONDS)
    return found


def _marked(variable: bytes) -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            if process.name.isdigit() and variable in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " ")[:200])
    return found


def timeline(events: Sequence[Event], faults: Sequence[Fault], began: float, over: float) -> dict[str, Any]:
    """The times between global steps, from the beginning of the faults on.

    :param events: of steps, as all peers told of them: a step counts when the first peer has taken it
    """
    first: dict[tuple[int, str], float] = {}
    for event in events:
        name = step_of(event), event["step"]["round"]
        first[name] = min(event["at"], first.get(name, event["at"]))
    times = sorted(at for at in first.values() if began < at <= over)
    longest, longest_from = max((b - a, a - began) for a, b in pairwise([began, *times, over]))
    rows = []
    for fault in faults:
        later = next((at for at in times if at > began + fault.at), None)
        rows.append({**asdict(fault), "next_step": None if later is None else later - began - fault.at})
    twice = sorted(step for step, rounds in Counter(step for step, _ in first).items() if rounds > 1)
    return {"steps": len(times), "longest": longest, "longest_from": longest_from, "twice": twice, "faults": rows}


def logged(folder: Path, begin: float, end: float) -> list[str]:
    """The first lines of each peer's log in this span of seconds since 1970."""
    first, last = (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) for at in (begin, end))
    found = []
    for log in sorted(folder.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()
        within = [f"{log.stem}: {line}" for line in lines if first <= line[: len(first)] <= last]
        found += within[:LOGGED_LINES]
    return found


def trial(folder: Path, seed: int, seconds: float, volunteers: int) -> dict[str, Any]:
    """What became of one swarm; raises UserError if it does not start."""
    faults = plan(seed, seconds, volunteers)
    print("\n".join(map(str, faults)), flush=True)
    with Swarm(folder, volunteers) as swarm:
        swarm.start_all()
        began, clock = swarm.suffer(faults, seconds), time.time() - time.monotonic()
        settled, over = swarm.settle(), time.monotonic()
        swarm.leave()
    names = {e["peer"]: peer.name for peer in swarm.peers for e in peer.events if e["event"] == "joined"}
    logs = {peer: folder / f"{name}.jsonl" for peer, name in names.items()}
    given = {peer: sum(m.samples for m in read_microbatches(log)) for peer, log in logs.items() if log.exists()}
    ledger, left = audit(folder / "coordinator" / "ledger.sqlite", given), remains(str(folder))
    result = timeline([event for peer in swarm.peers for event in peer.steps()], faults, began, over)
    stalled = clock + began + result["longest_from"]
    return {
        **result,
        "seed": seed,
        "since": time.strftime("%H:%M:%S", time.localtime(stalled)),
        "logged": logged(folder, stalled, stalled + result["longest"]),
        "settled": settled,
        "gave_up": swarm.gave_up,
        "ledger": ledger,
        "wrong": [
            *ledger["wrong"],
            *(f"a process is left: {command}" for command in left),
            *([] if settled is not None else [f"not all took a step {SETTLE_SECONDS:.0f} s after the last fault"]),
        ],
    }


if __name__ == "__main__":
    end_on_signal()
    place, seed, seconds, volunteers = sys.argv[1:]
    try:
        result = trial(Path(place), int(seed), float(seconds), int(volunteers))
    except UserError as error:
        sys.exit(str(error))
    (Path(place) / "result.json").write_text(json.dumps(result))
