"""A peer's chain in memory and on disk: its newest records, and the anchor before them."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.chain.anchor import Anchor, anchor_at
from dedloc_kit.swarm.consensus.chain import KEPT, Chain, ChainRecord, Change
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.records import Commit, Reset
from dedloc_kit.swarm.consensus.signing import WireRecord
from dedloc_kit.swarm.p2p.seams import Disk, Verifier

KEPT_BYTES = 32 * 2**20
"""Of all records of a part, on disk; in memory twice as much. A commit has some 3 kB for each peer."""
_RING = 2 * KEPT
"""Numbers of files. One that a crash has left over is overwritten in time."""
_AT_ONCE = 100
"""So many records are dropped together: each time the anchor is written anew."""

_log = logging.getLogger(__name__)


class _StoredAnchor(WireRecord):
    """:ivar first: the number of the record after the anchor; that of the anchor's commit is one less"""

    wire: ClassVar[str] = "chain/stored-anchor"

    first: Annotated[int, Field(ge=1, le=2**53)]
    committed: bool
    anchor: Anchor


class ChainStore:
    """The chain of one part.

    `adopt` changes it in memory, `flush` writes what is new. Each record is a file with a number; on disk is always an
    anchor and what follows it: a crash loses the newest records at most. Records of a branch that was left stay there
    until they are overwritten: they do not follow.
    """

    def __init__(
        self,
        disk: Disk,
        anchor: Anchor,
        commit: Commit | None,
        organizer: PeerId,
        verifier: Verifier,
        changed: Callable[[Change], None] = lambda change: None,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        """:param commit: the anchor's

        :param changed: is told of each change of the branch at once, but not of what `open` reads; it raises nothing
        """
        self._disk, self._organizer, self._verifier = disk, organizer, verifier
        self._changed, self._kept_bytes = changed, kept_bytes
        self._anchor, self._commit, self._first = anchor, commit, 1
        self.chain = Chain(anchor.instance(commit, organizer, verifier), verifier)
        self._sizes: list[int] = []
        self._anchored = 0
        """The number that the anchor on disk names; 0 if none is there."""
        self._written = 0
        """Below this number all files since the anchor are right."""
        self._lock = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        disk: Disk,
        genesis: Reset,
        part: str,
        organizer: PeerId,
        verifier: Verifier,
        changed: Callable[[Change], None] = lambda change: None,
        kept_bytes: int = KEPT_BYTES,
    ) -> "ChainStore":
        """Read the chain of this run's part; it begins at genesis if the disk has none."""
        start = Anchor(part=part, reset=genesis, coordinator=genesis.coordinator)
        store = cls(disk, start, None, organizer, verifier, changed, kept_bytes)
        try:
            if await store._read_anchor():
                await store._read_records()
        except (OSError, ValueError) as error:
            _log.warning("Of the steps on disk only those before step %d can be used: %s.", store.head.step, error)
        return store

    @property
    def head(self) -> Instance:
        return self.chain.head

    @property
    def part(self) -> str:
        return self._anchor.part

    # In memory

    def adopt(self, records: Sequence[ChainRecord]) -> Change:
        """As `Chain.adopt`. Old records are dropped."""
        change = self._adopt(records)
        if change.taken:
            self._changed(change)
        return change

    def _adopt(self, records: Sequence[ChainRecord]) -> Change:
        change = self.chain.adopt(records)
        if change.left:
            del self._sizes[len(self._sizes) - len(change.left) :]
            self._written = min(self._written, self._first + len(self._sizes))
        self._sizes += [len(files.encode(record)) for record in change.taken]
        self._trim()
        return change

    def restart(self, anchor: Anchor, commit: Commit | None) -> None:
        """Begin anew where a state was taken. Raises ValueError if the anchor is not valid."""
        self._begin(anchor, commit, self._first + len(self._sizes) + 2)

    def _begin(self, anchor: Anchor, commit: Commit | None, first: int) -> None:
        if (anchor.reset.run_id, anchor.part) != (self.head.run_id, self.part):
            raise ValueError("an anchor of another run or part")
        self.chain = Chain(anchor.instance(commit, self._organizer, self._verifier), self._verifier)
        self._anchor, self._commit, self._first, self._sizes = anchor, commit, first, []

    def page(self, link: str, count: int, size: int) -> tuple[ChainRecord, ...]:
        """Return records after a link of this branch: the first one, and more up to these bounds."""
        records = self.chain.since(link)
        room, found = size, 0
        for each in self._sizes[len(self._sizes) - len(records) :][:count]:
            room -= each
            if room < 0 and found:
                break
            found += 1
        return records[:found]

    def anchor_at(self, link: str) -> tuple[Anchor, Commit | None]:
        """Where somebody begins who has the state at this link; raises KeyError."""
        if link == self._anchor.link(self._commit):
            return self._anchor, self._commit
        commits = [each for each in self.chain.records if each.link == link and isinstance(each, Commit)]
        return anchor_at(self.chain, link, self._anchor.reset), commits[0] if commits else None

    def _trim(self) -> None:
        if len(self._sizes) < KEPT + _AT_ONCE and sum(self._sizes) <= self._kept_bytes:
            return
        keep, room = 0, self._kept_bytes - self._kept_bytes // 8
        for size in reversed(self._sizes[-KEPT:]):
            room -= size
            if room < 0 and keep:
                break
            keep += 1
        count = len(self._sizes) - keep
        if not count:
            return
        self._anchor, self._commit = self.anchor_at(self.chain.records[count - 1].link)
        self.chain.trim(keep)
        del self._sizes[:count]
        self._first += count

    # On disk

    async def flush(self) -> bool:
        """Write what is new. Returns whether the whole chain is on disk."""
        async with self._lock:
            try:
                while self._anchored != self._first or self._written < self._first + len(self._sizes):
                    await (self._write_anchor() if self._anchored != self._first else self._write_record())
            except OSError as error:
                _log.warning("Steps cannot be written (%s): after a restart they are fetched again.", error)
                return False
        return True

    async def _write_anchor(self) -> None:
        before, first, anchor, commit = self._anchored, self._first, self._anchor, self._commit
        if commit is not None and self._written < first:
            await files.write(self._disk, self._name(first - 1), files.encode(commit))
        stored = _StoredAnchor(first=first, committed=commit is not None, anchor=anchor)
        await files.write(self._disk, self._anchor_name, files.encode(stored))
        self._anchored, self._written = first, max(self._written, first)
        if before:
            for number in range(max(before - 1, first - _RING), first - 1):
                await self._disk.remove(self._name(number))

    async def _write_record(self) -> None:
        number, first = self._written, self._first
        record = self.chain.records[number - first]
        await files.write(self._disk, self._name(number), files.encode(record))
        if self._written == number and record.link in self.chain:
            self._written = number + 1

    async def _read_anchor(self) -> bool:
        content = await files.read(self._disk, self._anchor_name)
        if content is None:
            return False
        stored = files.decode(content, _StoredAnchor)
        commit = None
        if stored.committed:
            content = await files.read(self._disk, self._name(stored.first - 1))
            if content is None:
                raise ValueError("the commit of the anchor is missing")
            commit = files.decode(content, Commit)
        self._begin(stored.anchor, commit, stored.first)
        self._anchored = self._written = stored.first
        return True

    async def _read_records(self) -> None:
        while (content := await files.read(self._disk, self._name(self._written))) is not None:
            record = files.decode(content, *files.RECORDS)
            if self.chain.previous_of(record) != self.head.previous:
                return  # of a branch that was left
            self._adopt([record])
            self._written += 1

    @property
    def _anchor_name(self) -> str:
        return f"anchor.{self.part}"

    def _name(self, number: int) -> str:
        return f"step-{number % _RING}.{self.part}"
