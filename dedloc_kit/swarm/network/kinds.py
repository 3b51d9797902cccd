"""The kinds of records in the directory: under which keys they lie, how large they may be, and how long they stay."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

from dedloc_kit.records.experts import HostOffer
from dedloc_kit.records.orders import Notice
from dedloc_kit.records.progress import MAX_ROWS, Progress, RowSummary
from dedloc_kit.records.stages import StageOffer
from dedloc_kit.records.steps import Contribution
from dedloc_kit.serving.offer import Release, Serving
from dedloc_kit.swarm.network.names import Names

R = TypeVar("R", Progress, Contribution, Notice, RowSummary, Serving, StageOffer, HostOffer, Release)

SHARES = 16
"""Keys over which the records of a kind are spread when there are many peers, besides the one for few."""
CELLS = MAX_ROWS
"""Keys for the progress of peers that are divided into rows. A row is some whole cells, so a record stays where it is
however many rows there are, and who thinks of another number still finds it."""
COPIES = 8
"""Keys under each of which lies what all of them ask for, so that not all ask the same node."""
EPOCH = 256
"""Global steps in which a peer stays in its cell: nobody can choose by its id whom it stays with."""
AHEAD = 8
"""So many steps before the next epoch begins a peer is already seen in its next cell as well."""


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
    one_key: bool = False
    """Whether all lie under one key, however many peers there are."""
    in_cells: bool = False
    """Whether they lie in cells where peers are divided into rows."""

    copied: bool = False
    """Whether what all ask for where peers are divided into rows lies in copies: of `Progress`, the organizer's."""

    def key(self, names: Names) -> str:
        """Where the records lie when they are few. Keys are named after the record's `wire` name."""
        return names.records(self.record.wire)

    def shares(self, names: Names) -> tuple[str, ...]:
        """Where they lie when they are many; see `share_of`."""
        return (
            ()
            if self.organizers or self.one_key
            else tuple(names.records(self.record.wire, at) for at in range(SHARES))
        )

    def cells(self, names: Names) -> tuple[str, ...]:
        """Where they lie when their peers are divided into rows; see `cells_of`."""
        return tuple(names.cell(self.record.wire, cell) for cell in range(CELLS)) if self.in_cells else ()

    def copies(self, names: Names) -> tuple[str, ...]:
        """Where what all ask for lies as well when they are many."""
        return tuple(names.copy(self.record.wire, copy) for copy in range(COPIES)) if self.copied else ()

    def read(self, run_id: str, values: object) -> R | None:
        """The record of these plain values, none if its peer has left; raises ValueError."""
        if values is None and self.may_leave:
            return None
        record = self.record.parse(values)
        if record.run_id != run_id:
            raise ValueError(f"{self.record.__name__}: of another run")
        return record


PROGRESS = Kind(Progress, 4096, 60.0, may_leave=True, in_cells=True, copied=True)
SUMMARIES = Kind(RowSummary, 4096, 60.0, one_key=True, copied=True)
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


def cell_of(peer: str, step: int) -> int:
    """Which cell a peer is in when it holds the parameters of this global step."""
    return _cell_in(peer, step // EPOCH)


@lru_cache(8192)
def _cell_in(peer: str, epoch: int) -> int:
    return hashlib.sha256(f"{epoch} {peer}".encode()).digest()[0] % CELLS


def cells_of(peer: str, step: int) -> tuple[int, ...]:
    """Where its progress lies: in its cell, and shortly before an epoch ends in the next one too."""
    return tuple(dict.fromkeys((cell_of(peer, step), cell_of(peer, step + AHEAD))))
