"""Positions as peers tell them, and a chain to be at."""

from typing import Any

from dedloc_kit.records.position import Position
from dedloc_kit.swarm.consensus.chain import Chain
from tests.swarm.consensus.table import HEAD, VERIFIER, instance

CLOCK = 1.7e9
"""The common time at the zero of the steady clocks."""


def position(at: float, head: str = HEAD, skew: float = 0.0, **more: Any) -> Position:
    """Told at that time of the steady clock, by a peer whose common clock is so much ahead."""
    plain: dict[str, Any] = {"run_id": "run", "term": (0, ""), "step": 7, "incarnation": 1, "samples": 0}
    return Position(
        head=head, time=CLOCK + at + skew, **{**plain, "samples_per_second": 0.0, "boundary_seconds": 0.0, **more}
    )


def chain(*voters: str, coordinator: str = "p0") -> Chain:
    """A chain whose head is decided by these, of equal weight."""
    return Chain(instance(dict.fromkeys(voters, 10), coordinator), VERIFIER)
