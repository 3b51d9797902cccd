"""Is a state that comes from others the swarm's? Those whose word counts are asked for a sketch of theirs.

They are asked when the download begins, for then they hold that state; later they may have gone on. Nothing is lost by
that: each of them gets a seed of its own, which nobody else knows, so whoever sends the state cannot make another one
that fits.
"""

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Literal

from torch import Tensor

from dedloc_kit.learning.train.state.sketch import SEED_BYTES, Sketch, differ, read
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.network.service import decode
from dedloc_kit.swarm.transfer.protocol import Header

MAX_ASKED = 8
PATIENCE_SECONDS = 20.0
"""For witnesses that are busy, or about to take the step whose state has begun to come."""
PAUSE_SECONDS = 0.5
ANSWER_SECONDS = 60.0
"""For a copy of the state by a busy host process, and a sketch of it."""

Verdict = Literal["right", "wrong", "moved on", "unproven"]
"""`moved on`: the witnesses hold a newer state by now; `unproven`: too few of them have answered."""


class Witnesses:
    """Those who are asked about one download.

    :param ask: asks a peer for a sketch of the state of a version, under a seed; a future of a Header or None
    """

    def __init__(
        self, ask: Callable[[str, str, bytes], Future[Header | None]], tracker: Tracker, stop: threading.Event
    ) -> None:
        self._ask, self._tracker, self._stop = ask, tracker, stop
        self._version = ""
        self._told: dict[str, tuple[bytes, Sketch]] = {}
        self.verdict: Verdict = "unproven"

    def question(self, version: str) -> bool:
        """Ask about the state of this version; False if it cannot be proven, or is no news any more."""
        self._version, self._told, self.verdict = version, {}, "unproven"
        until, step = time.monotonic() + PATIENCE_SECONDS, _step_of(version)
        while time.monotonic() < until:
            ahead, behind = self._round(step)
            if self._tracker.proves(self._told):
                return True
            if ahead and self._tracker.proves(ahead | self._told.keys()):
                self.verdict = "moved on"
                return False
            if self._stop.wait(PAUSE_SECONDS):
                return False
        if self._tracker.proves(behind):
            self.verdict = "wrong"  # nobody else has come so far
        return False

    def judge(self, version: str, tensors: Sequence[Tensor], loose: frozenset[int]) -> Verdict:
        """Is this the state that the witnesses hold?

        :param loose: numbers of the tensors that differ from peer to peer
        """
        if version == self._version:
            unlike = {peer for peer, (seed, told) in self._told.items() if self._differs(tensors, seed, told, loose)}
            if self._tracker.proves(self._told.keys() - unlike):
                self.verdict = "right"
            elif self._tracker.proves(unlike):
                self.verdict = "wrong"
            else:
                self.verdict = "unproven"
        return self.verdict

    def _round(self, step: int) -> tuple[set[str], set[str]]:
        """Ask those who have not answered yet; returns who is beyond this step, and who has not come to it."""
        ahead, behind = set[str](), set[str]()
        asked = {}
        for peer in _whom(self._tracker, step):
            if peer not in self._told:
                seed = secrets.token_bytes(SEED_BYTES)
                asked[peer] = seed, self._ask(peer, self._version, seed)
        for peer, (seed, answer) in asked.items():
            header = _answered(answer, self._stop)
            if header is None:
                continue
            if header.answer == "here":
                try:
                    self._told[peer] = seed, read(decode(header.metadata))
                except ValueError as error:
                    self._tracker.reject(f"an answer about the state: {error}")
            elif header.version:
                (ahead if _step_of(header.version) > step else behind).add(peer)
        return ahead, behind

    def _differs(self, tensors: Sequence[Tensor], seed: bytes, told: Sketch, loose: frozenset[int]) -> bool:
        try:
            return bool(set(differ(tensors, seed, told)) - loose)
        except ValueError:
            return True


def _whom(tracker: Tracker, step: int) -> list[str]:
    """Those who hold that state or are about to: the organizer, or else those whose word counts most."""
    belief = tracker.belief
    near = [peer for peer, progress in tracker.others().items() if progress.step >= step - 1]
    if belief.organizer in near:
        return [belief.organizer]
    return sorted(near, key=belief.weight, reverse=True)[:MAX_ASKED]


def _answered(answer: Future[Header | None], stop: threading.Event) -> Header | None:
    until = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < until and not stop.is_set():
        with suppress(TimeoutError):
            return answer.result(PAUSE_SECONDS)
    return None


def _step_of(version: str) -> int:
    step = version.partition("/")[0]
    return int(step) if step.isdecimal() and len(step) < 20 else -1
