"""What a volunteer sees of a session at one moment: the same in the notebook's panel and in the terminal."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from dedloc_kit.events import LocalProgress
from dedloc_kit.records.orders import Decay

Phase = Literal[
    "starting", "loading", "training", "waiting", "restarting", "paused", "leaving", "left", "finished", "failed"
]
"""`left`: because the volunteer wished it; `finished`: because the run is over."""

LATE_SECONDS = 10.0
"""A training that says nothing for so long, and for much longer than usual, waits."""
FULL, FULL_SECONDS = 3, 60.0
"""So many global batches for so long, gathered and not averaged, are more than a group that takes its time to meet."""


@dataclass(frozen=True)
class LossPoint:
    """The training loss of one global step, and how many of its samples were mine."""

    step: int
    loss: float
    mine: int


@dataclass(frozen=True)
class Snapshot:
    """Everything a view shows; without values, that nothing is known yet. Texts may hold what others wrote: a view
    escapes them."""

    phase: Phase = "starting"
    text: str = "starting"
    """What goes on, in words: `downloading the model: 23.0 of 72.1 MB, 1.5 MB/s`."""
    run_id: str = ""
    about: str = ""
    """What this run is and for whom, as the organizer wrote it; may be empty."""
    url: str | None = None
    """The live dashboard."""
    own_page: str | None = None
    """Its page about this volunteer, once the peer id is known."""
    name: str = ""
    """Of the volunteer."""
    anonymous: bool = True
    device: str = ""
    """In words; empty until the peer has joined."""
    step: int = 0
    total_steps: int = 0
    decay: Decay | None = None
    """Of the learning rate, once it has begun: the run ends with it."""
    global_batch: int = 0
    batch_samples: int = 0
    """Everyone's samples toward the next global step, mine included."""
    my_batch_samples: int = 0
    session_samples: int = 0
    """Mine since the cell was run."""
    total_samples: int | None = None
    """Mine over all sessions, as the coordinator's ledger has them; none while it is not known, as the next three."""
    share: float | None = None
    """Of all samples that anyone has given to this run, 0 to 1."""
    rank: int | None = None
    contributors: int | None = None
    seconds_given: float = 0.0
    """Time that this machine has computed in this session, or lent its line."""
    carried: int | None = None
    """Bytes that its line has carried in this session, of who lends it; none of who trains."""
    hosted: tuple[int, int] | None = None
    """Experts that this machine keeps, and of which it has copies; none of who hosts none."""
    answered: int = 0
    """Tokens that these have answered for others in this session, by this machine's own count."""
    samples_per_second: float = 0.0
    peers: int = 0
    """Volunteers that are training now, this one included."""
    losses: tuple[LossPoint, ...] = ()
    """In the order of the steps; some hundreds at most."""
    memory_bytes: int = 0
    """Of the training process and its helpers."""
    sent_bytes_per_second: float = 0.0
    received_bytes_per_second: float = 0.0
    next_session: str = ""
    """Whether the total goes on in the next session, as a sentence; empty before the end."""
    announcement: str = ""
    """What the organizer tells all volunteers; empty if that is nothing."""
    warnings: tuple[str, ...] = ()
    """In plain language with what to do, the newest last; few."""
    problem: str | None = None
    """Why the session failed: one sentence with what to do. Only in the phase `failed`."""
    details: str = ""
    """For whoever helps: versions, machine, the last lines of the log. Only in the phases `failed` and `restarting`."""

    @property
    def under_way(self) -> str:
        """Which global step, in words."""
        if self.decay is None:
            return f"step {self.step + 1:,} of {self.total_steps:,}"
        return f"cooldown: step {min(self.step + 2 - self.decay.start, self.decay.steps):,} of {self.decay.steps:,}"

    @property
    def over(self) -> bool:
        """Whether nothing runs any more, for good."""
        return self.phase in ("left", "finished", "failed")


class Fill:
    """Since when the batch has been full without a round."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step, self._since = -1, 0.0

    def heard(self, progress: LocalProgress) -> None:
        """Take a look at what a microbatch says."""
        full = progress.swarm_samples > FULL * progress.global_batch and not progress.averaging
        if not full:
            self._step = -1
        elif self._step != progress.step:
            self._step, self._since = progress.step, self._clock()

    def stepped(self) -> None:
        """A global step is done."""
        self._step = -1

    @property
    def seconds(self) -> float:
        return 0.0 if self._step < 0 else self._clock() - self._since


def overdue(now: Snapshot, silence: float, usual_gap: float | None, full: float) -> Snapshot:
    """A training as it looks when nothing was heard of it for so many seconds.

    :param usual_gap: seconds from one microbatch to the next; None before the first one is done
    :param full: seconds, see `Fill`
    """
    if usual_gap is None:  # a large model on a slow machine, more likely than a line that is down already
        slow = silence > LATE_SECONDS
        return replace(now, text="computing the first samples; a slow machine takes minutes") if slow else now
    if silence > max(LATE_SECONDS, 5 * usual_gap):
        return replace(now, phase="waiting", text="waiting for the other peers; the line may be slow or down")
    if full > FULL_SECONDS:
        return replace(
            now, phase="waiting", text="the batch is full, but the other peers do not come; is the line down?"
        )
    return now
