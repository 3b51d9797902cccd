"""What is known of a run at this moment, from the coordinator's events and the ledger."""

import itertools
import logging
import math
import sqlite3
import statistics
import threading
import time
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dedloc_kit.dashboard.milestones import Milestone, milestones
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Failed, Joined, Left, Peers, PeerSeen, State, Warned
from dedloc_kit.ledger import Contributor, Ledger, UnreadyLedger
from dedloc_kit.records import GlobalStep, Standing
from dedloc_kit.run import RunConfig

SILENCE_SECONDS = 60.0
"""A coordinator that has joined and then says nothing for so long is taken for lost."""
LISTED = 200
"""Peers and contributors beyond these are counted, not listed, so that a push stays small."""
STEP_POINTS, EVALUATION_POINTS = 1_500, 500
"""A curve with more points than a screen has pixels is thinned to these."""
LOSS_POINTS = 300
"""For a volunteer's small chart."""

_log = logging.getLogger(__name__)


class RunView:
    """Takes events from one thread and answers questions from any other."""

    def __init__(self, run: RunConfig, ledger: Path) -> None:
        self._run = run
        self._path = ledger
        self._ledger: Ledger | None = None
        self._problem: str | None = None
        self._lock = threading.Lock()  # guards what events change; the ledger has its own
        self._opening = threading.Lock()
        self._peers: tuple[PeerSeen, ...] = ()
        self._joined = False
        self._gone = self._paused = False
        self._heard = 0.0  # monotonic time of the last event
        self._message = ""
        self._notices: deque[dict[str, Any]] = deque(maxlen=5)

    def take(self, event: AnyEvent) -> None:
        """Learn from one event of the coordinator."""
        with self._lock:
            self._heard = time.monotonic()
            match event:
                case State(text=text):
                    if self._gone:  # a new coordinator has been started
                        self._joined = self._gone = False
                    self._message = text
                case Joined():
                    self._joined, self._gone = True, False
                case Peers(peers=peers):
                    self._joined, self._gone, self._peers, self._paused = True, False, peers, event.paused
                case Warned(text=text):
                    self._notices.append({"time": time.time(), "text": text})
                case Failed(text=text):
                    self._gone, self._peers, self._message = True, (), text
                case Left(step=step):
                    self._gone, self._peers, self._message = True, (), f"the coordinator left at global step {step}"

    def state(self) -> dict[str, Any]:
        """Everything but the curves, as plain JSON values."""
        ledger = self._open()
        try:
            known = _recorded(ledger) if ledger else _NOTHING_RECORDED
        except sqlite3.Error as error:
            self._report(f"the ledger cannot be read ({error})")
            known = _NOTHING_RECORDED
        with self._lock:
            return {**self._now(known), **known, "problem": self._problem}

    def volunteers(self, without: str = "") -> int:
        """How many train now, besides the one with this peer id."""
        with self._lock:
            return sum(not peer.follower and peer.peer != without for peer in self._peers)

    def history(self, after: int = 0, evaluations_after: int | None = None) -> dict[str, Any]:
        """The curves after a global step, thinned to what a chart can show; the newest point is always there."""
        ledger = self._open()
        found: dict[str, Any] = {"after": after, "last_step": 0, "steps": [], "evaluations": []}
        if ledger is None:
            return found
        try:
            last = ledger.last_step()
            steps = ledger.steps(after, every=max(1, math.ceil((last - after) / (STEP_POINTS - 1))))
            evaluations = ledger.evaluations((after or -1) if evaluations_after is None else evaluations_after)
        except sqlite3.Error as error:
            self._report(f"the ledger cannot be read ({error})")
            return found
        every = max(1, math.ceil(len(evaluations) / EVALUATION_POINTS))
        return {
            "after": after,
            "last_step": last,
            "steps": [step.model_dump(exclude={"round"}) for step in steps],
            "evaluations": [asdict(evaluation) for evaluation in evaluations[::-1][::every][::-1]],
        }

    def standing(self, peer: str, after: int) -> Standing:
        """Where a peer stands, with the losses after a global step."""
        ledger = self._open()
        contributors = ledger.contributors() if ledger else []
        ranks = {contributor.peer: rank for rank, contributor in enumerate(contributors, start=1)}
        mine = contributors[ranks[peer] - 1].samples if peer in ranks else 0
        steps = ledger.steps(after, every=max(1, (ledger.last_step() - after) // LOSS_POINTS)) if ledger else []
        return Standing(
            samples=min(2**53, mine),
            samples_total=min(2**53, sum(contributor.samples for contributor in contributors)),
            rank=ranks.get(peer, 0),
            contributors=len(contributors),
            volunteers=self.volunteers(),
            losses=tuple((step.step, step.loss) for step in steps if step.loss is not None),
        )

    def person(self, peer: str) -> tuple[Contributor | None, int]:
        """What a peer has given, None if nothing, and the samples of all."""
        ledger = self._open()
        contributors = ledger.contributors() if ledger else []
        found = next((contributor for contributor in contributors if contributor.peer == peer), None)
        return found, sum(contributor.samples for contributor in contributors)

    def milestones(self) -> list[Milestone]:
        """What has been reached so far, oldest first."""
        ledger = self._open()
        return milestones(ledger, self._run.optimizer.total_steps) if ledger else []

    def close(self) -> None:
        """Close the ledger."""
        with self._opening:
            if self._ledger is not None:
                self._ledger.close()
                self._ledger = None

    def _open(self) -> Ledger | None:
        with self._opening:
            if self._ledger is None and self._path.exists():
                try:
                    self._ledger = Ledger(self._path, read_only=True)
                    self._problem = None
                except UnreadyLedger:
                    pass
                except UserError as error:
                    self._report(str(error))
            return self._ledger

    def _report(self, text: str) -> None:
        """Tell the organizer once, with the path; viewers learn only that something is wrong."""
        if self._problem is None:
            _log.warning("%s", text)
        self._problem = "the ledger cannot be read"

    def _now(self, known: dict[str, Any]) -> dict[str, Any]:
        """The part of the state that lives in events."""
        silent = self._joined and time.monotonic() - self._heard > SILENCE_SECONDS
        # The step that the swarm is at; a peer that is behind cannot give to its batch.
        step = max([known["step"], *(peer.step for peer in self._peers)])
        peers = sorted(
            self._peers, key=lambda peer: (peer.follower, peer.step != step, peer.name.casefold(), peer.peer)
        )
        volunteers = [peer for peer in peers if not peer.follower]
        giving = [peer for peer in volunteers if peer.step == step]
        samples = sum(peer.samples for peer in giving)
        rate = sum(_finite(peer.samples_per_second) or 0.0 for peer in giving)
        if known["step"] >= self._run.optimizer.total_steps:
            status = "finished"
        elif self._gone or silent:
            status = "coordinator lost"
        elif not self._joined:
            status = "starting"
        elif self._paused:
            status = "paused"
        else:
            status = "training" if volunteers else "waiting for volunteers"
        return {
            "run_id": self._run.run_id,
            "name": self._run.name,
            "status": status,
            "message": self._message,
            "notices": list(self._notices),
            "total_steps": self._run.optimizer.total_steps,
            "global_batch": self._run.global_batch,
            "eta_seconds": max(0, self._run.global_batch - samples) / rate if rate > 0 else None,
            "samples_per_second": rate,
            "batch": {
                "step": step + 1,
                "samples": samples,
                "shares": [{"peer": peer.peer, "name": peer.name, "samples": peer.samples} for peer in giving[:LISTED]],
            },
            "volunteers": len(volunteers),
            "peer_count": len(peers),
            "peers": [
                {
                    **peer.model_dump(),
                    "samples_per_second": _finite(peer.samples_per_second),
                    "current": peer.step == step,
                }
                for peer in peers[:LISTED]
            ],
        }


_NOTHING_RECORDED: dict[str, Any] = {
    "step": 0,
    "samples_total": 0,
    "loss": None,
    "evaluation": None,
    "samples": [],
    "seconds_per_step": None,
    "last_step_time": None,
    "contributor_count": 0,
    "contributors": [],
}


def _recorded(ledger: Ledger) -> dict[str, Any]:
    """The part of the state that lives in the ledger."""
    last = ledger.last_step()
    recent = ledger.steps(after=max(0, last - 20))
    ends = ledger.first_and_last_evaluation()
    contributors = ledger.contributors()
    return {
        "step": last,
        "samples_total": sum(contributor.samples for contributor in contributors),
        "loss": next((step.loss for step in reversed(recent) if step.loss is not None), None),
        "evaluation": {"first": asdict(ends[0]), "last": asdict(ends[1])} if ends else None,
        "samples": [sample.model_dump() for sample in ledger.newest_samples()],
        "seconds_per_step": _pace(recent),
        "last_step_time": recent[-1].time if recent else None,
        "contributor_count": len(contributors),
        "contributors": [asdict(contributor) for contributor in contributors[:LISTED]],
    }


def _pace(steps: list[GlobalStep]) -> float | None:
    """The usual time from one global step to the next; a median, so that a pause does not count."""
    gaps = [later.time - earlier.time for earlier, later in itertools.pairwise(steps)]
    return statistics.median(gaps) if gaps else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
