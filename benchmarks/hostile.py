"""What do strangers cost a run? Its speed and its memory under attack, beside the same run left alone.

A coordinator with its live page and volunteers with a simulated device are pinned to one core, attackers to another.
Each attack meets a run of its own, which is first left alone for a while; one more is left alone all the time. The
attackers know the public invitation, as all the world does.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Self
from urllib.request import urlopen

from benchmarks.lib.attackers import ATTACKS
from benchmarks.lib.peers import Peer, end_on_signal, start_volunteer, step_of
from dedloc_kit.access.admission import invite
from dedloc_kit.errors import UserError
from dedloc_kit.machine.account import CODE
from dedloc_kit.records.invitation import INVITATION_FILE, Invitation

ALONE = "alone"
RUN_CORE, OTHERS_CORE = 0, 1
VOLUNTEERS = 2
WARM_UP_STEPS = 3
START_SECONDS, END_SECONDS = 180.0, 60.0
SETTLING_SECONDS = 2.0
"""Until all that an attack opens is open."""
LOOK_SECONDS = 1.0
ENTRANCE_SECONDS = 5.0
"""A newcomer who gets no answer for so long gives up."""
RUN = """
name = "hostile"
access = "{access}"
global_batch = 20
[task]
name = "simulated"
parameters = 10_000
seconds = 0.1
[data]
train = [{{ dataset = "none/none" }}]
[optimizer]
learning_rate = 1e-3
warmup_steps = 0
total_steps = 1_000_000
"""


@dataclass(frozen=True)
class Window:
    """What a run did in some seconds."""

    steps_per_second: float
    memory: dict[str, int]
    """Of each peer the most bytes that all its processes had (proportional set size: what they share counts once)."""
    entrance: float
    """The share of newcomers who were given the invitation in time."""

    @property
    def peak_memory(self) -> int:
        """Of the peer with most."""
        return max(self.memory.values())


@dataclass(frozen=True)
class Outcome:
    """One run: left alone for a while, then attacked, or still left alone."""

    before: Window
    after: Window
    acts: dict[str, int]
    """What the attacker did, and what came of it."""
    ended: list[str]
    """Peers that did not live to the end."""


class Run:
    """A coordinator as an organizer launches it and volunteers, all on one core; a context manager."""

    def __init__(self, access: str, folder: Path) -> None:
        self._access, self._folder = access, folder
        self._stack = ExitStack()
        self.peers: dict[str, Peer] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.peers["coordinator"] = stack.enter_context(_launched(self._access, self._folder))
            self.invitation = self._invitation()
            self._volunteers = [stack.enter_context(self._volunteer(f"volunteer{n}")) for n in range(VOLUNTEERS)]
            self.peers |= {peer.name: peer for peer in self._volunteers}
            for peer in self._volunteers:
                peer.wait_for("joined", deadline=START_SECONDS)
            self._volunteers[0].wait_for_step(WARM_UP_STEPS, START_SECONDS)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _invitation(self) -> Invitation:
        file, until = self._folder / "coordinator" / INVITATION_FILE, time.monotonic() + START_SECONDS
        while not file.exists():
            if time.monotonic() > until or not self.peers["coordinator"].running:
                raise UserError(f"the coordinator did not start; its log is {self.peers['coordinator'].log}")
            time.sleep(0.1)
        return Invitation.parse(file.read_text())

    def _volunteer(self, name: str) -> Peer:
        folder = self._folder / "coordinator"
        return start_volunteer(
            self.invitation,
            self._folder,
            name,
            prefix=_pinned(RUN_CORE),
            environment={CODE: invite(folder, name, days=1)} if self._access == "invite" else {},
            microbatch=1,
            client_mode=False,
        )

    def watch(self, seconds: float) -> Window:
        begin = time.monotonic()
        memory, answered = dict.fromkeys(self.peers, 0), list[bool]()
        asking = threading.Thread(target=self._knock, args=(begin + seconds, answered))
        asking.start()
        while time.monotonic() < begin + seconds:
            for name, peer in self.peers.items():
                memory[name] = max(memory[name], _memory(peer.pid))
            time.sleep(LOOK_SECONDS)
        asking.join()
        steps = self._steps(begin + seconds) - self._steps(begin)
        return Window(steps / seconds, memory, mean(answered))

    def _steps(self, until: float) -> float:
        """Global steps that were done by then, with the part of the one that was under way."""
        done: dict[int, float] = {}
        for peer in self._volunteers:
            for event in peer.steps():
                done[step_of(event)] = min(event["at"], done.get(step_of(event), event["at"]))
        times = sorted(done.values())
        past, to_come = [at for at in times if at <= until], [at for at in times if at > until]
        length = to_come[0] - past[-1] if to_come else median(b - a for a, b in pairwise(times))
        return len(past) + min(1.0, (until - past[-1]) / length)

    def _knock(self, until: float, answered: list[bool]) -> None:
        """Come as newcomers do, from a host that attacks nobody."""
        while time.monotonic() < until:
            began = time.monotonic()
            try:
                with urlopen(f"{self.invitation.url}/api/invitation", timeout=ENTRANCE_SECONDS) as answer:
                    answered.append(bool(answer.read()))
            except (OSError, HTTPException):
                answered.append(False)
            time.sleep(max(0.0, began + LOOK_SECONDS - time.monotonic()))


@contextmanager
def _launched(access: str, folder: Path) -> Iterator[Peer]:
    """`dedloc launch`, and after it nothing of it is left."""
    folder.mkdir()
    (folder / "run.toml").write_text(RUN.format(access=access))
    (folder / "coordinator.toml").write_text("checkpoint_every = 1000\n")
    module = f"dedloc_kit.cli launch {folder}/run.toml --folder {folder}/coordinator --task-module benchmarks.lib.task"
    module += " --swarm-host 127.0.0.1 --host 127.0.0.1 --port 0 --devices cpu --threads 1"
    with Peer(module, {}, name="launch", folder=folder, prefix=_pinned(RUN_CORE)) as peer:
        try:
            yield peer
        finally:
            with suppress(ProcessLookupError):  # the attack may have ended it
                os.kill(peer.pid, signal.SIGTERM)
            try:
                peer.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                for pid in _family(peer.pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


@contextmanager
def _attacking(attack: str, run: Run, seconds: float, folder: Path) -> Iterator[Peer]:
    """A stranger's machine at its work."""
    job = {
        "attack": attack,
        "invitation": run.invitation.model_dump(mode="json"),
        "folder": str(folder / "attacker"),
        "seconds": 2 * seconds + START_SECONDS,
    }
    with Peer("benchmarks.lib.attackers", job, name="attacker", folder=folder, prefix=_pinned(OTHERS_CORE)) as attacker:
        attacker.wait_for("attacking", deadline=START_SECONDS)
        time.sleep(SETTLING_SECONDS)
        yield attacker


def measure(attack: str, access: str, seconds: float, folder: Path) -> Outcome:
    """Raises UserError if the run does not start."""
    with Run(access, folder) as run:
        before = run.watch(seconds)
        acts: dict[str, int] = {}
        if attack == ALONE:
            after = run.watch(seconds)
        else:
            with _attacking(attack, run, seconds, folder) as attacker:
                after = run.watch(seconds)
                attacker.leave()
                acts = attacker.wait_for("ended", deadline=END_SECONDS)["acts"]
        return Outcome(before, after, acts, [name for name, peer in run.peers.items() if not peer.running])


def _pinned(core: int) -> list[str]:
    return ["taskset", "-c", str(core)]


def _family(pid: int) -> list[int]:
    """A process and all that come from it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has just ended
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    family = [pid]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family


def _memory(pid: int) -> int:
    """Bytes of a process and all that come from it."""
    total = 0
    for member in _family(pid):
        with suppress(OSError):  # it has just ended
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
            total += 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def _report(name: str, outcome: Outcome, undisturbed: Sequence[float]) -> None:
    """A line: speed and memory over what they were before; in brackets the speed over all undisturbed ones so far."""
    before, after = outcome.before, outcome.after
    rate = after.steps_per_second
    ratio = f"{rate / before.steps_per_second:.2f} ({rate / max(undisturbed):.2f}..{rate / min(undisturbed):.2f})"
    grown = ", ".join(f"{peak / before.memory[peer]:.2f}" for peer, peak in after.memory.items())
    memory = f"{after.peak_memory / 1e6:.0f} MB"
    print(f"{name:20}{rate:8.2f}{ratio:>22}{memory:>13}   {grown:20}{after.entrance:>10.0%}", flush=True)
    for peer in outcome.ended:
        print(f"    {peer} has ended")


def _summary(access: str, outcomes: dict[str, Outcome], undisturbed: Sequence[float]) -> dict[str, object]:
    """As written to the file: whatever is left alone, and each attack."""

    def entry(rate: float, outcome: Outcome) -> dict[str, object]:
        return {"steps_per_second": rate, "peak_memory": outcome.after.peak_memory, **asdict(outcome)}

    attacks = {name: outcome for name, outcome in outcomes.items() if name != ALONE}
    return {
        "access": access,
        "undisturbed": undisturbed,
        "alone": entry(mean(undisturbed), outcomes[ALONE]),
        "attacks": {name: entry(outcome.after.steps_per_second, outcome) for name, outcome in attacks.items()},
    }


def main() -> int:
    options = _parse()
    end_on_signal()
    os.sched_setaffinity(0, {OTHERS_CORE})  # what measures is no part of the run
    folder = Path(tempfile.mkdtemp(prefix="dedloc-hostile-"))
    print(f"access = {options.access}, {VOLUNTEERS} volunteers; memory of coordinator and volunteers over that before")
    print(f"{'':20}{'steps/s':>8}{'over undisturbed':>22}{'most memory':>13}   {'over before':20}{'entrance':>10}")
    outcomes: dict[str, Outcome] = {}
    undisturbed: list[float] = []
    for attack in (ALONE, *options.attacks):
        try:
            outcome = outcomes[attack] = measure(attack, options.access, options.seconds, folder / attack)
        except UserError as error:
            if attack == ALONE:
                raise
            print(f"{attack:20}{error}", flush=True)
            continue
        left_alone = (outcome.before, outcome.after) if attack == ALONE else (outcome.before,)
        undisturbed += [window.steps_per_second for window in left_alone]
        _report(attack, outcome, undisturbed)
        if options.json is not None:
            options.json.write_text(json.dumps(_summary(options.access, outcomes, undisturbed), indent=2) + "\n")
    if len(outcomes) <= len(options.attacks):
        return 1  # the logs tell why
    shutil.rmtree(folder)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS), metavar="ATTACK", help=", ".join(ATTACKS))
    add("--access", choices=("invite", "open"), default="invite", help="who may join: strangers may not, or they may")
    add("--seconds", type=float, default=15.0, help="that a run is left alone, and is attacked")
    add("--json", type=Path, metavar="FILE", help="a file for the results")
    options = parser.parse_args()
    if not {RUN_CORE, OTHERS_CORE} <= os.sched_getaffinity(0):
        parser.error("it takes two cores, one for the run and one for the attackers")
    return options


if __name__ == "__main__":
    sys.exit(main())
