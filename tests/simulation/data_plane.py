"""Gradients of whole numbers, and what one member of a round sends, keeps and adds up."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from dedloc_kit.swarm.consensus.events import AverageComplete, Event, PartsComplete, ShareComplete
from dedloc_kit.swarm.consensus.messages import Group
from dedloc_kit.swarm.consensus.records import Entry, Epoch, Piece

CHUNKS = 8
CHUNK_BYTES = 100_000
Average = tuple[int, ...]
ZERO: Average = (0,) * CHUNKS


class Parts(NamedTuple):
    """A member's chunks for one reducer; none if it has no samples."""

    group: str
    chunks: dict[int, int]


class Share(NamedTuple):
    """Chunks that a reducer has averaged for an epoch's proposal."""

    group: str
    epoch: Epoch
    name: str
    chunks: dict[int, int]


@dataclass(frozen=True)
class Outgoing:
    to: str
    message: Parts | Share


@lru_cache(100_000)
def gradient_of(piece: Piece) -> Average:
    data = hashlib.shake_128(piece.hash.encode()).digest(8 * CHUNKS)
    return tuple(int.from_bytes(data[8 * i : 8 * i + 8], "big") * piece.weight for i in range(CHUNKS))


def gradient(entry: Entry) -> Average:
    return add(*map(gradient_of, entry.pieces))


def add(*averages: Average) -> Average:
    return tuple(map(sum, zip(*averages, strict=True))) if averages else ZERO


def digest_of(average: Average) -> str:
    return hashlib.sha256(repr(average).encode()).hexdigest()


@lru_cache(10_000)
def owners(first: tuple[str, ...], living: tuple[str, ...]) -> tuple[str, ...]:
    """Who reduces each chunk; only the chunks of those who are gone move."""
    found = []
    for chunk in range(CHUNKS):
        at, skip = chunk % len(first), 1 + chunk // len(first)
        while first[at] not in living:
            at, skip = (at + skip) % len(first), 1
        found.append(first[at])
    return tuple(found)


class DataPlane:
    """One member's data in one round."""

    def __init__(self, group: Group, me: str) -> None:
        self.group, self.me = group, me
        self.entry = next(entry for entry in group.members if entry.peer == me)
        self._parts: dict[str, dict[int, int]] = {}
        self._shares: dict[tuple[Epoch, str], dict[int, int]] = {}
        self._names: dict[Epoch, str] = {}
        self._sent: set[tuple[int, str]] = set()
        self._introduced: set[str] = set()
        self._complete: set[str] = set()
        self._epoch: Epoch | None = None
        self._owners: tuple[str, ...] = ()
        self._reducers: tuple[str, ...] = ()

    @property
    def _owned(self) -> list[int]:
        return [chunk for chunk, owner in enumerate(self._owners) if owner == self.me]

    def assign(self, epoch: Epoch, reducers: tuple[str, ...]) -> tuple[list[Outgoing], list[Event]]:
        self._epoch, self._reducers, self._complete = epoch, reducers, set()
        self._owners = owners(self.group.reducers, reducers)
        mine = gradient(self.entry)
        deal: dict[str, dict[int, int]] = {reducer: {} for reducer in reducers}
        for chunk, owner in enumerate(self._owners):
            if self.entry.samples and (chunk, owner) not in self._sent:
                deal[owner][chunk] = mine[chunk]
                self._sent.add((chunk, owner))
        out = [
            Outgoing(to, Parts(self.group.id, chunks))
            for to, chunks in deal.items()
            if to != self.me and (chunks or to not in self._introduced)
        ]
        self._introduced.update(deal)
        if self.me in deal:
            self._parts.setdefault(self.me, {}).update(deal[self.me])
        return out, self._completed(list(self._parts))

    def take_parts(self, member: str, parts: Parts) -> list[Event]:
        self._parts.setdefault(member, {}).update(parts.chunks)
        return self._completed([member])

    def _completed(self, members: Iterable[str]) -> list[Event]:
        found: list[Event] = []
        samples = {entry.peer: entry.samples for entry in self.group.members}
        if self._epoch is None or self.me not in self._reducers:
            return []
        for member in members:
            there = self._parts[member]
            whole = not samples.get(member) or all(chunk in there for chunk in self._owned)
            if member in samples and member not in self._complete and whole:
                self._complete.add(member)
                found.append(PartsComplete(self._epoch, member))
        return found

    def reduce(self, epoch: Epoch, name: str, counted: tuple[Entry, ...]) -> tuple[list[Outgoing], list[Event]]:
        self._names[epoch] = name
        owned, names = self._owned, [entry.peer for entry in counted if entry.samples]
        there = [self._parts.get(each, {}) for each in names]
        if not owned or not all(chunk in parts for chunk in owned for parts in there):
            return [], self._averaged(epoch)
        share = Share(self.group.id, epoch, name, {chunk: sum(parts[chunk] for parts in there) for chunk in owned})
        out = [Outgoing(member, share) for member in self.group.peers if member != self.me]
        return out, self.take_share(share)

    def take_share(self, share: Share) -> list[Event]:
        there = self._shares.setdefault((share.epoch, share.name), {})
        for chunk, value in share.chunks.items():
            there.setdefault(chunk, value)
        return self._averaged(share.epoch)

    def _averaged(self, epoch: Epoch) -> list[Event]:
        if epoch != self._epoch or epoch not in self._names:
            return []
        there = self._shares.get((epoch, self._names[epoch]), {})
        missing = {owner for chunk, owner in enumerate(self._owners) if chunk not in there}
        found: list[Event] = [ShareComplete(epoch, r) for r in self._reducers if r not in missing]
        average = self.average(epoch)
        return [*found, AverageComplete(epoch, digest_of(average))] if average is not None else found

    def average(self, epoch: Epoch) -> Average | None:
        """Of an epoch's proposal, if it is all here."""
        there = self._shares.get((epoch, self._names.get(epoch, "")), {})
        return tuple(there[chunk] for chunk in range(CHUNKS)) if len(there) == CHUNKS else None
