"""The kinds of records in the directory: under which keys they lie, how large they may be, and how long they stay."""

import hashlib
from dataclasses import dataclass
from typing import Generic, TypeVar

from dedloc_kit.records.experts import HostOffer
from dedloc_kit.records.orders import Notice
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.stages import StageOffer
from dedloc_kit.records.steps import Contribution
from dedloc_kit.serving.offer import Release, Serving
from dedloc_kit.swarm.network.names import Names

R = TypeVar("R", Progress, Contribution, Notice, Serving, StageOffer, HostOffer, Release)

SHARES = 16
"""Keys over which the records of a kind are spread when there are many peers, besides the one for few."""


@dataclass(frozen=True)
class Kind(Generic[R]):
    """The limits of one kind of records; each peer has one of it."""

    record: type[R]
    bytes: int
    """Of one record with its signature."""
    seconds: float
    """That it may stay without being stored again."""
    may_leave: bool = False
    """Whether nil may stand in place of a record: its peer has left."""
    organizers: bool = False
    """Whether the organizer alone has one. It lies under one key."""

    def key(self, names: Names) -> str:
        """Where the records lie when they are few. Keys are named after the record's `wire` name."""
        return names.records(self.record.wire)

    def shares(self, names: Names) -> tuple[str, ...]:
        """Where they lie when they are many; see `share_of`."""
        return () if self.organizers else tuple(names.records(self.record.wire, at) for at in range(SHARES))

    def read(self, run_id: str, values: object) -> R | None:
        """The record of these plain values, none if its peer has left; raises ValueError."""
        if values is None and self.may_leave:
            return None
        record = self.record.parse(values)
        if record.run_id != run_id:
            raise ValueError(f"{self.record.__name__}: of another run")
        return record


PROGRESS = Kind(Progress, 4096, 60.0, may_leave=True)
SERVING = Kind(Serving, 4096, 60.0, may_leave=True)
STAGES = Kind(StageOffer, 4096, 60.0, may_leave=True)
HOSTS = Kind(HostOffer, 12_000, 60.0, may_leave=True)
"""Large where a host has experts in many layers of large grids."""
CONTRIBUTIONS = Kind(Contribution, 4096, 3600.0)
NOTICE = Kind(Notice, 12_000, 7 * 86400.0, organizers=True)
"""The last one stays for so long, should the organizer disappear."""
RELEASE = Kind(Release, 1024, 7 * 86400.0, organizers=True)
"""Likewise."""


def share_of(peer: str) -> int:
    """Which one of the shares the record of a peer belongs to."""
    return hashlib.sha256(peer.encode()).digest()[0] % SHARES
