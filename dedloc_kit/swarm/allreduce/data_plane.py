"""What of the vector travels in a round: parts to the owners of a row, sums to finishers, and the average to all."""

import hashlib
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.dispatch import Compose, Dispatch
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding
from dedloc_kit.swarm.allreduce.flow import ChunkFlow, Transmit
from dedloc_kit.swarm.allreduce.introductions import Introductions
from dedloc_kit.swarm.allreduce.link import Link
from dedloc_kit.swarm.allreduce.outbox import Outbox
from dedloc_kit.swarm.allreduce.parts import Average, Parts, Sums
from dedloc_kit.swarm.allreduce.plan import Assignment, Plan
from dedloc_kit.swarm.allreduce.recovery import Accepted, Recovery
from dedloc_kit.swarm.allreduce.reducing import Counted, Reducing, Values
from dedloc_kit.swarm.allreduce.reduction.keeping import Holding
from dedloc_kit.swarm.allreduce.reduction.reducer import MakeReducer
from dedloc_kit.swarm.allreduce.window import Meter
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

    :ivar flow: which chunks are here, and what follows from it
    :ivar average: as far as it has come
    :ivar meter: of the averages that this peer sends
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
        self.flow = ChunkFlow(plan, me)
        self.parts, self.sums = Parts(plan, coding, self.flow, holding.keep), Sums(plan, coding, self.flow)
        self.average = Average(plan, coding, holding.average)
        brings = bool(introductions.met[me].samples)
        self.outbox = Outbox(plan, me, coding, holding.own, brings, outlet.broken)
        values = Values(self.parts, self.sums, self.outbox.own, self._summed, self._made, outlet.broken)
        self.reducing = Reducing(plan, self.flow, coding, make_reducer, values)
        self.meter = Meter(len(plan.members))
        self._to_members, self._to_reducers = Dispatch(self.meter.sent), Dispatch()
        self.recovery = Recovery(self.average, accepted, outlet.ask, outlet.gave_wrong)
        self._group: Group | None = None
        self._options: Options | None = None
        self._coordinator = ""
        self._epoch: Epoch | None = None
        self._awaited: Epoch | None = None
        """The epoch whose proposal's average is being collected."""
        self._making: tuple[bytes, Assignment] = b"", plan.first
        """The name of the average that was last to be made, and by whom."""
        self._names: dict[int, bytes] = {}
        """Of chunks of what is averaged, by who finishes them."""
        self._reported: set[int] = set()
        self._shares: set[int] = set()
        self._foreseen: Counted | None = None
        self._withheld: list[tuple[Dispatch, int, Compose]] | None = None
        """Messages that wait until it is known what will be proposed; None if it is."""
        self.assign(None, plan.reducers, ())

    def join(self, group: Group, options: Options, coordinator: str) -> None:
        """What comes from now on is for this group."""
        self._group, self._options, self._coordinator = group, options, coordinator
        self._epoch = self._awaited = self._foreseen = None

    def assign(self, epoch: Epoch | None, reducers: Collection[int], gone: Collection[int]) -> None:
        """Another epoch: who reduces in it."""
        self._epoch, self._awaited = epoch, None
        self._reported, self._shares = set(), set()
        self.flow.assign(reducers)
        assignment = self.flow.assignment
        self.outbox.assign(assignment.parts(self._me), assignment.backups(self._me), gone)
        if epoch is not None:
            if self._me in reducers:
                self._outlet.post(*(PartsComplete(epoch, self._plan.members[other]) for other in self.flow.others))
            for member in range(len(self._plan.members)):
                self.complete_if_whole(member)
            self._foreseen = self._expected()
            if self._foreseen is not None:
                self._withheld = []
                self._begin(self._foreseen)
            self.foresee()

    # Parts

    def whole(self, member: int) -> bool:
        """Whether all is here of a member that this peer is to add up; of one in another row that is nothing."""
        if member == self._me or self._plan.rows[member] != self.flow.row:
            return True
        entry = self._introductions.met.get(member)
        return entry is not None and (not entry.samples or self.flow.whole(member))

    def counts(self, member: int) -> bool:
        """Whether all is here of a member, and it is what the group knows of it."""
        return self.whole(member) and (self._group is None or self._introductions.same(member, self._group))

    def complete_if_whole(self, member: int) -> None:
        """Report a member once, if everything of it is here and it is the one that the group knows."""
        mate = self._plan.rows[member] == self.flow.row
        if self._group is None or self._epoch is None or member in self._reported or not mate:
            return
        if not self.counts(member):
            return
        self._reported.add(member)
        self._outlet.post(PartsComplete(self._epoch, self._plan.members[member]))

    def take_part(self, member: int, number: int, sealed: bytes, unseal: Unseal) -> None:
        """Raises ValueError for what is no part of this member."""
        entry = self._introductions.met.get(member)
        if entry is None:
            raise ValueError("a part of a member that has not introduced itself")
        if self._plan.rows[member] != self.flow.row:
            raise ValueError("a part of a member of another row")
        self.parts.take(member, number, unseal(entry, number, sealed))
        self.reducing.stir()
        self.complete_if_whole(member)
        self.foresee()

    def take_sum(self, member: int, number: int, name: bytes, encoded: bytes) -> None:
        """Raises ValueError for what is no sum of this member's row."""
        self.sums.take(member, number, name, encoded)
        self.reducing.stir()

    @property
    def made_by(self) -> Assignment | None:
        """How the average that is here was made; None if it came whole from members that held it.

        In a later epoch others reduce, though the average of an earlier one may be decided.
        """
        name, assignment = self._making
        return assignment if name == self.average.name else None

    def forget(self, member: int) -> None:
        """Its parts are not all here, and no more of them are wanted."""
        self.parts.forget(member)
        self._introductions.forget(member)

    # Streams

    def open_up(self, reducer: int, link: Link) -> None:
        """There is a stream to a reducer."""
        self.outbox.open(reducer, link)
        self._to_reducers.open(reducer, link)

    def close_up(self, reducer: int) -> None:
        self._to_reducers.drop(reducer)

    def open_down(self, member: int, link: Link) -> None:
        """A member has opened a stream to this peer."""
        self._to_members.open(member, link)

    def close_down(self, member: int, link: Link) -> None:
        self._to_members.drop(member)
        self.recovery.drop(link)

    def gone(self, member: int) -> None:
        """Nothing comes from this member any more, and nothing goes there."""
        self.outbox.window.gone(member)

    def stop(self) -> None:
        """The round has failed here: nothing is averaged any more."""
        self.reducing.stop()
        self._to_members.clear()

    # Averages

    def _expected(self) -> Counted | None:
        """What will be proposed if everybody's parts come: it is averaged meanwhile."""
        group, epoch = self._group, self._epoch
        if group is None or epoch is None or epoch.number != group.first or not self.flow.mine:
            return None
        entries = [entry for entry in group.members if entry.samples or entry.peer == self._coordinator]
        return self._counted(group, entries)

    def foresee(self) -> None:
        """Once everything of everybody is here, it is known what will be proposed: so lines go both ways at once.

        Of several rows none knows the parts of the others.
        """
        if self._foreseen is None or self._group is None or self._awaited is not None or len(self._plan.teams) > 1:
            return
        if {self._places[peer] for peer in self._group.peers} <= self._reported:
            self._release()

    def _release(self) -> None:
        """Send what was withheld."""
        withheld, self._withheld = self._withheld, None
        for dispatch, to, message in withheld or ():
            dispatch.put(to, message)

    @property
    def owing(self) -> set[int]:
        """Reducers of which this peer lacks something of the proposal's average."""
        return set() if self._awaited is None else self.flow.owing

    def reduce(self, epoch: Epoch, entries: Sequence[Entry]) -> None:
        """Average these, send on what others lack of it, and collect the rest."""
        assert self._group is not None
        counted = self._counted(self._group, entries)
        self._awaited = epoch
        self._making = counted.name, self.flow.assignment
        self.recovery.forget()
        if self.average.name != counted.name:
            self.flow.forget_averages()
        self._begin(counted)
        self._release()
        self.average.begin(counted.name, self.flow.held)
        for number, encoded in list(self.reducing.averages.items()):
            if self.flow.assignment.makers[number] == self._me:
                self._made(number, encoded)
        self._take_early()
        self._average_came()

    def _take_early(self) -> None:
        """What came before this peer knew what is averaged, or who has died."""
        for source, number, name, encoded in self.average.held_back(self._is_wanted):
            with suppress(ValueError):  # it is not the sender of the present message
                self.take_average(source, number, name, encoded)

    def _begin(self, counted: Counted) -> None:
        if counted.name != self.flow.name:
            self._to_members.clear()
            self._to_reducers.clear()
            self._names = {}
            self._withheld = None if self._withheld is None else []
        self._transmit(self.flow.reduce(counted.name, counted.weights))
        if self.flow.mine:
            self.reducing.begin(counted)
        else:
            self.reducing.stop()

    def _name_of(self, number: int) -> bytes:
        """A chunk's name: what is averaged, and who finishes it, as far as it is known who reduces."""
        maker = self.flow.assignment.makers[number]
        if maker not in self._names:
            self._names[maker] = hashlib.sha256(self.flow.name + self._plan.members[maker].encode()).digest()
        return self._names[maker]

    def _is_wanted(self, number: int, name: bytes) -> bool:
        return self._collects and bool(self.flow.assignment.makers) and self._name_of(number) == name

    def fetch(self, epoch: Epoch | None, value: Value, holders: Sequence[str], failed: Collection[int]) -> None:
        """Obtain the average of a value, from these first."""
        group, self._awaited = self._group, epoch
        same = group is not None and set(value.counted) <= set(group.members)
        same = same and group is not None and self._name(group, value.counted) == self.average.name
        self.recovery.want(value, holders, same=same, coming=same and self._still_comes(failed))
        self._take_early()
        self._average_came()

    def _still_comes(self, failed: Collection[int]) -> bool:
        """Whether those who make and give what this peer lacks of the average still do."""
        making, living = self._making[1], self.flow.assignment.living - set(failed)
        lacking = [(making.makers[n], making.source(self._me, n)) for n in self.average.missing if making.rows]
        return all(maker in living and (giver in living or maker == self._me) for maker, giver in lacking)

    def take_average(self, source: int, number: int, name: bytes, encoded: bytes) -> None:
        """A chunk of an average. Raises ValueError if the source says two things, or it cannot be read."""
        if number >= len(self._plan.chunks):
            raise ValueError(f"there is no average {number}")
        if self.recovery.gives(source, name):
            self.average.take(source, number, encoded)
            self._average_came()
        elif self._is_wanted(number, name) and self.flow.accepts(source, number):
            self.average.take(source, number, encoded)
            self._transmit(self.flow.take(number))
            self._average_came()
        else:
            self.average.hold_back(source, number, name, encoded, owns=self.flow.giver(number) == source)

    @property
    def _collects(self) -> bool:
        """Whether the average that is collected is the one that is being made."""
        return self.average.name == self.flow.name != b""

    def _made(self, number: int, encoded: bytes) -> None:
        """This peer has finished a chunk."""
        self._transmit(self.flow.take(number))
        if self._collects:
            self.average.take(self._me, number, encoded)
            self._average_came()

    def _summed(self, number: int) -> None:
        """This peer has added up a chunk for a finisher in another row."""
        self._transmit(self.flow.sum_made(number))

    def _transmit(self, transmits: Sequence[Transmit]) -> None:
        for to, number, is_sum in transmits:
            dispatch = self._to_reducers if is_sum else self._to_members
            if is_sum:
                message = partial(wire.row_sum, number, self.flow.name, self.reducing.sums[number])
            else:
                own = self.flow.held[number] == self._me
                encoded = self.reducing.averages[number] if own else self.average.messages[number]
                message = partial(wire.average, number, self._name_of(number), encoded)
            if self._withheld is None:
                dispatch.put(to, message)
            else:
                self._withheld.append((dispatch, to, message))

    def _average_came(self) -> None:
        """Tell what is complete now of the average that is wanted."""
        epoch, average, events = self._awaited, self.average, list[Event]()
        if epoch is not None:
            new = self.flow.assignment.living - self.owing - self._shares
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
