"""Notices that a run has diverged: its loss is no number any more or far above where it began, or no step follows."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence

from dedloc_kit.display.human import count
from dedloc_kit.events import PeerSeen

FAR = 1.5
"""So many times the loss at the start is far above it: a model that knows nothing has about that loss, none a worse
one for long."""
EVALUATIONS, STEPS = 3, 10
"""So many in a row far above the start: one may be an outlier."""
SKIPPED = 32
"""Microbatches in a row that give no finite loss or gradient; half precision finds its scale in fewer."""
STUCK_SECONDS, USUAL_STEPS = 600.0, 20.0
"""Without a global step for so long, and for so many of the usual ones, though volunteers compute."""


def far_above(loss: float, start: float) -> bool:
    """Is this loss no number, or far above that of the start?"""
    return not math.isfinite(loss) or loss > start + (FAR - 1) * abs(start)


class Divergence:
    """Told by the coordinator what happens; says at any time what is wrong.

    What volunteers say may be wrong: a loss that the coordinator itself finds to be sound ends what they claimed of
    theirs.

    :param held_out: the first held-out loss of the run, if it is known
    :param training: the training loss of its first steps, if it is known
    """

    def __init__(
        self,
        global_batch: int,
        held_out: float | None = None,
        training: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._global_batch, self._clock = global_batch, clock
        self._start = {"held-out": held_out, "measured": None, "training": training}
        self._above = dict.fromkeys(self._start, 0)
        self._of_loss = dict.fromkeys(self._above, "")
        self._of_peers = ""
        self._row = 0  # the first step whose training loss was too high, of those up to now
        self._gaps: deque[float] = deque(maxlen=20)
        self._stepped = False
        self._moved, self._samples = clock(), 0

    @property
    def problem(self) -> str:
        """What is wrong, in words; empty while nothing is."""
        told = self._of_loss
        return told["held-out"] or told["measured"] or self._of_peers or told["training"]

    def evaluated(self, step: int, loss: float) -> None:
        """The held-out loss of a step is known."""
        self._judge("held-out", step, loss, EVALUATIONS)
        self._believe("held-out")

    def held_out_anew(self) -> None:
        """The held-out data is another from now on: the next loss is the first one."""
        self._start["held-out"], self._above["held-out"], self._of_loss["held-out"] = None, 0, ""

    def measured(self, step: int, loss: float, untrained: float) -> None:
        """In a run without held-out data: the loss on data to train on, of a step and of the untrained model."""
        self._start["measured"] = untrained
        self._judge("measured", step, loss, 1)
        self._believe("measured")

    def doubts(self, loss: float) -> bool:
        """Is this held-out loss, which others tell, one that the coordinator has to measure itself?"""
        start = self._start["held-out"]
        return start is None or far_above(loss, start)

    def first_lost(self, step: int) -> int:
        """The state of this step is lost; of which one on it probably was: a step's training loss is that of the state
        before it. The untrained one never is."""
        return min(step, max(1, self._row - 1)) if self._above["training"] else step

    def stepped(self, step: int, loss: float | None) -> None:
        """A global step is done."""
        now = self._clock()
        if self._stepped:
            self._gaps.append(now - self._moved)
        self._stepped, self._moved, self._of_peers, self._samples = True, now, "", 0
        if loss is not None:
            self._judge("training", step, loss, STEPS)

    def seen(self, step: int, peers: Sequence[PeerSeen], waits: bool) -> None:
        """Who is here now.

        :param step: the newest
        :param waits: no step is to be expected: the run is paused or over
        """
        volunteers = [peer for peer in peers if not peer.follower]
        if not volunteers or waits:
            self._moved, self._stepped, self._of_peers = self._clock(), False, ""
            return
        lost = sum(peer.skipped >= SKIPPED for peer in volunteers)
        if 2 * lost > len(volunteers):
            self._of_peers = (
                f"the training has diverged: {lost} of {count(len(volunteers), 'volunteer')} no longer get a finite "
                "loss or gradient"
            )
            return
        samples = sum(peer.samples for peer in volunteers)
        if samples != self._samples and samples < self._global_batch:  # it fills up, so a step may follow
            self._moved, self._stepped = self._clock(), False
        self._samples = samples
        patience = max(STUCK_SECONDS, USUAL_STEPS * (statistics.median(self._gaps) if self._gaps else 0.0))
        stuck = self._clock() - self._moved > patience
        self._of_peers = f"no global step follows number {step}, though volunteers compute" if stuck else ""

    def went_back(self) -> None:
        """A step has taken over an earlier state, of which nothing bad is known."""
        self._above = dict.fromkeys(self._above, 0)
        self._of_loss = dict.fromkeys(self._above, "")
        self._moved, self._stepped, self._of_peers = self._clock(), False, ""

    def _believe(self, kind: str) -> None:
        if not self._of_loss[kind] and not self._above[kind]:
            self._above["training"], self._of_loss["training"] = 0, ""

    def _judge(self, kind: str, step: int, loss: float, several: int) -> None:
        if not math.isfinite(loss):
            self._of_loss[kind] = f"the training has diverged: the {kind} loss of step {step} is not a finite number"
            return
        start = self._start[kind]
        if start is None:
            start = self._start[kind] = loss
        self._above[kind] = self._above[kind] + 1 if far_above(loss, start) else 0
        if kind == "training" and self._above[kind] == 1:
            self._row = step
        self._of_loss[kind] = (
            f"the training has diverged: the {kind} loss is {loss:.4g} at step {step}, after {start:.4g} at the start"
            if self._above[kind] >= several
            else ""
        )
