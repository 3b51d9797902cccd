"""What a volunteer sees and does during one session: the same for the notebook's panel and for the terminal."""

from dataclasses import dataclass
from typing import Literal

Phase = Literal[
    "starting", "loading", "training", "waiting", "restarting", "paused", "leaving", "left", "finished", "failed"
]
"""`left`: because the volunteer wished it; `finished`: because the run is over."""


@dataclass(frozen=True)
class LossPoint:
    """The training loss of one global step, and how many of its samples were mine."""

    step: int
    loss: float
    mine: int


@dataclass(frozen=True)
class Snapshot:
    """Everything a view shows, at one moment. Texts may hold what others wrote: a view escapes them."""

    phase: Phase
    text: str
    """What goes on, in words: `downloading the model: 23 of 72 MB`."""
    run_id: str
    about: str
    """What this run is and for whom, as the organizer wrote it; may be empty."""
    url: str | None
    """The live dashboard."""
    name: str
    """Of the volunteer."""
    anonymous: bool
    device: str
    """In words; empty until the peer has joined."""
    step: int
    total_steps: int
    global_batch: int
    batch_samples: int
    """Everyone's samples toward the next global step, mine included."""
    my_batch_samples: int
    session_samples: int
    """Mine since the cell was run."""
    total_samples: int | None
    """Mine over all sessions, as the coordinator's ledger has them; none while it is not known, as the next three."""
    share: float | None
    """Of all samples that anyone has given to this run, 0 to 1."""
    rank: int | None
    contributors: int | None
    seconds_given: float
    """Time that this machine has computed in this session."""
    samples_per_second: float
    peers: int
    """Volunteers that are training now, this one included."""
    losses: tuple[LossPoint, ...]
    """In the order of the steps; some hundreds at most."""
    memory_bytes: int
    """Of the training process and its helpers."""
    sent_bytes_per_second: float
    received_bytes_per_second: float
    warnings: tuple[str, ...]
    """In plain language with what to do, the newest last; few."""
    problem: str | None
    """Why the session failed: one sentence with what to do. Only in the phase `failed`."""
    details: str
    """For whoever helps: versions, machine, the last lines of the log. Only in the phases `failed` and `restarting`."""
