"""How long calls to a stage peer take, as far as this driver has seen."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

WEIGHT = 0.2
"""Of the newest in an exponential average."""


def averaged(before: float | None, newest: float) -> float:
    """The exponential average with one more."""
    return newest if before is None else (1 - WEIGHT) * before + WEIGHT * newest


class Pace:
    """Of one stage peer.

    :ivar in_flight: calls that it has not answered
    """

    def __init__(self) -> None:
        self.in_flight = 0
        self.seconds: float | None = None
        """Of a call, while no other one of this driver waits there; None until the first one is answered."""

    @contextmanager
    def measured(self) -> Iterator[None]:
        """While it is called; what fails is not measured."""
        began, self.in_flight = time.monotonic(), self.in_flight + 1
        try:
            yield
            seconds = (time.monotonic() - began) / self.in_flight
            self.seconds = averaged(self.seconds, seconds)
        finally:
            self.in_flight -= 1


class HasPace(Protocol):
    @property
    def pace(self) -> Pace: ...

    @property
    def peer(self) -> str: ...


def finish(pace: Pace, usual: float) -> float:
    """Seconds until a call that is made now is expected to be answered; of whom nothing is known, the usual."""
    return (pace.in_flight + 1) * (usual if pace.seconds is None else pace.seconds)


def least_finish(peers: Iterable[HasPace]) -> str:
    """Whom to call: who is expected to answer first. There must be one."""
    peers = sorted(peers, key=lambda each: each.peer)
    known = [each.pace.seconds for each in peers if each.pace.seconds is not None]
    usual = min(known, default=1.0)  # who is not known is tried
    return min(peers, key=lambda each: finish(each.pace, usual)).peer
