"""One attempt of a group of peers to take a step.

Each member opens a stream to each reducer and sends those of its row its parts. The first reducer in rank makes the
group of all entries that came to it; from then on a `consensus.Participant` decides. Reducers average exactly those
that the proposal counts, and everybody gets the same encoded average, so all end with the same bits, or with none.
"""

import asyncio
import time
from collections.abc import Collection, Sequence

from dedloc_kit.records.steps import Absence
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.agreement import Agreement, GroupRefused, Setting, Votes
from dedloc_kit.swarm.allreduce.data_plane import DataPlane
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding
from dedloc_kit.swarm.allreduce.forming import Forming
from dedloc_kit.swarm.allreduce.introductions import Introductions
from dedloc_kit.swarm.allreduce.link import Link
from dedloc_kit.swarm.allreduce.plan import MAX_ROW, Plan
from dedloc_kit.swarm.allreduce.presence import Presence
from dedloc_kit.swarm.allreduce.reduction.keeping import DiskFailed, Holding
from dedloc_kit.swarm.allreduce.reduction.reducer import MakeReducer
from dedloc_kit.swarm.allreduce.relaying import Relaying
from dedloc_kit.swarm.allreduce.streams import OpenStream, Streams
from dedloc_kit.swarm.allreduce.watching import Watching
from dedloc_kit.swarm.allreduce.wire import GroupEnded, Kind
from dedloc_kit.swarm.consensus.events import Event, PartsLost, PeerFailed
from dedloc_kit.swarm.consensus.messages import Group, Message
from dedloc_kit.swarm.consensus.participant import Participant
from dedloc_kit.swarm.consensus.records import Commit, Entry, Epoch, Value
from dedloc_kit.swarm.network.service import Stream


class RoundFailed(Exception):
    """The round cannot be completed here."""


class Round:
    """Of one member.

    :ivar me: this peer's place among the members
    :ivar introduction: the first message of each stream that this peer opens
    :ivar longest_silence: seconds between two messages of a kind that belong together, at most
    """

    def __init__(
        self,
        setting: Setting,
        plan: Plan,
        entry: Entry,
        holding: Holding,
        coding: Coding,
        make_reducer: MakeReducer,
        votes: Votes,
        open_stream: OpenStream,
    ) -> None:
        self.setting, self.plan, self.entry = setting, plan, entry
        self.me = plan.members.index(entry.peer)
        self._places = {peer: place for place, peer in enumerate(plan.members)}
        self.introduction = wire.introduction(votes.vote(setting.instance).promised.number, entry)
        self.introductions = Introductions(setting.instance, plan, setting.verifier, setting.check)
        self.introductions.meet(self.me, self.introduction)
        self.presence = Presence(plan.members)
        self.forming = Forming(plan, setting.instance)
        self.streams = Streams(plan, self.me, setting.patience, open_stream, self)
        self.data = DataPlane(plan, self.me, self.introductions, holding, coding, make_reducer, votes, self)
        self.agreement = Agreement(setting, plan, votes, self)
        self.watching = Watching(self, setting.patience, setting.limit)
        self.relaying = Relaying(self) if len(plan.members) > MAX_ROW else None
        """Of a large group."""
        self.longest_silence = 0.0
        self._there: Sequence[int] | None = None
        """Places in the group of those whose parts came, if their samples were too few."""
        self._came: set[int] = set()
        """Members that have opened a stream to this peer."""
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def complete(self) -> Commit:
        """Take part until the step is decided and its average is here.

        Raises GroupRefused, or RoundFailed if this peer cannot complete it; another one may.
        """
        self.watching.begin()
        watching = asyncio.create_task(self.watching.run())
        self._connect(self.plan.reducers)
        if self.relaying is not None:
            self.relaying.begin()
        try:
            self.form_if_due()
            await asyncio.shield(self._end)
            assert self.agreement.commit is not None
            return self.agreement.commit
        finally:
            self.finish(RoundFailed("it was broken off"))
            self.data.outbox.stop()
            watching.cancel()
            if self.relaying is not None:
                self.relaying.stop()
            if self._end.exception() is None:
                self.streams.post_all(bytes([Kind.OVER]))
                self.streams.end()
            else:
                self.streams.post_all(self._gave_up())
                self.data.stop()
                await self.streams.close()

    def _connect(self, reducers: Collection[int]) -> None:
        """Have streams to those that reduce and decide for this peer."""
        if self.relaying is None:
            needed = {*self.plan.reducers, *self.forming.ranking[:1]}
        else:  # relays connect by themselves
            needed = set(self.plan.teams[self.plan.rows[self.me]]) & set(self.plan.reducers)
            needed |= {transfer.target for transfer in self.plan.assign(reducers).sums(self.me)}
        for member in sorted(needed):
            self.streams.connect(member)

    def finish(self, failure: Exception | None = None) -> None:
        """End it, unless it has ended."""
        if self._end.done():
            return
        if failure is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(failure)
            self._end.exception()  # maybe nobody waits any more: without this asyncio complains

    def _gave_up(self) -> bytes:
        return wire.gave_up(self.plan.members[self.me], self.presence.suspects)

    # What comes of it

    @property
    def over(self) -> bool:
        return self._end.done()

    @property
    def commit(self) -> Commit | None:
        """What was decided."""
        return self.agreement.commit

    @property
    def participant(self) -> Participant | None:
        return self.agreement.participant

    @property
    def counted(self) -> tuple[Entry, ...]:
        """Entries that count in the step."""
        return () if self.commit is None else self.commit.value.counted

    @property
    def present(self) -> tuple[Entry, ...]:
        """Entries of the group, or of those that came if there is no group. If its samples were too few, of those whose
        parts came."""
        group = self.agreement.group
        if group is None:
            return tuple(self.introductions.met.values())
        there = range(len(group.members)) if self._there is None else self._there
        return tuple(e for place, e in enumerate(group.members) if place in there or not e.samples)

    @property
    def average(self) -> list[bytes]:
        """The encoded average, as everybody got it."""
        return self.data.average.messages

    @property
    def culprits(self) -> set[str]:
        """Who fell silent, broke off or sent nonsense, as this peer saw it."""
        return self.presence.culprits

    @property
    def named(self) -> set[str]:
        """Who did so as others say."""
        return self.presence.named

    @property
    def absent(self) -> dict[str, Absence]:
        """Members that do not count, and why, as far as this peer saw it itself. Who brings nothing need not count."""
        counted = {entry.peer for entry in (self.counted if self.commit is not None else self.present)}
        lost = {self.plan.members[member] for member in self.presence.lost}
        idle = {entry.peer for entry in self.present if not entry.samples and entry.peer not in lost}
        return self.presence.absent(counted | idle)

    @property
    def upload_rate(self) -> float | None:
        """Bytes per second at which this peer's parts came to the reducers; if none did, its averages to members."""
        return self.data.outbox.window.rate or self.data.meter.rate or None

    @property
    def differing(self) -> list[tuple[Entry, Entry]]:
        """Pairs of entries of members that brought one to this peer and another one to the group."""
        group = self.agreement.group
        return [] if group is None else self.introductions.differing(group)

    @property
    def makers(self) -> tuple[str, ...]:
        """Who finished each chunk; nobody if this peer had it from others that held it."""
        made_by = self.data.made_by
        return () if made_by is None else tuple(self.plan.members[maker] for maker in made_by.makers)

    @property
    def owners(self) -> tuple[tuple[tuple[str, ...], frozenset[str]], ...]:
        """Of each row that counts who added up each chunk, and its members; nothing if this peer had the average from
        others that held it."""
        made_by, plan, peers = self.data.made_by, self.plan, self.plan.members
        return tuple(
            (tuple(peers[owner] for owner in owners), frozenset(peers[member] for member in team))
            for owners, team in zip(made_by.owners if made_by is not None else (), plan.teams, strict=False)
            if owners
        )

    # The group

    def form_if_due(self) -> None:
        """The first reducer in rank that lives makes the group of all that came."""
        if self.agreement.group is not None or self.over or self.forming.first(self.presence.failed) != self.me:
            return
        met, others = self.introductions.met, set(range(len(self.plan.members))) - {self.me}
        if self.watching.gathering and others - met.keys() - self.presence.lost:
            return
        if not any(reducer in met for reducer in self.forming.order):
            self.finish(RoundFailed("no reducer came"))
            return
        group = self.introductions.group(self.forming.order, self.setting.random.randbytes(16))
        try:
            self._join(self.me, group)
        except ValueError as error:
            self.finish(RoundFailed(str(error)))
            return
        if self.relaying is None:
            for member in others:
                self.streams.post(member, wire.group(group))

    def admit(self, member: int, promised: int, entry: Entry) -> None:
        """A member's entry has come through relays."""
        try:
            self.introductions.admit(member, promised, entry)
        except ValueError as error:
            self.fail(member, f"sent nonsense ({error!r:.100})", "sent nonsense", blame=True)
        else:
            self._lose_liars()
            self.form_if_due()

    def take_group(self, maker: int, group: Group) -> None:
        """A group has come through relays, of the first in rank that lives or, if no other is known, of one before."""
        try:
            if self.plan.members[self.me] in group.peers and maker in self.presence.failed:
                self.introductions.check(group)
                self._join(maker, group)
            else:
                self._take_group(maker, group)
        except ValueError as error:
            self.fail(maker, f"makes no group that can be ({error})", "sent nonsense", blame=True)

    def _take_group(self, sender: int, group: Group) -> None:
        """A group from the first in rank that lives, or from a member that knows it while this peer is that first one.

        Groups of others wait until all before them have failed. Raises ValueError for one that cannot be.
        """
        self.introductions.check(group)
        if self.plan.members[self.me] not in group.peers:
            group.check(self.setting.instance, self.setting.verifier)
            self.watching.came_too_late()
        elif self.forming.first(self.presence.failed) != self.me:
            self.forming.keep(sender, group)
            self._join_if_due()
        elif self.agreement.group is None:
            self._join(self.me, group)

    def _join_if_due(self) -> None:
        if not self.over and (due := self.forming.due(self.presence.failed)) is not None:
            maker, group = due
            try:
                self._join(maker, group)
            except ValueError as error:
                self.fail(maker, f"makes no group that can be ({error})", "sent nonsense", blame=True)

    def _join(self, maker: int, group: Group) -> None:
        """Raises ValueError for a group that cannot decide."""
        try:
            options = self.setting.options(group.members)
        except GroupRefused as refusal:
            self.finish(refusal)
            return
        participant = self.agreement.participant_of(group, options)
        self.forming.joined(maker)
        self.data.join(group, options, self.setting.instance.coordinator)
        if self.relaying is not None and maker == self.me:
            self.relaying.tell(group)
        self.agreement.join(group, participant)
        for member in self.presence.failed | self.presence.lost:
            self._post_loss(member)
        self._lose_liars()

    def _lose_liars(self) -> None:
        """Who brought one entry to this peer and another one to the group."""
        for entry, _ in self.differing:
            self.lose(self._places[entry.peer], "brought two entries", "sent nonsense", blame=True)

    # What the agreement asks for

    def now(self) -> float:
        return self.watching.now()

    def send(self, member: int, message: Message) -> None:
        if self.relaying is not None:
            self.relaying.send(self.plan.members[member], message)
        else:
            self.streams.post(member, wire.agreement(message))

    def tell(self, member: int, message: bytes) -> None:
        self.streams.post(member, message)

    def inquire(self, member: int, message: bytes) -> None:
        if self.relaying is None:
            self.streams.ask(member, message)

    def tell_all(self, message: bytes) -> None:
        self.streams.post_all(message)

    def assign(self, epoch: Epoch, reducers: Sequence[int]) -> None:
        useless = self.data.owing - set(reducers) - self.presence.failed
        self.presence.name(self.plan.members[reducer] for reducer in useless)
        self._connect(reducers)
        if self.relaying is not None:
            self.relaying.follow(epoch.decider)
        self.data.assign(epoch, reducers, self.presence.failed)

    def reduce(self, epoch: Epoch, entries: Sequence[Entry]) -> None:
        self.data.reduce(epoch, entries)

    def fetch(self, epoch: Epoch | None, value: Value, holders: Sequence[str]) -> None:
        first = self.me % max(1, len(holders))  # not all ask the same one first
        self.data.fetch(epoch, value, (*holders[first:], *holders[:first]), self.presence.failed)

    def messages(self) -> tuple[bytes, ...]:
        return tuple(self.data.average.messages)

    def decide(self) -> None:
        if (group := self.agreement.group) is not None:  # whose decider tells its members
            for peer in set(self.plan.members) - set(group.peers):
                self.agreement.answer(self._places[peer])
        self.averaged()

    def abort(self, reason: str, counted: Sequence[int]) -> None:
        group, participant = self.agreement.group, self.agreement.participant
        if reason == "too few samples" and group is not None and participant is not None:
            options, self._there = participant.options, counted
            samples = sum(options.weigh([group.members[place] for place in counted]))
            self.finish(GroupRefused(f"{samples} of {options.minimum} samples"))
        else:
            self.give_up(reason)

    def give_up(self, why: str) -> None:
        self.finish(RoundFailed(f"{why}: {self.presence.why}" if self.presence.why else why))

    def blame(self, member: int, reason: str) -> None:
        self.presence.blame(member, reason)

    def kept_waiting(self, member: int) -> None:
        # Where relays carry the agreement one of them may be why nothing came.
        self.fail(member, "kept everybody waiting", "fell silent", blame=self.relaying is None)

    def broken(self, why: str) -> None:
        self.presence.culprits.add(self.plan.members[self.me])
        self.finish(RoundFailed(why))

    # What the data plane asks for

    def post(self, *events: Event) -> None:
        self.agreement.post(*events)

    def ask(self, peer: str, message: bytes) -> int | None:
        member = self._places.get(peer, self.me)
        if member == self.me:
            return None
        if self.relaying is not None and member in self.forming.ranking and not self.streams.to(member):
            self.streams.connect(member)
            return member if self.streams.post(member, message) else None
        return member if self.streams.ask(member, message) else None

    def gave_wrong(self, member: int) -> None:
        self.presence.blame(member, "gave another average than the one that was decided")

    def averaged(self) -> None:
        commit, average = self.commit, self.data.average
        if commit is not None and average.complete and average.digest == commit.value.average:
            self.finish()

    # What streams tell

    def opened(self, member: int, link: Link) -> None:
        if member in self.plan.reducers:
            self.data.open_up(member, link)

    def closed(self, member: int) -> None:
        self.data.close_up(member)

    def heard(self, member: int, link: Link, kind: Kind, content: bytes) -> None:
        match kind:
            case Kind.PART if not self.over:
                self.longest_silence = max(self.longest_silence, link.measure(kind))
                self.data.take_part(member, *wire.read_part(content), self.setting.unseal)
                link.post(bytes([Kind.CAME]))
            case Kind.CAME if link is self.streams.up.get(member):
                self.data.outbox.window.came(member)
            case Kind.CAME:
                self.data.meter.came(member)
            case Kind.AVERAGE:
                self.longest_silence = max(self.longest_silence, link.measure(kind))
                if not self.over:
                    self.data.take_average(member, *wire.read_average(content))
                link.post(bytes([Kind.CAME]))
            case Kind.SUM if not self.over:
                self.data.take_sum(member, *wire.read_average(content))
            case Kind.GROUP if self.relaying is None:
                if not self.over and member not in (self.forming.maker, *self.presence.failed):
                    self._take_group(member, Group.from_bytes(content))
            case Kind.WHICH if self.relaying is None:
                group = self.agreement.group
                if group is not None and bytes.fromhex(group.id) == content:
                    link.post(wire.group(group))
            case Kind.AGREEMENT:
                self.agreement.hear(member, content)
            case Kind.PACKET if self.relaying is not None:
                self.relaying.hear(member, content)
            case Kind.ASK:
                self.agreement.answer(member)
            case Kind.FETCH:
                self.data.recovery.give(link, wire.read_fetch(content))
            case Kind.PART | Kind.SUM:
                pass
            case _:
                raise ValueError(f"{kind.name} is not for members")

    def ended(self, member: int, error: Exception, *, up: bool) -> None:
        if self.over or member in self.streams.over:
            return
        whole = self.data.whole(member)
        if isinstance(error, GroupEnded):
            self.presence.name(error.blamed & set(self.plan.members))
            self.fail(member, "gave the round up", "left in the middle", blame=error.by_itself)
        elif isinstance(error, DiskFailed):
            self.broken(str(error))
        elif isinstance(error, ValueError):
            if not whole:
                self.data.forget(member)
            self.fail(member, f"sent nonsense ({error!r:.100})", "sent nonsense", blame=True)
        elif up:
            came = member in self.introductions.met
            self.fail(member, "broke off", "left in the middle" if came else "did not come", blame=came)
        elif member in self.streams.up:
            self.lose(member, "broke off", "left in the middle", blame=not whole)
        else:
            self.fail(member, "broke off", "left in the middle", blame=not whole)

    async def serve(self, sender: str, introduction: bytes, stream: Stream) -> None:
        """Serve a member that opened a stream to this peer."""
        member = self._places.get(sender, self.me)
        if member == self.me or member in self.streams.down:
            return
        link = Link(stream)
        link.heard = time.monotonic()
        try:
            if not introduction:
                raise ConnectionError("it turned away")
            self.introductions.meet(member, introduction)
        except (ValueError, OSError) as error:
            self.ended(member, error, up=False)
        failed = member in self.presence.failed or (self.over and self._end.exception() is not None)
        if failed or (member in self.presence.lost and member in self._came):
            await link.send(self._gave_up())
            await stream.closed()
            return
        self._came.add(member)
        self.streams.accept(member, link)
        self.data.open_down(member, link)
        try:
            self._come(member, link)
            await self.streams.serve(member, link, self._end)
        finally:
            self.data.close_down(member, link)

    def _come(self, member: int, link: Link) -> None:
        if self.relaying is not None:
            self.relaying.opened(member)
        elif (group := self.agreement.group) is not None:
            link.post(wire.group(group))
        self.agreement.answer(member)
        self._lose_liars()
        self.data.complete_if_whole(member)
        self.data.foresee()
        self.form_if_due()

    # Who is gone

    def lose(self, member: int, why: str, absence: Absence, *, blame: bool) -> None:
        """No more parts come from this member."""
        if not self.over and self.presence.lose(member, why, absence, blame=blame):
            self._post_loss(member)
            self.form_if_due()

    def fail(self, member: int, why: str, absence: Absence, *, blame: bool) -> None:
        """Nothing more comes from this member at all."""
        if self.over or not self.presence.fail(member, why, absence, blame=blame):
            return
        self.data.gone(member)
        self._post_loss(member)
        self._join_if_due()
        if self.relaying is not None:
            self.relaying.failed(member)
        self.form_if_due()
        if self.agreement.group is None and self.forming.first(self.presence.failed) is None:
            self.give_up("nobody is left to make a group")

    def _post_loss(self, member: int) -> None:
        if not self.data.counts(member):
            self.post(PartsLost(self.plan.members[member]))
        if member in self.presence.failed:
            self.post(PeerFailed(self.plan.members[member], self.presence.why))
