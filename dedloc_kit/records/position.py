"""Where a peer is on the chain of commits, and what it has of the next batch."""

from typing import Annotated

from pydantic import Field

from dedloc_kit.records.record import Count, Digest, Record, RunId, Time

Term = Annotated[tuple[Count, Digest], Field(strict=False)]
"""Number and link of the last reset on a branch."""


class Position(Record):
    """What others need to know of a peer to take the next step with it; `Progress` tells it.

    :ivar term: number and link of the last reset on its branch
    :ivar step: the step that its branch decides next
    :ivar head: the link of its last commit or reset
    :ivar incarnation: as which voter it takes part; 0 if it cannot vote
    :ivar samples: toward the next step
    :ivar samples_per_second: that go into it, if it is not fixed
    :ivar boundary_seconds: of one microbatch
    :ivar computed: when it finished the last one, by its own clock; 0 before the first
    :ivar fixed: what it computes from now on is for the step after the next one
    :ivar follower: it computes nothing, and takes every step
    :ivar client: it makes outgoing connections only: it neither leads nor reduces
    :ivar time: by its own clock, and later than in its last record even if that clock has jumped back
    """

    run_id: RunId
    term: Term
    step: Count
    head: Digest
    incarnation: Count
    samples: Count
    samples_per_second: Annotated[float, Field(ge=0, le=1e9)]
    boundary_seconds: Annotated[float, Field(ge=0, le=3600)]
    computed: Time = 0.0
    fixed: bool = False
    follower: bool = False
    client: bool = False
    time: Time

    @property
    def rank(self) -> tuple[tuple[int, str], int]:
        """Of two branches the one with the higher rank wins."""
        return self.term, self.step


def check_position(position: Position, run_id: str, most_samples: int) -> Position:
    """Raises ValueError unless it could be an honest peer's.

    :param most_samples: of one peer for one step
    """
    if position.run_id != run_id:
        raise ValueError("Position: of another run")
    if position.samples > most_samples:
        raise ValueError(f"Position: claims {position.samples} samples where {most_samples} are possible")
    return position
