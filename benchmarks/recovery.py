"""What does a peer that stalls, loses its line or dies in the middle of an all-reduce cost the others?

Ours and hivemind's own optimizer as its ALBERT example sets it up, each started once, with a simulated device. One
peer, always the same, is stopped for a while (`stall`), then cut off for a while (`line`), then killed (`kill`); a few
undisturbed steps before each say what is usual. A fault begins when the peer has sent a good part of what it sends in
a usual step. Where its bytes are not known (loopback without root) the moment is only predicted.

With `--stages` ours is started once more for each stage of a round, and the peer dies exactly there. `--peers 2` is two
volunteers and their coordinator, one of whom is left with it. With `--helper` the victim is one more peer, who lends a
line and trains nothing.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.lib.measure import (
    SAMPLES_PER_MICROBATCH,
    START_SECONDS,
    SYSTEMS,
    WARM_UP_STEPS,
    Setting,
    overlap,
    read_microbatches,
    samples_within,
    start_peers,
    strike_file,
)
from benchmarks.lib.network import Loopback, Network, open_network, read_network
from benchmarks.lib.peers import Event, Peer, step_of
from benchmarks.lib.stages import STAGES
from benchmarks.lib.task import simulated_run
from dedloc_kit.errors import UserError

FAULTS = ("stall", "line", "kill")
CALM_STEPS = 3
LATER_STEPS = 2
"""Global steps after the one that was hit which may still suffer."""
MIDDLE = 0.2
"""Share of a usual step's bytes after which the all-reduce is well under way."""
ROUND_BEGINS_SECONDS = 0.5
"""hivemind counts a step when its batch is full and averages then; where bytes are not known, strike so much later."""
HIVEMIND_SPOILT = ("Averaging gradients failed", "Averaging: received ")
"""What its log says when a round failed, and when parts of the average did not come and stay what they were."""
POLL_SECONDS = 0.01
_ROW = "{:10}{:13}{:>9}{:>10}{:>9}{:>9}{:>16}{:>8}{:>8}{:>8}{:>9}"


@dataclass(frozen=True)
class Calm:
    """A span of undisturbed global steps."""

    begin: float
    end: float
    step_seconds: float
    sent: float | None
    """Bytes of the victim in a global step."""


@dataclass(frozen=True)
class Incident:
    """What one fault did to the survivors. Times are seconds."""

    fault: str
    usual_step: float
    steps: tuple[float, ...]
    """Durations of the global step that was hit and of those after it; fewer if they did not come in time."""
    device_wait: float
    """Of each survivor's device, from the fault to the last of these steps."""
    spoilt: int
    """Rounds that failed or came back in part, as each survivor saw it, added up over them."""
    back: float | None
    """From the fault's end until the victim took part in a step; None if it did not (or was killed)."""
    share: float
    """What the victim's part of the batch takes the survivors, if it is missing."""
    computed: float
    """Samples of the survivors from the fault to the last of these steps."""
    lost: int | None = None
    """Samples of the survivors that were computed and neither counted nor are pending; None where that is not told."""

    @property
    def extra(self) -> float | None:
        return self.steps[0] - self.usual_step if self.steps else None

    @property
    def beyond(self) -> float | None:
        """What the step that was hit took more than the missing part of its batch takes."""
        return None if self.extra is None else self.extra - self.share

    @property
    def deadly(self) -> bool:
        return self.fault == "kill" or self.fault in STAGES

    @property
    def over(self) -> bool:
        """All of those who live train together again."""
        return len(self.steps) > LATER_STEPS and (self.deadly or self.back is not None)


@dataclass(frozen=True)
class Swarm:
    """A running system: the survivors, and on the last host the victim."""

    survivors: Sequence[Peer]
    victim: Peer
    network: Network | Loopback
    folder: Path
    pause: float
    deadline: float
    lends: bool = False
    """The victim does; so nothing of the batch is missing without it."""

    def calm(self) -> Calm:
        """Wait for some undisturbed steps."""
        first = self._newest() + 1
        begin, before = self._reached(first), self._sent()
        times = [begin, *(self._reached(first + k) for k in range(1, CALM_STEPS + 1))]
        after = self._sent()
        sent = (after - before) / CALM_STEPS if before is not None and after is not None else None
        return Calm(begin, times[-1], median(b - a for a, b in pairwise(times)), sent)

    def suffer(self, fault: str, calm: Calm) -> Incident:
        """Make the fault happen in the middle of an all-reduce and see what becomes of it."""
        if fault in STAGES:
            self._await_death(fault)
        else:
            self._await_middle(calm)
        began, before, spoilt = time.monotonic(), self._newest(), self._spoilt()
        self._strike(fault)
        ended = time.monotonic()
        times = [self._reached(before)]
        with contextlib.suppress(UserError):
            for step in range(before + 1, before + 2 + LATER_STEPS):
                times.append(self._reached(step, began + self.deadline))
        until = times[-1] if len(times) > 1 + LATER_STEPS else time.monotonic()
        logs = [read_microbatches(self.folder / f"{peer.name}.jsonl") for peer in self.survivors]
        busy = mean(sum(overlap(m, began, until) for m in log) for log in logs)
        return Incident(
            fault=fault,
            usual_step=calm.step_seconds,
            steps=tuple(b - a for a, b in pairwise(times)),
            device_wait=until - began - busy,
            spoilt=self._spoilt() - spoilt,
            back=None if fault == "kill" or fault in STAGES else self._return(calm, ended),
            share=0.0 if self.lends else calm.step_seconds / len(self.survivors),
            computed=samples_within(logs, began, until),
        )

    def missing(self, calm: Calm) -> int | None:
        """The survivors' samples until then that are neither counted nor pending; None if the system does not tell."""
        found = [_missing(peer, self.folder / f"{peer.name}.jsonl", calm) for peer in self.survivors]
        return None if None in found else sum(n for n in found if n is not None)

    def warnings(self) -> list[str]:
        return [event["text"] for p in self.survivors for event in list(p.events) if event["event"] == "warning"]

    def _sent(self) -> int | None:
        """Bytes of the victim so far."""
        return self.network.bytes_sent(len(self.survivors) + 1)

    def _newest(self) -> int:
        return max((step_of(event) for peer in self.survivors for event in peer.steps()), default=0)

    def _reached(self, step: int, until: float | None = None) -> float:
        """When the last of the survivors had this global step; raises UserError if it does not come."""
        until = until or time.monotonic() + self.deadline
        events = [peer.wait_for_step(step, max(0.0, until - time.monotonic())) for peer in self.survivors]
        return float(max(event["at"] for event in events))

    def _await_middle(self, calm: Calm) -> None:
        """Return in the middle of the victim's part in an all-reduce; raises UserError if it has none."""
        until = time.monotonic() + self.deadline
        event = self.victim.wait_for("step", deadline=self.deadline, number=len(self.victim.steps()))
        steps, base = len(self.victim.steps()), self._sent()
        if base is None or calm.sent is None:
            time.sleep(_until_middle(event, calm.step_seconds))
            return
        while ((sent := self._sent()) or 0) - base < MIDDLE * calm.sent:
            if len(self.victim.steps()) != steps:  # ours has sent all of a round by then, hivemind's nothing
                steps, base = len(self.victim.steps()), sent or 0
            if time.monotonic() > until:
                raise UserError(f"{self.victim.name} sent nothing for {self.deadline:.0f} s; see {self.victim.log}")
            time.sleep(POLL_SECONDS)

    def _await_death(self, stage: str) -> None:
        """Let the victim die at this stage of a round; raises UserError if it does not come there."""
        strike_file(self.folder, len(self.survivors)).write_text(stage)
        until = time.monotonic() + self.deadline
        while self.victim.running:
            if time.monotonic() > until:
                raise UserError(f"{self.victim.name} did not come to '{stage}' in {self.deadline:.0f} s")
            time.sleep(POLL_SECONDS)

    def _strike(self, fault: str) -> None:
        if fault in STAGES:
            return
        if fault == "stall":
            os.killpg(self.victim.pid, signal.SIGSTOP)
            try:
                time.sleep(self.pause)
            finally:  # also if this process is told to end: a stopped one would stay for ever
                os.killpg(self.victim.pid, signal.SIGCONT)
        elif fault == "line":
            assert isinstance(self.network, Network)
            self.network.cut(len(self.survivors) + 1)
            time.sleep(self.pause)
            self.network.restore(len(self.survivors) + 1)
        else:
            self.victim.kill()

    def _return(self, calm: Calm, ended: float) -> float | None:
        """Seconds until the victim took part again: it holds a recent step, and sent its part of another one."""
        with contextlib.suppress(UserError):
            while True:
                step, before = self._newest() + 1, self._sent()
                reached = self._reached(step, ended + self.deadline)
                sent = self._sent()
                holds_recent = any(step_of(event) >= step - 1 for event in self.victim.steps())
                idle = sent is not None and sent - (before or 0) < (calm.sent or 0) / 2
                if holds_recent and not idle:
                    return reached - ended
        return None

    def _spoilt(self) -> int:
        ours = sum("a round failed" in text for text in self.warnings())
        logs = [peer.log.read_text() for peer in self.survivors]
        return ours + sum(log.count(message) for log in logs for message in HIVEMIND_SPOILT)


def _until_middle(event: Event, usual_step: float) -> float:
    """Seconds from a step to the middle of the next all-reduce, as far as that can be told beforehand."""
    if isinstance(event["step"], dict):
        return max(0.0, usual_step - float(event["step"]["seconds"]) / 2)
    return ROUND_BEGINS_SECONDS


def _missing(peer: Peer, log: Path, calm: Calm) -> int | None:
    """Of one volunteer's samples; the least in the span, as what gathers during a round is not told as pending."""
    microbatches = iter(read_microbatches(log))
    counted: dict[int, int] = {}
    computed, least = 0, None
    for event in list(peer.events):
        if event["event"] == "step" and "contributions" in event:
            counted[step_of(event)] = event["contributions"].get(peer.wait_for("joined")["peer"], 0)
        elif event["event"] == "progress":  # one for each microbatch
            computed += next(microbatches).samples
            if calm.begin <= event["at"] <= calm.end:
                missing = computed - sum(counted.values()) - int(event["samples"])
                least = missing if least is None else min(least, missing)
    return least


def examine(
    system: str, setting: Setting, faults: Sequence[str], folder: Path, pause: float, deadline: float
) -> dict[str, Any]:
    """Let one system suffer these faults, one after the other, and print a line for each.

    Raises UserError if it does not start.
    """
    incidents: list[Incident] = []
    problem = None
    with ExitStack() as stack:
        network = open_network(setting.line, 1 + len(setting.slowness) + setting.helpers)
        stack.enter_context(network)
        volunteers = start_peers(system, setting, network, folder, stack)
        for volunteer in volunteers:
            volunteer.wait_for("joined", deadline=START_SECONDS)
        (folder / "start").touch()
        volunteers[0].wait_for_step(setting.warm_up, START_SECONDS + 10 * setting.step_seconds)
        swarm = Swarm(volunteers[:-1], volunteers[-1], network, folder, pause, deadline, bool(setting.helpers))
        try:
            calm = swarm.calm()
            for fault in faults:
                if fault == "line" and not isinstance(network, Network):
                    print(f"{system:10}{fault:7} n/a: only the emulator, which needs root, can cut a line")
                    continue
                before, incident = swarm.missing(calm), swarm.suffer(fault, calm)
                if not incident.over:
                    incidents.append(_reported(system, incident, deadline))
                    raise UserError(f"they did not recover within {deadline:.0f} s; the logs are in {folder}")
                calm = swarm.calm()
                after = swarm.missing(calm)
                lost = after - before if after is not None and before is not None else None
                incidents.append(_reported(system, replace(incident, lost=lost), deadline))
        except UserError as error:
            problem = str(error)
            print(f"{system:10}goes no further: {problem}", flush=True)
        dropped = [text for text in swarm.warnings() if "dropped" in text]
    for text in dropped:
        print(f"{system:10}said: {text}")
    rows = [{**asdict(incident), "extra": incident.extra, "beyond": incident.beyond} for incident in incidents]
    return {"incidents": rows, "dropped": dropped, "problem": problem, "global_batch": setting.run.global_batch}


def _reported(system: str, incident: Incident, deadline: float) -> Incident:
    too_long = f"> {deadline:.0f} s"
    back = "" if incident.deadly else too_long
    row = _ROW.format(
        system,
        incident.fault,
        f"{incident.usual_step:.1f} s",
        f"{incident.steps[0]:.1f} s" if incident.steps else too_long,
        "n/a" if incident.extra is None else f"{incident.extra:+.1f} s",
        "n/a" if incident.beyond is None else f"{incident.beyond:+.1f} s",
        ", ".join(f"{seconds:.1f}" for seconds in incident.steps[1:]) + " s" if incident.steps[1:] else "n/a",
        f"{incident.device_wait:.1f} s",
        incident.spoilt,
        "n/a" if incident.lost is None else incident.lost,
        back if incident.back is None else f"{incident.back:.1f} s",
    )
    print(row, flush=True)
    return incident


def main() -> int:
    options = _parse()
    folder = Path(tempfile.mkdtemp(prefix="dedloc-recovery-"))
    batch = max(1, round(options.peers * SAMPLES_PER_MICROBATCH * options.step_seconds / options.microbatch_seconds))
    setting = Setting(
        run=simulated_run("recovery", int(options.parameters), options.microbatch_seconds, batch),
        microbatch=SAMPLES_PER_MICROBATCH,
        step_seconds=options.step_seconds,
        steps=CALM_STEPS,
        warm_up=WARM_UP_STEPS,
        slowness=[1.0] * options.peers,
        line=options.network,
        helpers=int(options.helper),
    )
    print(f"\n{options.peers} volunteers, {options.parameters:.0f} parameters, {options.network_text},", end=" ")
    print(f"{options.step_seconds:g} s of work in a global step; one stalls, loses its line, is killed")
    print(_ROW.format("", "", "usual", "hit step", "extra", "beyond", "then", "waits", "spoilt", "lost", "back"))
    results: dict[str, Any] = {}
    trials = [(system, system, options.faults) for system in options.systems if options.faults]
    trials += [(f"ours at {stage}", "ours", [stage]) for stage in options.stages]
    for name, system, faults in trials:
        try:
            results[name] = examine(
                system, setting, faults, folder / name.replace(" ", "-"), options.pause, options.deadline
            )
        except UserError as error:  # the others are worth knowing all the same
            print(f"{system:10} did not start: {error}", flush=True)
            results[name] = {"problem": str(error)}
    if options.json:
        settings = {key: value for key, value in vars(options).items() if key not in ("json", "network")}
        options.json.write_text(json.dumps({"settings": settings, **results}, indent=2) + "\n")
    if any(result["problem"] for result in results.values()):
        return 1  # the folder stays, for its logs
    shutil.rmtree(folder)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--peers", type=int, default=4, help="volunteers, the victim among them; 2 (ours alone) or more")
    add("--parameters", type=float, default=18e6, help="of the simulated model")
    add("--network", default="loopback", help="100mbit/60ms (rate and round trip; needs root) or loopback")
    add("--step-seconds", type=float, default=10.0, help="work in a global step, if no device waits")
    add("--microbatch-seconds", type=float, default=1.0, help="of the simulated device")
    add("--pause", type=float, default=20.0, help="seconds for which the victim is stopped, and cut off")
    add("--deadline", type=float, default=180.0, help="seconds for which the steps after a fault are awaited")
    add("--systems", nargs="+", choices=SYSTEMS[1:], default=list(SYSTEMS[1:]), help="what to examine")
    add("--faults", nargs="*", choices=FAULTS, default=list(FAULTS), help="what the victim suffers, in this order")
    add("--stages", nargs="*", choices=STAGES, default=[], help="of a round, at which the victim of another run dies")
    add("--helper", action="store_true", help="the victim is one who lends a line, beside the volunteers; ours alone")
    add("--json", type=Path, help="a file for the results")
    options = parser.parse_args()
    read_network(parser, options)
    if options.helper and (options.systems != ["ours"] or options.stages):
        parser.error("--helper goes with --systems ours, and not with --stages")
    if options.peers < 2 or (options.peers < 3 and options.systems != ["ours"]):
        parser.error("--peers must be 3 or more, or 2 with --systems ours: the survivors still take steps together")
    if options.deadline <= options.pause:
        parser.error("--deadline must be longer than --pause")
    return options


if __name__ == "__main__":
    sys.exit(main())
