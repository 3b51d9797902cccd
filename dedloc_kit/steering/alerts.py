"""Notices what may need the organizer's hand, and keeps it in the coordinator's folder.

Each trouble is told once when it begins and, where that can be seen, once when it is over.
"""

import shutil
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from dedloc_kit.display.human import count, duration, size, some
from dedloc_kit.events import (
    AnyEvent,
    ExpertsState,
    Failed,
    Joined,
    Peers,
    PipelineState,
    Pushed,
    PushFailed,
    StepDone,
    Warned,
)
from dedloc_kit.experts_state import named as named_experts
from dedloc_kit.experts_state import single, unkept
from dedloc_kit.pipeline_state import accused, held_by, named
from dedloc_kit.records.record import Record, Time
from dedloc_kit.steering.debounce import Settled
from dedloc_kit.steering.journal import Journal

SPIKE_SPREADS = 8.0
"""A loss so many standard deviations above the recent median is a spike."""
RECENT_STEPS, FEWEST_STEPS = 50, 20
USUAL_STEPS = 5.0
"""A run is not stuck before so many of its usual steps could have been done."""
SILENCE_SECONDS = 60.0
"""A coordinator that says nothing for so long hangs, or its machine does."""
MAX_NAMED = 3
"""Stage peers in one alert."""
HUB_SECONDS = 600.0
"""For so long pushes may fail before it is worth an alert: they are tried again all the time."""
FREE_BYTES = 1e9
"""Less than this, or than three checkpoints need, is an almost full disk."""
LOG = "alerts.jsonl"

Kind = Literal[
    "loss", "progress", "disk", "coordinator", "hub", "record", "divergence", "layers", "server", "stages", "experts"
]


class Alert(Record):
    """One line of the log."""

    time: Time
    kind: Kind
    text: str
    """What happened and, unless it is over, what to do."""


def raised_alerts(folder: Path, most: int) -> list[Alert]:
    """The newest alerts of the run in this folder, newest first."""
    return Journal(folder / LOG, Alert).newest(most)


class Alerts:
    """Watches one run, by its coordinator's events and by a look around from time to time; from any thread."""

    def __init__(self, folder: Path, last_step: int, stall_seconds: float, tell: Callable[[Alert], None]) -> None:
        """
        :param last_step: the run's last global step; after it nothing has to move
        :param stall_seconds: without a global step for so long, the run is stuck
        :param tell: told about every alert
        """
        self._folder, self._last_step, self._stall_seconds, self._tell = folder, last_step, stall_seconds, tell
        self._journal = Journal(folder / LOG, Alert)
        self._lock = threading.Lock()
        self._troubles = set[Kind]()
        self._heard = time.monotonic()
        self._losses: deque[float] = deque(maxlen=RECENT_STEPS)
        self._gaps: deque[float] = deque(maxlen=RECENT_STEPS)
        self._up = False
        self._step = 0
        self._moved: float | None = None
        """When the last step was done, or whenever there was no reason to wait for one; none before anyone came."""
        self._volunteers = 0
        self._over = False
        self._bare, self._single, self._accused = Settled(), Settled(), Settled()
        self._lost, self._alone = Settled(), Settled()
        self._push_failing: float | None = None
        self._push_failure = ""

    def hear(self, event: AnyEvent) -> None:
        """Learn from one event of the coordinator."""
        with self._lock:
            self._heard = now = time.monotonic()
            match event:
                case Joined(step=step):
                    self._up, self._step = True, step
                    if step:
                        self._raise("coordinator", f"the coordinator has started again, at global step {step}")
                case Failed(text=text) if self._up:  # what keeps it from starting is said where it was started
                    self._raise("coordinator", f"the coordinator stopped: {text}")
                case Warned(text=text, alert=True):
                    self._raise("record", text)
                case StepDone(step=step):
                    self._stepped(step.step, step.loss, now)
                case Peers():
                    self._seen(event, now)
                case PipelineState():
                    self._look_at_stages(event, now)
                case ExpertsState():
                    self._look_at_experts(event, now)
                case PushFailed(text=text):
                    self._push_failure, self._push_failing = text, self._push_failing or now
                case Pushed(step=step):
                    self._push_failing = None
                    self._end("hub", f"pushes to the Hub succeed again, with global step {step}")
                case _:
                    pass

    def check(self) -> None:
        """Notice what no event tells: silence, a run that is stuck, a full disk, a Hub that fails for long."""
        with self._lock:
            now = time.monotonic()
            if now - self._heard > SILENCE_SECONDS:
                self._begin("coordinator", "the coordinator says nothing any more; see its log, or start it again")
            else:
                self._end("coordinator", "the coordinator speaks again")
            self._look_for_progress(now)
            self._look_at_disk()
            if self._push_failing is not None and now - self._push_failing > HUB_SECONDS:
                lasting = duration(now - self._push_failing)
                self._begin("hub", f"pushes to the Hub have failed for {lasting}: {self._push_failure}")

    def _stepped(self, step: int, loss: float | None, now: float) -> None:
        if self._moved is not None:
            self._gaps.append(now - self._moved)
        self._step, self._moved = step, now
        self._end("progress", f"the run goes on, with global step {step}")
        if loss is not None:
            self._look_at_loss(step, loss)
            self._losses.append(loss)

    def _look_at_loss(self, step: int, loss: float) -> None:
        """Compare with the median and the spread of the steps before, which a few spikes do not move."""
        if len(self._losses) < FEWEST_STEPS:
            return
        median = statistics.median(self._losses)
        # 1.48 times the median deviation is the standard deviation of what is normally distributed.
        spread = 1.48 * statistics.median(abs(other - median) for other in self._losses)
        if loss > median + SPIKE_SPREADS * max(spread, 0.01 * abs(median)):
            self._begin(
                "loss",
                f"the training loss is {loss:.4g} at global step {step}, after about {median:.4g} in the steps before; "
                "if it stays up, go back to an earlier checkpoint with 'dedloc run rollback RUN STEP'",
            )
        else:
            self._end("loss", f"the training loss is down again, at {loss:.4g} with global step {step}")

    def _seen(self, peers: Peers, now: float) -> None:
        self._volunteers = sum(not peer.follower for peer in peers.peers)
        if peers.problem:
            back = f"dedloc run rollback {self._folder} STEP --rate 0.5"
            self._begin("divergence", f"{peers.problem}; go back to the checkpoint of an earlier STEP with: {back}")
        else:
            self._end("divergence", "nothing tells any more that the training has diverged")
        self._over = self._step >= (self._last_step if peers.last_step is None else peers.last_step)
        if self._over or peers.paused or (self._moved is None and self._volunteers):
            self._moved = now

    def _look_at_stages(self, pipeline: PipelineState, now: float) -> None:
        """Notice which stages have too few peers, from the first volunteer to the last global step."""
        if self._moved is None or self._over:
            return
        stages = pipeline.stages
        bare, single = held_by(0, stages), held_by(1, stages)
        if self._bare.news(bare, now):
            told = f"nobody holds {named(bare, len(stages))}, so no microbatch gets through"
            self._raise("stages", told if bare else "each stage has a peer again")
        if self._single.news(single, now):
            told = f"one peer alone holds {named(single, len(stages))}"
            self._raise("stages", f"{told}: find another" if single else "no stage has one peer only any more")
        found = accused(stages)
        if self._accused.news(tuple(sorted(peer.peer for _, peer in found)), now):
            worst = [f"{peer.peer} at stage {number} ({peer.accusers} drivers)" for number, peer in found]
            kick = f"'dedloc run kick {self._folder} PEER' sends one away"
            says = f"drivers say that these stage peers answer wrongly: {some(worst, MAX_NAMED)}; {kick}"
            self._raise("stages", says if found else "no two drivers say any more that a stage peer answers wrongly")

    def _look_at_experts(self, experts: ExpertsState, now: float) -> None:
        """Notice which experts are on too few machines, from the first volunteer to the last global step."""
        if self._moved is None or self._over or not experts.layers:
            return
        cells, columns = sum(len(layer.keepers) for layer in experts.layers), experts.grid[1]
        lost, alone = unkept(experts.layers, columns), single(experts.layers, columns)
        if self._lost.news(lost, now):
            told = f"nobody keeps {named_experts(lost, cells)}, so tokens go to others"
            self._raise("experts", told if lost else "each expert has a keeper again")
        if self._alone.news(alone, now):
            told = (
                f"one machine alone has {named_experts(alone, cells)}: find another host (dedloc join --host-experts)"
            )
            self._raise("experts", told if alone else "each expert is on two machines")

    def _look_for_progress(self, now: float) -> None:
        here = count(self._volunteers, "volunteer")
        usual = statistics.median(self._gaps) if self._gaps else 0.0
        if self._moved is None or now - self._moved < max(self._stall_seconds, USUAL_STEPS * usual):
            return
        since = f"no global step for {duration(now - self._moved)}, after number {self._step}"
        self._begin("progress", f"{since}; there {'is' if self._volunteers == 1 else 'are'} {here}")

    def _look_at_disk(self) -> None:
        try:
            free = shutil.disk_usage(self._folder).free
            kept = [path.stat().st_size for path in (self._folder / "checkpoints").glob("*.safetensors")]
        except OSError:  # a checkpoint has just gone
            return
        if free < max(FREE_BYTES, 3 * max(kept, default=0)):
            self._begin("disk", f"the disk of {self._folder} has only {size(free)} left; make room")
        else:
            self._end("disk", f"the disk has room again, {size(free)}")

    def _begin(self, kind: Kind, text: str) -> None:
        if kind not in self._troubles:
            self._troubles.add(kind)
            self._raise(kind, text)

    def _end(self, kind: Kind, text: str) -> None:
        if kind in self._troubles:
            self._troubles.remove(kind)
            self._raise(kind, text)

    def _raise(self, kind: Kind, text: str) -> None:
        alert = Alert(time=time.time(), kind=kind, text=text)
        with suppress(OSError):  # a full disk is worth an alert all the same
            self._journal.add(alert)
        self._tell(alert)
