"""A peer of the simulated world: a disk that outlives it, and a process that puts the state machines together."""

import hashlib
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from dedloc_kit.swarm.consensus.chain import Chain, ChainRecord, Change
from dedloc_kit.swarm.consensus.contributions import Contributions, Orders
from dedloc_kit.swarm.consensus.events import (
    Abort,
    Assign,
    AverageComplete,
    Blame,
    Effect,
    Event,
    Fetch,
    Finish,
    Heard,
    PeerFailed,
    Persist,
    Received,
    Reduce,
    Send,
    Tick,
    VoteLost,
)
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import Acceptance, Decided, Group, TooFew
from dedloc_kit.swarm.consensus.participant import Participant
from dedloc_kit.swarm.consensus.records import Commit, Entry, Goodbye, Piece, Reset, Vote, Voter
from dedloc_kit.swarm.consensus.resets import Branch, BranchChoice, ElectorateWatch, Position, new_reset
from dedloc_kit.swarm.consensus.votes import VoteBook, Write
from tests.simulation.data_plane import CHUNK_BYTES, ZERO, Average, DataPlane, Parts, Share, add, digest_of
from tests.simulation.keys import SimulatedSigner
from tests.simulation.world import Line

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

ASKED = 20.0
"""Seconds until a holder that was asked for an average is asked again."""
WORK = 2.0
"""Seconds between additions to a peer's samples."""


class AskAverage(NamedTuple):
    """Of a commit's or proposal's value, by its link."""

    link: str


class GivenAverage(NamedTuple):
    link: str
    average: Average


class Gone(NamedTuple):
    """This peer is not in this round."""

    group: str


class Alive(NamedTuple):
    """A member's sign of life; data that is long on its way over a slow line would be one as well."""

    group: str


class Where(NamedTuple):
    position: Position


class Known(NamedTuple):
    """A stretch of a branch, with the averages of its commits by link."""

    records: tuple[ChainRecord, ...]
    averages: dict[str, Average]


class Left(NamedTuple):
    """What a peer has rolled back."""

    records: tuple[ChainRecord, ...]
    averages: dict[str, Average]


@dataclass
class Disk:
    """What is there after a restart. :ivar delay: seconds that a write of the vote takes"""

    vote: Vote | None = None
    accepted_average: Average | None = None
    records: tuple[ChainRecord, ...] = ()
    averages: dict[str, Average] = field(default_factory=dict)
    signed: Reset | None = None
    delay: float = 0.01
    full: bool = False


@dataclass
class Peer:
    """A machine in somebody's home. :ivar speed: samples that it computes in two seconds"""

    name: str
    line: Line
    speed: int
    firewalled: bool = False
    disk: Disk = field(default_factory=Disk)
    incarnation: int = 1
    starts: int = 0
    process: "Process | None" = None
    bad_disk: bool = False


class Process:
    """Everything of a peer that dies with it."""

    def __init__(self, simulation: "Simulation", peer: Peer, lag: int = 0) -> None:
        """:param lag: so many of the newest records on disk are lost"""
        self.simulation, self.world, self.peer, self.name = simulation, simulation.world, peer, peer.name
        self.policy, self.disk = simulation.policy, peer.disk
        self.signer = SimulatedSigner(simulation.seed, peer.name)
        self.verifier = simulation.verifier
        self.leads = peer.name == simulation.coordinator
        genesis = Instance.genesis(simulation.genesis, "", simulation.organizer.peer, self.verifier)
        self.chain = Chain(genesis, self.verifier)
        self.votes = VoteBook(Voter(peer.name, peer.incarnation), self.disk.vote)
        self.contributions, self.orders = Contributions(), Orders()
        self.states: dict[str, Average] = {genesis.previous: ZERO}
        self.averages: dict[str, Average] = {}
        """Of commits on this branch, and of the value accepted last, by link."""
        self.left_averages: dict[str, Average] = {}
        """Of branches that were left, at the coordinator."""
        self.counted: dict[str, Piece] = {}
        self.rolled_back: dict[str, Piece] = {}
        self.offered: dict[str, Piece] = {}
        self.generated = self.ledger_total = 0
        self.participant: Participant | None = None
        self.data: DataPlane | None = None
        self.pending: Commit | None = None
        self.wants: Fetch | None = None
        self.asked: dict[tuple[str, str], float] = {}
        self.over: dict[str, Commit | None] = {}
        self.early: dict[str, list[tuple[str, Any]]] = {}
        self.alive = True
        now = self.world.clock(self.name)
        self.ready_at, self.asks_at = now, now + self.world.random.random()
        self.works_at = now + self.world.random.random()
        self.began = self.lives_at = now
        self.watch = ElectorateWatch(simulation.reset_options, now)
        self.choice = BranchChoice(simulation.reset_options)
        self.signing: Reset | None = None
        self._events: deque[Event] = deque()
        self._busy = False
        self._load(lag)

    # The branch

    @property
    def head(self) -> Instance:
        return self.chain.head

    def _load(self, lag: int) -> None:
        records = list(self.disk.records)
        while lag and records and isinstance(records[-1], Commit):
            records.pop()
            lag -= 1
        self.averages.update(self.disk.averages)
        self._take(self.chain.adopt(records), quiet=True)
        if self.leads and self.disk.signed is not None and self.disk.signed.link not in self.chain:
            with suppress(ValueError):  # it was signed on records that this disk has lost
                self._take(self.chain.adopt([self.disk.signed]), quiet=True)
        vote = self.disk.vote
        if vote is not None and vote.value is not None and self.disk.accepted_average is not None:
            self.averages[vote.value.link] = self.disk.accepted_average

    def _take(self, change: Change, quiet: bool = False) -> None:
        for record in change.taken:
            state = self.states[self.chain.previous_of(record)]
            self.states[record.link] = add(state, self.averages[record.link]) if isinstance(record, Commit) else state
            if not quiet:
                self.simulation.watch.applied(self, record)
        moved = self.contributions.follow(change, self._new_digest())
        for piece in moved.rolled_back:
            self.offered[piece.hash] = self.rolled_back[piece.hash] = piece
            self.counted.pop(piece.hash, None)
        for piece in moved.counted:
            self.counted[piece.hash] = piece
            self.rolled_back.pop(piece.hash, None)
        self.orders.follow(change)

    def adopt(self, records: Iterable[ChainRecord], averages: dict[str, Average], now: float) -> None:
        """Follow a branch that is ahead; tell the coordinator what was left for it."""
        records = tuple(records)
        known = {**averages, **self.averages}
        commits = [record for record in records if isinstance(record, Commit)]
        if any(digest_of(known.get(commit.link, ())) != commit.value.average for commit in commits):
            self.simulation.watch.refused(self, "an average is not the one that the commit names")
            return
        try:
            change = self.chain.adopt(records)
        except ValueError as error:
            self.simulation.watch.refused(self, str(error))
            return
        if not change.taken:
            return
        self.averages.update({commit.link: known[commit.link] for commit in commits})
        self._take(change)
        self._moved(now)
        if any(isinstance(record, Commit) for record in change.left):
            self.simulation.note("rolls back", self.name, len(change.left))
            left = Left(change.left, {r.link: known[r.link] for r in change.left if isinstance(r, Commit)})
            if self.leads:
                self._offered(left, now)
            else:
                self._send(self.simulation.coordinator, left)

    def _offered(self, left: Left, now: float) -> None:
        self.left_averages.update(left.averages)
        self.choice.offer(self.chain, left.records, now)

    def _moved(self, now: float) -> None:
        """A new head: another instance of Paxos."""
        if self.participant is not None:
            self.over.setdefault(self.participant.group.id, None)
        self.participant = self.data = self.pending = self.wants = None
        self.asked = {}
        self.ready_at = now
        self.watch.moved(now)
        links = {record.link for record in self.chain.records}
        accepted = self.votes.vote(self.head).value
        keep = links | ({accepted.link} if accepted is not None else set())
        self.averages = {link: average for link, average in self.averages.items() if link in keep}
        self.disk.records = self.chain.records
        self.disk.averages = {link: average for link, average in self.averages.items() if link in links}

    # What this peer brings

    def _new_digest(self) -> str:
        count = len(self.offered)
        return hashlib.sha256(f"{self.name} {self.peer.starts} {count}".encode()).hexdigest()

    def entry(self) -> Entry:
        piece = self.contributions.freeze(self._new_digest())
        if piece is not None:
            self.offered[piece.hash] = piece
        entry = self.contributions.entry(self.head, self.votes.as_voter(self.head), self.orders.waiting)
        return entry.signed(self.signer)

    # Rounds

    @property
    def idle(self) -> bool:
        now = self.world.clock(self.name)
        return self.participant is None and self.pending is None and not self.votes.left and now >= self.ready_at

    @property
    def deadline(self) -> float:
        round_deadline = self.participant.deadline if self.participant is not None else inf
        lives_at = self.lives_at if self.participant is not None else inf
        return min(self.asks_at, self.works_at, self.choice.deadline, round_deadline, lives_at)

    def invited(self, group: Group, now: float) -> None:
        if not self.idle or group.id in self.over or group.previous != self.head.previous:
            self.over.setdefault(group.id, None)
            return
        vote = self.votes.vote(self.head)
        options = self.simulation.options
        try:
            machine = self.simulation.machines.get(self.name, self.simulation.participant)
            self.participant = machine(self.head, group, vote, options, self.signer, self.verifier)
        except ValueError as error:
            self.simulation.watch.refused(self, str(error))
            self.over[group.id] = None
            return
        self.data, self.began, self.lives_at = DataPlane(group, self.name), now, now + options.patience / 4
        self._busy = True
        self._do(self.participant.start(now), now)
        self._busy = False
        self._post()
        for source, message in self.early.pop(group.id, ()):
            self.receive(source, message, now)

    def _post(self, *events: Event) -> None:
        """One event after the other: what an event causes comes after its other effects."""
        self._events.extend(events)
        if self._busy:
            return
        now, self._busy = self.world.clock(self.name), True
        while self._events:
            event = self._events.popleft()
            if self.participant is not None:
                self._do(self.participant.handle(event, now), now)
        self._busy = False

    def _do(self, effects: list[Effect], now: float) -> None:
        for effect in effects:
            self._one(effect, now)
        participant = self.participant
        if participant is not None and not participant.ended and participant.deadline == inf:
            self.simulation.watch.violation(f"{self.name} waits without a timer")

    def _one(self, effect: Effect, now: float) -> None:
        data = self.data
        match effect:
            case Send(to, message):
                self._send(to, message)
            case Finish(commit):
                self._finish(commit, now)
            case Abort(reason):
                self._abort(reason, now)
            case Blame(member, reason):
                self.simulation.watch.blamed(self, member, reason)
            case Persist():
                self._persist(effect)
            case Assign(epoch, reducers) if data is not None:
                out, events = data.assign(epoch, reducers)
                self._send_all(out)
                self._post(*events)
            case Reduce(epoch, name, counted) if data is not None:
                out, events = data.reduce(epoch, name, counted)
                self._send_all(out)
                self._post(*events)
            case Fetch():
                self._fetch(effect)
            case _:
                pass

    def _send_all(self, out: Iterable[Any]) -> None:
        for each in out:
            self._send(each.to, each.message)

    def _fetch(self, fetch: Fetch) -> None:
        self.wants = fetch
        if not self._have_wanted() and fetch.value.link not in self.averages:
            for holder in dict.fromkeys((*fetch.holders, fetch.epoch.decider)):
                self._ask_average(holder, fetch.value.link)

    def _ask_average(self, holder: str, link: str) -> None:
        """A transfer that may be under way is not begun again."""
        now = self.world.now
        if holder != self.name and now >= self.asked.get((holder, link), -inf) + ASKED:
            self.asked[holder, link] = now
            self._send(holder, AskAverage(link))

    def _have_wanted(self) -> bool:
        """Tell the participant of an average that it has asked for."""
        wants = self.wants
        if wants is None:
            return False
        average = self.averages.get(wants.value.link)
        if average is None and self.data is not None:
            average = self.data.average(wants.epoch)
        if average is None or digest_of(average) != wants.value.average:
            return False
        self.averages[wants.value.link] = average
        self._post(AverageComplete(wants.epoch, wants.value.average))
        return True

    def _finish(self, commit: Commit, now: float) -> None:
        assert self.participant is not None
        self.over[self.participant.group.id] = commit
        self.watch.round_took(now - self.began)
        self.pending, self.participant = commit, None
        self._take_pending(now)
        if self.pending is not None:
            self.asks_at = now + 1

    def _abort(self, reason: str, now: float) -> None:
        assert self.participant is not None
        self.simulation.note("aborts", self.name, reason)
        group = self.participant.group
        self.over[group.id] = None
        self.participant = self.data = self.wants = None
        self._tell_members(group, Gone(group.id))
        self.ready_at = now + self.world.random.uniform(0.2, 2)

    def _tell_members(self, group: Group, message: Any) -> None:
        for member in group.peers:
            if member != self.name:
                self._send(member, message)

    def _take_pending(self, now: float) -> None:
        commit = self.pending
        if commit is None:
            return
        average = self.averages.get(commit.link)
        if average is not None and digest_of(average) == commit.value.average:
            self.adopt([commit], {}, now)

    # The vote file

    def _persist(self, persist: Persist) -> None:
        if persist.average and persist.vote.value is not None and self.data is not None:
            link, average = persist.vote.value.link, self.data.average(persist.vote.promised)
            if average is not None and digest_of(average) == persist.vote.value.average:
                self.averages[link] = average
        if not self.policy.persist:  # a mutation: it forgets, and sends at once
            self.votes.persist(Persist(persist.vote, ()))
            self._send_all(Send(send.to, send.message) for send in persist.then)
            return
        for write in self.votes.persist(persist):
            self._write(write)

    def _write(self, write: Write) -> None:
        self.world.after(self.disk.delay, self._written, write)

    def _written(self, write: Write) -> None:
        if not self.alive:
            return
        if self.world.frozen(self.name):
            self.world.after(0.5, self._written, write)
            return
        full = self.disk.full
        if not full:
            self.disk.vote = write.vote
            if write.vote.value is not None and self.policy.stored:
                self.disk.accepted_average = self.averages.get(write.vote.value.link)
        for each in self.votes.written(not full):
            if isinstance(each, Write):
                self._write(each)
            else:
                self._send(each.to, each.message)
        if full:
            self._post(VoteLost())

    # Messages

    def _send(self, to: str, message: Any) -> None:
        if to == self.name:
            self._post(Received(to, message))
            return
        if self.peer.firewalled and self.simulation.peers[to].firewalled:
            return  # no stream between these two, and both know it
        message = self.simulation.lies(self.name, to, message)
        if message is None:
            return
        if isinstance(message, (Parts, Share)):
            self.world.send(self.name, to, message, 200 + CHUNK_BYTES * len(message.chunks), bulk=True)
        elif isinstance(message, GivenAverage):
            self.world.send(self.name, to, message, 8 * CHUNK_BYTES, bulk=True)
        else:
            self.world.send(self.name, to, message, 500)

    def receive(self, source: str, message: Any, now: float) -> None:
        match message:
            case Where(position):
                self._where(source, position, now)
            case Known(records, averages):
                self.adopt(records, averages, now)
            case Left() if self.leads and self.policy.choose:
                self._offered(message, now)
            case Left():
                pass
            case Goodbye():
                message.verify(self.verifier)
                if self.policy.goodbye:
                    self.watch.said_goodbye(message)
            case AskAverage(link):
                if link in self.averages:
                    self._send(source, GivenAverage(link, self.averages[link]))
            case GivenAverage(link, average):
                self._given(link, average, now)
            case _ if not self.votes.left:
                self._of_round(source, message, now)

    def _given(self, link: str, average: Average, now: float) -> None:
        value = self.pending.value if self.pending is not None else self.wants.value if self.wants is not None else None
        if value is None or value.link != link or digest_of(average) != value.average:
            return
        self.averages[link] = average
        if self.participant is not None:
            self._have_wanted()
        self._take_pending(now)

    def _of_round(self, source: str, message: Any, now: float) -> None:
        if self.participant is not None and message.group == self.participant.group.id:
            assert self.data is not None
            if isinstance(message, Parts):
                events = self.data.take_parts(source, message)
            elif isinstance(message, Share):
                events = self.data.take_share(message)
            elif isinstance(message, Gone):
                events = [PeerFailed(source, "is not in this round")]
            elif isinstance(message, Alive):
                events = []
            else:
                events = [Received(source, message)]
            self._post(Heard(source), *events)
        elif message.group in self.over:
            self._of_round_over(source, message, now)
        elif isinstance(message, Alive) and self.participant is None:
            pass  # it is not invited yet
        elif isinstance(message, Share) or self.participant is None:
            self.early.setdefault(message.group, []).append((source, message))
        elif not isinstance(message, Gone):
            self._send(source, Gone(message.group))

    def _of_round_over(self, source: str, message: Any, now: float) -> None:
        commit = self.over[message.group]
        if isinstance(message, Decided):
            self._decided_late(message.commit, now)
        if isinstance(message, Share) and self.pending is not None and self.data is not None:
            self.data.take_share(message)
            average = self.data.average(self.pending.accepted[0].epoch)
            if average is not None and digest_of(average) == self.pending.value.average:
                self.averages[self.pending.link] = average
                self._take_pending(now)
        if not isinstance(message, (Gone, TooFew, Acceptance, Decided, Share)):
            self._send(source, Gone(message.group) if commit is None else Decided(group=message.group, commit=commit))

    def _decided_late(self, commit: Commit, now: float) -> None:
        """A commit of a round that this peer has given up, or was never in."""
        if self.pending is not None or commit.previous != self.head.previous:
            return
        try:
            self.head.check_commit(commit, self.verifier)
        except ValueError:
            return
        if self.participant is not None:
            self.over.setdefault(self.participant.group.id, commit)
        self.pending, self.participant = commit, None
        self._take_pending(now)
        self.asks_at = min(self.asks_at, now + 0.5)

    def failed(self, other: str, reason: str, now: float) -> None:
        self._post(PeerFailed(other, reason))

    # Where peers are

    def position(self) -> Position:
        head = self.head
        return Position(head.term, head.step, head.previous, self.contributions.samples, self.votes.as_voter(self.head))

    def _where(self, source: str, theirs: Position, now: float) -> None:
        self.watch.heard(source, theirs, now)
        mine, other = self.chain.rank, (theirs.term, theirs.step)
        if mine > other:
            self._tell_known(source, theirs.head)
        elif mine < other:
            self._send(source, Where(self.position()))
        elif theirs.head != self.head.previous and not self.simulation.watch.forks:
            self.simulation.watch.violation(
                f"fork: two heads of one rank, step {theirs.step}: {self.name} and {source}"
            )
        elif self.pending is not None:
            self._send(source, Decided(group=self.pending.accepted[0].epoch.group, commit=self.pending))

    def _tell_known(self, to: str, after: str) -> None:
        records = self.chain.since(after)
        self._send(to, Known(records, {r.link: self.averages[r.link] for r in records if isinstance(r, Commit)}))

    # Time

    def tick(self, now: float) -> None:
        if not self.alive:
            return
        if self.participant is not None and now >= self.participant.deadline:
            self._post(Tick())
        if self.participant is not None and now >= self.lives_at:
            self.lives_at = now + self.participant.options.patience / 4
            self._tell_members(self.participant.group, Alive(self.participant.group.id))
        if now >= self.works_at:
            self.works_at = now + WORK
            if self.peer.speed and not self.votes.left:
                self.contributions.add(self.peer.speed, self.simulation.weight_of(self.peer.speed))
                self.generated += self.peer.speed
            if self.leads:
                self._watch_electorate(now)
        if self.leads and (branch := self.choice.choose(self.chain, now)) is not None and self.signing is None:
            self.sign(branch, (), now)
        if now >= self.asks_at:
            self._ask_around(now)

    def _ask_around(self, now: float) -> None:
        self.asks_at = now + (2 if self.participant is None else 5)
        others = [name for name in self.simulation.peers if name != self.name]
        asked = set(self.world.random.sample(others, min(2 if self.pending else 1, len(others))))
        if not self.leads:
            asked.add(self.simulation.coordinator)
        for other in sorted(asked):
            self._send(other, Where(self.position()))
        for write in self.votes.retry(self.head):
            self._write(write)
        if self.pending is not None:
            for holder in self.pending.holders:
                self._ask_average(holder, self.pending.link)

    def leave(self, now: float) -> None:
        """Say goodbye, and vote no more."""
        can_say = self.votes.may_vote(self.head)
        self.votes.leave()
        if self.participant is not None:
            self.over.setdefault(self.participant.group.id, None)
        self.participant = self.data = None
        if can_say:
            goodbye = Goodbye(run_id=self.head.run_id, part="", head=self.head.previous, voter=self.votes.voter)
            self._send(self.simulation.coordinator, goodbye.signed(self.signer))

    # The coordinator

    def _watch_electorate(self, now: float) -> None:
        me = self.votes.as_voter(self.head)
        if self.watch.tick(self.chain, me, self.participant, now) and self.signing is None and self.policy.resets:
            self.sign(Branch(self.head.previous, ()), self.watch.voters(self.chain, now), now)

    def sign(self, branch: Branch, voters: tuple[tuple[Voter, int], ...], now: float, chosen: bool = False) -> None:
        """Write a reset, then take it, then tell it."""
        if self.disk.full:
            return
        state = self.states[branch.base]
        for record in branch.records:
            if isinstance(record, Commit):
                state = add(state, self._any_average(record.link))
        unsigned = new_reset(self.chain, branch, self.votes.voter, digest_of(state), voters, chosen)
        self.signing = unsigned.signed(self.simulation.organizer)
        self.simulation.watch.signing(self, self.signing, "before")
        self.world.after(self.disk.delay, self._signed, self.signing, branch)

    def _any_average(self, link: str) -> Average:
        return self.averages.get(link) or self.left_averages[link]

    def _signed(self, reset: Reset, branch: Branch) -> None:
        if not self.alive:
            return
        now = self.world.clock(self.name)
        self.signing = None
        if self.disk.full or branch.base not in self.chain or self.head.term[0] >= reset.term:
            return
        self.disk.signed = reset
        averages = {r.link: self._any_average(r.link) for r in branch.records if isinstance(r, Commit)}
        self.adopt([*branch.records, reset], averages, now)
        self.simulation.watch.signing(self, reset, "after")
        if self.alive:
            for name in sorted(set(self.simulation.peers) - {self.name}):
                self._tell_known(name, "")
