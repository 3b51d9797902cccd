"""What became of a round."""

import time
from dataclasses import dataclass, field
from typing import Literal

from dedloc_kit.records.steps import Absence, Carried, Contribution
from dedloc_kit.swarm.consensus.records import Commit


@dataclass(frozen=True)
class RoundResult:
    """What became of one all-reduce, as this peer saw it."""

    outcome: Literal["complete", "refused", "failed"]
    """`refused`: too few are left to take a global step, so nothing was averaged; all members see the same."""
    commit: Commit | None = None
    """What was decided. A round that failed here may have been decided all the same."""
    contributions: dict[str, Contribution] = field(default_factory=dict)
    """Of every member that counts, by peer id; of a refused round of every member that came."""
    weights: dict[str, int] = field(default_factory=dict)
    """How many samples of each count."""
    offered: str = ""
    """The name of the gradients that this peer brought; empty if it brought none."""
    detail: str = ""
    culprits: frozenset[str] = frozenset()
    """Peers that fell silent, broke off or sent nonsense, whether the round went on without them or not."""
    named: frozenset[str] = frozenset()
    """Peers that did so as other members say."""
    absent: dict[str, Absence] = field(default_factory=dict)
    """Members of the group that do not count, and why, as this peer saw it itself."""
    carried: dict[str, Carried] = field(default_factory=dict)
    """See GlobalStep."""
    seconds: float = 0.0
    """What the all-reduce took."""
    ended: float = field(default_factory=time.monotonic)
    """When it was over, by the steady clock of this machine."""
    longest_silence: float = 0.0
    upload_rate: float | None = None
    """Bytes per second at which this peer's gradients came to the reducers; of a follower, its averages to the
    members."""

    @property
    def link(self) -> str:
        """Of the step; empty if none was decided."""
        return "" if self.commit is None else self.commit.link
