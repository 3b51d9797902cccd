"""A member of a round of hundreds: the real participant and relay, and what comes to them over lines of their own."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import inf
from typing import ClassVar

from benchmarks.lib.line_world import World
from benchmarks.lib.row_data import Average, Given, Outgoing, Part, RowData, RowSum, Wanted
from dedloc_kit.swarm.allreduce.plan import Plan
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
    PartsComplete,
    PeerFailed,
    Persist,
    Received,
    Reduce,
    Send,
    Tick,
)
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.letters import (
    Alive,
    Brief,
    Certificate,
    Content,
    Delivered,
    Forged,
    Joining,
    Letter,
    Lost,
    Outcome,
    Packet,
    Pieces,
    Post,
    Pulse,
    decode,
)
from dedloc_kit.swarm.consensus.messages import Decided, Group, Options
from dedloc_kit.swarm.consensus.participant import Participant
from dedloc_kit.swarm.consensus.records import Entry, Epoch, Piece, Value, Voter
from dedloc_kit.swarm.consensus.relay import Relay
from dedloc_kit.swarm.consensus.tree import Tree

SIGNATURE_CHARACTERS = 1060
"""Of an RSA key, as `KeySigner` makes it."""
WRITE_SECONDS = 0.01
"""Until a vote is on disk."""


@dataclass
class Signatures:
    """Signatures that are none, but as long; every one that was made is known."""

    made: dict[str, tuple[str, bytes]] = field(default_factory=dict)

    def valid(self, author: str, content: bytes, signature: str) -> bool:
        return self.made.get(signature) == (author, content)


@dataclass(frozen=True)
class CountedSigner:
    signatures: Signatures
    peer: str

    def sign(self, content: bytes) -> str:
        made = self.signatures.made
        text = f"{len(made):016x}".ljust(SIGNATURE_CHARACTERS, "A")
        made[text] = self.peer, content
        return text


class CountingParticipant(Participant):
    """Looks for the silent at ticks alone: a thousand events of complete members would each look at a thousand."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, PartsComplete) and event.epoch == self.epoch and not self.ended:
            self._others.hear(event.member, now)
            self._now.complete(event.member)
            return self._report_if_due(now) if self._now.incomplete <= self._others.failed else []
        return super().handle(event, now)


class ExpandedOnce(Certificate):
    """All members of a group expand it alike, and check the same commit."""

    found: ClassVar[dict[tuple[Epoch, str], Decided]] = {}

    def expand(self, group: Group) -> Decided:
        key = self.epoch, self.value.average
        if key not in self.found:
            self.found[key] = super().expand(group)
        return self.found[key]


@lru_cache(4096)
def read_once(kind: str, body: str) -> Content | Brief:
    found = decode(kind, body)
    return ExpandedOnce(**dict(found)) if isinstance(found, Certificate) else found


@dataclass
class Shared:
    """What all members of a round have in common."""

    world: World
    instance: Instance
    plan: Plan
    tree: Tree
    options: Options
    samples: dict[str, int]
    break_off: bool
    signatures: Signatures = field(default_factory=Signatures)
    commits: dict[str, str] = field(default_factory=dict)
    """Of each member that has ended the round: the commit's link and the average's digest."""
    ended: dict[str, float] = field(default_factory=dict)
    counted: tuple[str, ...] = ()
    aborts: dict[str, str] = field(default_factory=dict)
    blamed: list[tuple[str, str, str]] = field(default_factory=list)
    trace: list[tuple[float, str, str]] = field(default_factory=list)
    verbose: bool = False
    sizes: dict[str, int] = field(default_factory=dict)

    @cached_property
    def places(self) -> Mapping[str, int]:
        return {peer: place for place, peer in enumerate(self.plan.members)}

    def note(self, who: str, what: str) -> None:
        self.trace.append((round(self.world.now, 2), who, what))
        if self.verbose:
            print("       ", *self.trace[-1], flush=True)

    def size_of(self, packet: Packet) -> int:
        pulse = self._once(packet.pulse) if packet.pulse is not None else 4
        places = 5 * (len(packet.alive) + len(packet.broken)) + 67 * len(packet.have or ())
        return 180 + pulse + places + sum(map(self._once, packet.letters))

    def _once(self, record: Letter | Pulse) -> int:
        if record.signature not in self.sizes:
            self.sizes[record.signature] = len(record.to_bytes())
        return self.sizes[record.signature]


class Member:
    """One peer of a round."""

    def __init__(self, shared: Shared, name: str) -> None:
        self.shared, self.world, self.name = shared, shared.world, name
        self.signer = CountedSigner(shared.signatures, name)
        root = shared.tree.reducers[0]
        self.relay = Relay(
            shared.tree,
            shared.instance.previous,
            root,
            self.signer,
            shared.signatures,
            shared.options.patience,
            self.world.now,
            Pieces(read_once),
        )
        self.leads = name == root
        self.place = shared.places[name]
        self.data = RowData(shared.plan, self.place)
        self.participant: Participant | None = None
        self.done = False
        self._joined: dict[str, Joining] = {}
        self._events: list[Event] = []
        self._early: list[tuple[int, Part | RowSum | Average]] = []
        self._busy = False
        self._heard: dict[str, float] = {}
        self._silent: set[str] = set()
        self._due = inf
        self._wanted = ""
        self._holders: list[str] = []
        self._ask_at = inf
        self._gather_until = inf
        row, reducers = shared.plan.teams[self.data.flow.row], set(shared.plan.reducers)
        others = [mate for mate in row if mate != self.place and (self.place in reducers or mate in reducers)]
        self.neighbours = [shared.plan.members[mate] for mate in others]
        self.world.receivers[name] = self.receive

    # The beginning

    def begin(self) -> None:
        now = self.world.now
        self._gather_until = now + self.shared.options.patience
        entry = self._entry().signed(self.signer)
        self._out(self.relay.join(Joining(entry=entry), now))
        self._send_all(self.data.begin())
        self._schedule()

    def _entry(self) -> Entry:
        samples = self.shared.samples[self.name]
        digest = hashlib.sha256(self.name.encode()).hexdigest()
        piece = Piece(hash=digest, samples=samples, weight=512 * samples)
        about = json.dumps(
            {
                "step": 1000,
                "session": "ab" * 8,
                "session_samples": 1000 * samples,
                "loss": 2.718281828459045,
                "name": f"volunteer {self.name}"[:32],
                "time": 1764425794.123,
                "bandwidth": 12500000.0,
                "version": "1.0.0",
            }
        )
        instance = self.shared.instance
        return Entry(
            run_id=instance.run_id,
            part=instance.part,
            previous=instance.previous,
            voter=Voter(self.name, 1),
            pieces=(piece,),
            about=about,
        )

    def _met(self, author: str, joining: Joining) -> None:
        """While contributions come there may be more."""
        self._joined[author] = joining
        if self.leads and self.participant is None and not self.done:
            self._gather_until = max(self._gather_until, self.world.now + self.shared.options.patience / 2)
            if len(self._joined) == len(self.shared.tree.members):
                self._form()

    def _form(self) -> None:
        """The first in rank makes the group of those who have come."""
        shared, order = self.shared, self.shared.tree.members
        self._gather_until = inf
        group = Group(
            run_id=shared.instance.run_id,
            part=shared.instance.part,
            step=shared.instance.step,
            previous=shared.instance.previous,
            nonce="ab" * 16,
            members=tuple(self._joined[peer].entry for peer in order if peer in self._joined),
            reducers=tuple(peer for peer in shared.tree.reducers if peer in self._joined),
            first=1 + max(each.promised for each in self._joined.values()),
        )
        shared.note(self.name, f"group of {len(group.members)}")
        self._out(self.relay.tell(group, self.world.now))
        self._start(group)

    def _start(self, group: Group) -> None:
        if self.participant is not None or self.done or self.name not in group.peers:
            return
        shared, vote = self.shared, self.shared.instance.first_vote(Voter(self.name, 1))
        self.participant = CountingParticipant(
            shared.instance, group, vote, shared.options, self.signer, shared.signatures
        )
        self._do(self.participant.start(self.world.now))

    # Events and effects

    def _handle(self, events: Iterable[Event]) -> None:
        self._events.extend(events)
        if self._busy or self.participant is None:
            return
        self._busy = True
        while self._events and self.participant is not None:
            events, self._events = self._events, []
            for event in events:
                if self.participant is not None:
                    self._do(self.participant.handle(event, self.world.now))
        self._busy = False

    def _do(self, effects: Sequence[Effect]) -> None:
        now, sends = self.world.now, []
        for effect in effects:
            match effect:
                case Send():
                    sends.append(effect)
                    continue
                case Persist(_, then):
                    self.world.after(WRITE_SECONDS, self._written, then)
                case Assign(epoch, reducers):
                    self.relay.follow(epoch.decider, now)
                    if self.participant is not None and epoch.decider == self.name:
                        self.shared.note(self.name, f"epoch {epoch.number}, {len(reducers)} reducers")
                    self._data(self.data.assign(epoch, self._places(reducers)))
                    early, self._early = self._early, []
                    for source, message in early:
                        self._take(source, message)
                case Reduce(_, _, counted):
                    if self.leads:
                        self.shared.note(self.name, f"proposal of {len(counted)}")
                    self._ask_at = inf
                    self._data(self.data.reduce(self._places(entry.peer for entry in counted)))
                case Fetch(epoch, value, holders):
                    self._fetch(epoch, value, holders)
                case Finish(commit):
                    self._finish(commit.link, commit.value.average, tuple(e.peer for e in commit.value.counted))
                case Abort(reason):
                    self.shared.aborts[self.name] = reason
                    self.participant, self.done = None, True
                case Blame(member, reason):
                    self.shared.blamed.append((self.name, member, reason))
        if sends:
            self._out(self.relay.send(sends, now))
        self._schedule()

    def _fetch(self, epoch: Epoch, value: Value, holders: Sequence[str]) -> None:
        """From one holder after the other; each member begins with another one."""
        self._wanted = value.average
        if self.data.average == value.average:
            self._handle([AverageComplete(epoch, value.average)])
            return
        first = self.place % max(1, len(holders))
        self._holders = [*holders[first:], *holders[:first]]
        comes = self.data.comes(self._places(entry.peer for entry in value.counted))
        self._ask_at = self.world.now + (self.shared.options.patience if comes else 0.0)

    def _ask(self) -> None:
        """Ask the next holder, unless the average is here or being made."""
        self._ask_at = inf
        if not self._holders or self.data.average == self._wanted:
            return
        self._holders.append(self._holders.pop(0))
        wanted = Wanted(self._wanted, dict(self.data.flow.held))
        self.world.send(self.name, self._holders[-1], wanted, 180 + 6 * len(wanted.held))
        self._ask_at = self.world.now + self.shared.options.patience

    def _places(self, peers: Iterable[str]) -> list[int]:
        return [self.shared.places[peer] for peer in peers]

    def _written(self, then: tuple[Send, ...]) -> None:
        if self.name not in self.world.dead:
            self._out(self.relay.send(then, self.world.now))
            self._schedule()

    def _finish(self, link: str, average: str, counted: tuple[str, ...]) -> None:
        if not self.shared.commits:
            self.shared.note(self.name, "has the first commit")
        self.shared.counted, self._wanted = counted, average
        self.shared.commits[self.name] = link
        self.participant, self._commit = None, link
        self._end_if_whole()

    def _end_if_whole(self) -> None:
        if self.name in self.shared.commits and not self.done and self.data.average == self._wanted:
            self.done = True
            self.shared.ended[self.name] = self.world.now

    def _out(self, outcomes: Sequence[Outcome]) -> None:
        events: list[Event] = []
        for outcome in outcomes:
            match outcome:
                case Post(to, packet):
                    self.world.send(self.name, to, packet, self.shared.size_of(packet))
                case Delivered(author, Joining() as joining):
                    self._met(author, joining)
                case Delivered(_, Group() as group):
                    self._start(group)
                case Delivered(author, message):
                    events.append(Received(author, message))  # type: ignore[arg-type]
                case Alive(member):
                    events.append(Heard(member))
                case Lost(member):
                    self.shared.note(self.name, f"{member} is lost")
                    events.append(PeerFailed(member, "its relay has lost it"))
                case Forged(member, reason):
                    self.shared.blamed.append((self.name, member, reason))
        self._handle(events)

    # The network

    def receive(self, source: str, message: Packet | Part | RowSum | Average | Wanted | Given) -> None:
        if isinstance(message, Packet):
            self._out(self.relay.receive(source, message, self.world.now))
            self._schedule()
        elif isinstance(message, Wanted):
            self._send_all(self.data.give(self.shared.places[source], message))
        elif isinstance(message, Given):
            if message.average == self._wanted != self.data.average:
                self._stirred()
                self._handle(self.data.take_given(message))
                self._end_if_whole()
        else:
            self._take(self.shared.places[source], message)

    def _take(self, source: int, message: Part | RowSum | Average) -> None:
        if self.data.epoch is None and not isinstance(message, Part):
            self._early.append((source, message))
            return
        match message:
            case Part():
                self._handle(self.data.take_part(source, message))
            case RowSum():
                self._data(self.data.take_sum(source, message))
            case Average():
                self._stirred()
                self._data(self.data.take_average(source, message))
                if self.participant is None:
                    self._end_if_whole()

    def _stirred(self) -> None:
        if self._ask_at < inf:
            self._ask_at = self.world.now + self.shared.options.patience

    def _data(self, found: tuple[list[Outgoing], list[Event]]) -> None:
        out, events = found
        self._send_all(out)
        self._handle(events)

    def _send_all(self, out: Iterable[Outgoing]) -> None:
        for each in out:
            self.world.send(
                self.name, self.shared.plan.members[each.to], each.message, each.size, bulk=True, tag=each.tag
            )

    def broke(self, other: str) -> None:
        """A stream to a neighbour broke."""
        if self.name in self.world.dead:
            return
        self._out(self.relay.failed(other, self.world.now))
        self._handle([PeerFailed(other, "broke off")])
        self._schedule()

    # Time

    def _signs_of_life(self) -> list[Event]:
        """Of neighbours: a stream that is silent for the patience is broken."""
        now, found = self.world.now, list[Event]()
        partners = {self.shared.plan.members[place] for place in self.data.flow.assignment.partners(self.place)}
        for peer in {*self.neighbours, *self.relay.neighbours, *partners}:
            if peer not in self.world.dead:
                self._heard[peer] = now
                found.append(Heard(peer))
            elif now - self._heard.setdefault(peer, now) > self.shared.options.patience and peer not in self._silent:
                self._silent.add(peer)
                self._out(self.relay.failed(peer, now))
                found.append(PeerFailed(peer, "fell silent"))
        return found

    @property
    def _deadline(self) -> float:
        deadline = min(self.relay.deadline, self._ask_at, self._gather_until if self.leads else inf)
        return min(deadline, self.participant.deadline) if self.participant is not None else deadline

    def _schedule(self) -> None:
        due = self._deadline
        if due < self._due:
            self._due = due
            self.world.at(due + 1e-6, self._tick, due)

    def _tick(self, due: float) -> None:
        if self._due != due or self.name in self.world.dead:
            return
        self._due, now = inf, self.world.now
        if self.participant is not None and now >= self.participant.deadline:
            self._handle([*self._signs_of_life(), Tick()])
        if self.leads and now >= self._gather_until:
            self._form()
        if now >= self.relay.deadline:
            self._out(self.relay.tick(now))
        if now >= self._ask_at:
            self._ask()
        self._schedule()
