"""What of the vector travels in a round: members' parts to their reducers, and the average to all members."""

import hashlib
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Protocol

from dedloc_kit.swarm.allreduce.encoding.feedback import Coding
from dedloc_kit.swarm.allreduce.introductions import Introductions
from dedloc_kit.swarm.allreduce.outbox import Outbox
from dedloc_kit.swarm.allreduce.parts import Average, Parts
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.allreduce.recovery import Accepted, Recovery
from dedloc_kit.swarm.allreduce.reducing import Counted, Reducing, Values
from dedloc_kit.swarm.allreduce.reduction.keeping import Holding
from dedloc_kit.swarm.allreduce.reduction.reducer import MakeReducer
from dedloc_kit.swarm.consensus.events import AverageComplete, Event, PartsComplete, ShareComplete
from dedloc_kit.swarm.consensus.messages import Group, Options
from dedloc_kit.swarm.consensus.records import Entry, Epoch, Value
from dedloc_kit.swarm.trust.labels import Brought, gradient_weights

Unseal = Callable[[Entry, int, bytes], bytes]


class Outlet(Protocol):
    """The round, as its data plane sees it."""

    def post(self, *events: Event) -> None: ...

    def ask(self, peer: str, message: bytes) -> int | None:
        """Ask a member for chunks; returns its place, None if there is no stream to it."""

    def gave_wrong(self, member: int) -> None:
        """Everything of an average came from this member, and it is not the one that was asked for."""

    def averaged(self) -> None:
        """A whole average is here."""

    def broken(self, why: str) -> None:
        """The round cannot go on here, by this peer's own fault."""


class DataPlane:
    """Of one member in one round.

    :ivar owners: who reduces each chunk
    :ivar average: as far as it has come
    """

    def __init__(
        self,
        plan: Plan,
        me: int,
        introductions: Introductions,
        holding: Holding,
        coding: Coding,
        make_reducer: MakeReducer,
        accepted: Accepted,
        outlet: Outlet,
    ) -> None:
        self._plan, self._me, self._introductions, self._outlet = plan, me, introductions, outlet
        self._places = {peer: place for place, peer in enumerate(plan.members)}
        self.parts = Parts(plan, coding, me, holding.keep)
        self.average = Average(plan, coding, holding.average)
        brings = bool(introductions.met[me].samples)
        self.outbox = Outbox(plan, me, coding, holding.own, brings, outlet.broken)
        values = Values(self.outbox.own, self._made, outlet.broken)
        self.reducing = Reducing(plan, me, self.parts, coding, make_reducer, values)
        self.recovery = Recovery(self.average, accepted, outlet.ask, outlet.gave_wrong)
        self.owners: Sequence[int] = plan.first.makers
        self._group: Group | None = None
        self._options: Options | None = None
        self._coordinator = ""
        self._epoch: Epoch | None = None
        self._awaited: Epoch | None = None
        """The epoch whose proposal's average is being collected."""
        self._making: tuple[bytes, tuple[int, ...]] = b"", ()
        """The name of the average that was last to be made, and who reduced then."""
        self._reported: set[int] = set()
        self._shares: set[int] = set()
        self._foreseen: Counted | None = None
        self.assign(None, plan.reducers, ())

    def join(self, group: Group, options: Options, coordinator: str) -> None:
        """What comes from now on is for this group."""
        self._group, self._options, self._coordinator = group, options, coordinator
        self._epoch = self._awaited = self._foreseen = None

    def assign(self, epoch: Epoch | None, reducers: Collection[int], gone: Collection[int]) -> None:
        """Another epoch: who reduces in it."""
        self._epoch, self._awaited = epoch, None
        self._reported, self._shares = set(), set()
        self.owners = self._plan.assign(reducers).makers
        self.parts.assign(self.owners)
        self.outbox.assign(self.owners, tuple(gone))
        if epoch is not None:
            for member in range(len(self._plan.members)):
                self.complete_if_whole(member)
            self._foreseen = self._expected()
            if self._foreseen is not None:
                self.reducing.prepare(self._foreseen, sorted(self.parts.mine))
            self.foresee()

    # Parts

    def whole(self, member: int) -> bool:
        """Whether all is here of a member that this peer is to reduce."""
        entry = self._introductions.met.get(member)
        return member == self._me or (entry is not None and (not entry.samples or self.parts.whole(member)))

    def counts(self, member: int) -> bool:
        """Whether all is here of a member, and it is what the group knows of it."""
        return self.whole(member) and (self._group is None or self._introductions.same(member, self._group))

    def complete_if_whole(self, member: int) -> None:
        """Report a member once, if everything of it is here and it is the one that the group knows."""
        if self._group is None or self._epoch is None or member in self._reported or not self.counts(member):
            return
        self._reported.add(member)
        self._outlet.post(PartsComplete(self._epoch, self._plan.members[member]))

    def take_part(self, member: int, number: int, sealed: bytes, unseal: Unseal) -> None:
        """Raises ValueError for what is no part of this member."""
        entry = self._introductions.met.get(member)
        if entry is None:
            raise ValueError("a part of a member that has not introduced itself")
        self.parts.take(member, number, unseal(entry, number, sealed))
        self.reducing.part_came()
        self.complete_if_whole(member)
        self.foresee()

    @property
    def makers(self) -> tuple[int, ...]:
        """Who made each chunk of the average that is here; nobody if it came whole from members that held it.

        In a later epoch others reduce, though the average of an earlier one may be decided.
        """
        name, makers = self._making
        return makers if name == self.average.name else ()

    def forget(self, member: int) -> None:
        """Its parts are not all here, and no more of them are wanted."""
        self.parts.forget(member)
        self._introductions.forget(member)

    # Averages

    def _expected(self) -> Counted | None:
        """What will be proposed if everybody's parts come: it is averaged meanwhile."""
        group, epoch = self._group, self._epoch
        if group is None or epoch is None or epoch.number != group.first or not self.parts.mine:
            return None
        entries = [entry for entry in group.members if entry.samples or entry.peer == self._coordinator]
        return self._counted(group, entries)

    def foresee(self) -> None:
        """Once everything of everybody is here, it is known what will be proposed: so lines go both ways at once."""
        if self._foreseen is None or self._group is None or self._awaited is not None:
            return
        if {self._places[peer] for peer in self._group.peers} <= self._reported:
            self.reducing.begin(self._foreseen, sorted(self.parts.mine))

    @property
    def owing(self) -> set[int]:
        """Reducers of which this peer lacks some of the proposal's average."""
        return set() if self._awaited is None else {self.owners[number] for number in self.average.missing}

    def reduce(self, epoch: Epoch, entries: Sequence[Entry]) -> None:
        """Average these, send everybody this peer's share, and collect those of others."""
        assert self._group is not None
        counted = self._counted(self._group, entries)
        self._awaited = epoch
        self._making = counted.name, tuple(self.owners)
        self.recovery.forget()
        self.average.begin(counted.name, self.owners)
        if self.parts.mine:
            self.reducing.begin(counted, sorted(self.parts.mine))
        else:
            self.reducing.stop()
        for source, number, encoded in self.average.held_back():
            with suppress(ValueError):  # it is not the sender of the present message
                self.take_average(source, number, counted.name, encoded)
        self._average_came()

    def fetch(self, epoch: Epoch | None, value: Value, holders: Sequence[str], failed: Collection[int]) -> None:
        """Obtain the average of a value, from these first."""
        group, self._awaited = self._group, epoch
        same = group is not None and set(value.counted) <= set(group.members)
        coming = same and group is not None and self._name(group, value.counted) == self.average.name
        coming = coming and not any(self.owners[number] in failed for number in self.average.missing)
        self.recovery.want(value, holders, coming)
        self._average_came()

    def take_average(self, source: int, number: int, name: bytes, encoded: bytes) -> None:
        """A chunk of an average. Raises ValueError if the source says two things, or it cannot be read."""
        if number >= len(self.owners):
            raise ValueError(f"there is no average {number}")
        owns = self.owners[number] == source
        if self.recovery.gives(source, name) or (name == self.average.name and owns):
            self.average.take(source, number, encoded)
            self._average_came()
        else:
            self.average.hold_back(source, number, name, encoded, owns=owns)

    def _made(self, number: int, encoded: bytes) -> None:
        """This peer has averaged a chunk."""
        self.take_average(self._me, number, self.reducing.name, encoded)

    def _average_came(self) -> None:
        """Tell what is complete now of the average that is wanted."""
        epoch, average, events = self._awaited, self.average, list[Event]()
        if epoch is not None:
            new = set(self.owners) - self.owing - self._shares
            self._shares |= new
            events += [ShareComplete(epoch, self._plan.members[reducer]) for reducer in sorted(new)]
        if average.complete and average.name:
            self.recovery.completed()
        here = average.complete and bool(average.name)
        if here and epoch is not None:
            events.append(AverageComplete(epoch, average.digest))
        self._outlet.post(*events)
        if here:
            self._outlet.averaged()

    def _name(self, group: Group, entries: Sequence[Entry]) -> bytes:
        """Of the average of these entries, as reducers of this group make it."""
        counted = ",".join(entry.digest for entry in entries)
        return hashlib.sha256(f"average\0{group.id}\0{counted}".encode()).digest()

    def _counted(self, group: Group, entries: Sequence[Entry]) -> Counted:
        assert self._options is not None
        pairs = zip(entries, self._options.weigh(entries), strict=True)
        weights = gradient_weights([Brought(entry.samples, entry.weight, samples) for entry, samples in pairs])
        numbered = {self._places[entry.peer]: weight for entry, weight in zip(entries, weights, strict=True) if weight}
        return Counted(self._name(group, entries), numbered)
