"""A world in which groups form by `Gathering`, batches fill, and peers catch up; rounds themselves are a referee's."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any, NamedTuple

from dedloc_kit.records.position import Position, check_position
from dedloc_kit.swarm.consensus.chain import Chain, ChainRecord
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.records import Commit, Entry, Epoch, PartReset, Piece, Reset, Voter
from dedloc_kit.swarm.consensus.resets import Branch, new_reset
from dedloc_kit.swarm.gathering.batch import BatchFilling, Fix
from dedloc_kit.swarm.gathering.catchup import (
    AskRecords,
    CatchUp,
    CatchUpOptions,
    Failed,
    Look,
    NoAnswer,
    Records,
    TakeRecord,
    TakeState,
)
from dedloc_kit.swarm.gathering.gathering import Gathering
from dedloc_kit.swarm.gathering.messages import (
    Answer,
    Answered,
    Ask,
    Asked,
    Attempt,
    Begun,
    Disband,
    Join,
    Leave,
    Lost,
    Member,
    Over,
    Stand,
    Tick,
    Verdict,
)
from dedloc_kit.swarm.gathering.peers import SILENT, PeerTable
from dedloc_kit.swarm.gathering.timing import GatheringTimes
from tests.simulation.directory import Directory
from tests.simulation.keys import SimulatedSigner, SimulatedVerifier
from tests.simulation.watch import Violation
from tests.simulation.world import Line, World

RUN = "run"
EPOCH = 1.7e9
HEARTBEAT, MISSED = 4.0, 10.0
PATIENCE = 5.0
"""Seconds that a round waits for a member that does not come."""
WITHIN, CALM = 150.0, 3
"""Seconds after the last fault, beside what batches take, until so many steps in a row count everybody."""


class Stream(NamedTuple):
    """What goes over one stream: from the peer that has opened it, or back."""

    number: int
    content: Join | Verdict | None


class Ask_(NamedTuple):
    """For records."""

    since: str


class Call(NamedTuple):
    """A member has begun the round of an attempt."""

    nonce: str


@dataclass
class Peer:
    """A machine. :ivar speed: samples a second; :ivar skew: of its common clock"""

    name: str
    speed: float
    client: bool
    incarnation: int = 1
    skew: float = 0.0
    starts: int = 0
    process: "Process | None" = None
    records: tuple[ChainRecord, ...] = ()


class Step(NamedTuple):
    """When a commit was made, and who counts in it."""

    when: float
    counted: frozenset[str]


Lie = Callable[["Process", str, Any], Any]
"""What a liar sends in place of a message to a peer (or to the directory, ""); None for nothing."""


class Process:
    """Everything of a peer that dies with it."""

    def __init__(self, sim: "GatheringSimulation", peer: Peer) -> None:
        self.sim, self.world, self.peer, self.name = sim, sim.world, peer, peer.name
        now = self.world.clock(self.name)
        genesis = Instance.genesis(sim.genesis, "", sim.organizer.peer, sim.verifier)
        self.chain, self.table = Chain(genesis, sim.verifier), PeerTable(peer.name)
        self.chain.adopt(peer.records)
        self.samples = self.later = 0.0
        self.computed = 0.0
        self.told_time = self.told_expires = 0.0
        self.reported = -inf
        self.told: Position | None = None
        self.looking = False
        self.random = Random(f"{sim.name} {sim.seed} {peer.name} {peer.starts}")
        self.looks_at = now + self.random.random()
        self.boundary = self.random.uniform(0.3, 1.5)
        self.works_at = now + self.boundary
        self.batch_at = now
        self.attempt: Attempt | None = None
        self.begun = False
        self.streams = 0
        self.to_leader: dict[str, int] = {}
        self.from_follower: dict[str, int] = {}
        self.batch = BatchFilling(self.name, self.position(), self.chain, self.table, sim.wanted)
        self.times = GatheringTimes()
        me = Member(peer=self.name, client=peer.client)
        self.gathering = Gathering(me, self.chain, self.table, self.batch, self.times, self.random)
        options = CatchUpOptions(averages=3)
        self.catch_up = CatchUp(self.name, peer.client, self.chain, self.table, options)

    # The clock and the directory

    def common_time(self) -> float:
        return EPOCH + self.world.now + self.peer.skew

    def position(self) -> Position:
        head = self.chain.head
        self.told_time = max(self.told_time + 1e-3, self.common_time())
        return Position(
            run_id=RUN,
            term=head.term,
            step=head.step,
            head=head.previous,
            incarnation=self.peer.incarnation,
            samples=int(self.samples),
            samples_per_second=self.peer.speed,
            boundary_seconds=self.boundary,
            computed=max(0.0, self.computed),
            fixed=hasattr(self, "batch") and self.batch.fixed,
            follower=not self.peer.speed,
            client=self.peer.client,
            time=self.told_time,
        )

    def report(self) -> None:
        self.reported, self.told = self.world.clock(self.name), self.position()
        self.told_expires = max(self.told_expires + 1e-3, self.told.time + SILENT)
        value = self.sim.lies(self, "", self.told.model_dump())
        self.sim.directory.put(self.name, value, self.told_expires)

    def look(self) -> None:
        self.looking = True
        now = self.world.clock(self.name)
        alive = self.table.alive()
        missed = any(now - self.table.told_at(peer) > MISSED for peer in alive)
        wide = not alive or missed or self.table.looks % 10 == 0
        self.sim.directory.look(self.name, wide, lambda found: self.world.call(self.name, "looked", found))

    def looked(self, found: dict[str, Any] | None, now: float) -> None:
        if self.sim.process(self.name) is not self:
            return
        self.looking, self.looks_at = False, now + self.batch.look_period(now)
        if found is None:
            self.looks_at = now + HEARTBEAT
            return
        seen: dict[str, Position | None] = {}
        for author, value in found.items():
            try:
                seen[author] = None if value is None else self.sim.parse(value)
            except ValueError:
                continue
        self.table.look(seen, now)
        if self.told is None or self._changed(self.told):
            self.report()
        self._do(self.gathering.handle(Tick(), now), now)
        self._catch_up(Look(self.begun), now)

    def _changed(self, told: Position) -> bool:
        mine = (self.chain.head.previous, int(self.samples), self.batch.fixed)
        return (told.head, told.samples, told.fixed) != mine

    # Time

    @property
    def deadline(self) -> float:
        now = self.world.clock(self.name)
        looks = inf if self.looking else self.looks_at
        works = self.works_at if self.peer.speed else inf
        times = [looks, works, self.reported + HEARTBEAT, self.catch_up.deadline, self.batch_at]
        gathers = self.gathering.deadline
        if gathers == inf and not self.begun:
            self.sim.violation(f"{self.name} gathers without a timer")
        return max(min(*times, gathers), now)

    def tick(self, now: float) -> None:
        if not self.looking and now >= self.looks_at:
            self.look()
        if self.peer.speed and now >= self.works_at:
            self._compute(now)
        if now >= self.reported + HEARTBEAT:
            self.report()
        if now >= self.batch_at:
            self._watch_batch(now)
        if now >= self.gathering.deadline:
            self._do(self.gathering.handle(Tick(), now), now)
        if now >= self.catch_up.deadline:
            self._catch_up(Look(self.begun), now)

    def _compute(self, now: float) -> None:
        self.works_at = now + self.boundary
        self.computed = self.common_time()
        if self.batch.fixed:
            self.later += self.peer.speed * self.boundary
        else:
            self.samples += self.peer.speed * self.boundary

    def _watch_batch(self, now: float) -> None:
        self.batch_at = self.batch.deadline(now)
        if self.begun:
            return
        self._part(self.batch.update(self.position(), now, None if self.attempt is None else self.attempt.peers))
        self._begin_if_due(now)

    def _part(self, effects: Iterable[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Fix):
                self.report()
            else:
                self.samples, self.later = self.samples + self.later, 0.0

    # Gathering

    def _do(self, effects: Iterable[Any], now: float) -> None:
        for effect in effects:
            if self.sim.verbose and not isinstance(effect, Stand | Disband):
                self.sim.note(self.name, type(effect).__name__, *_short(effect))
            match effect:
                case Ask(leader):
                    self.streams += 1
                    join = Join(position=self.position(), expects=len(self.gathering.expected(now)))
                    self.to_leader[leader] = self.streams
                    self._send(leader, Stream(self.streams, join), 1000)
                case Answer(peer, verdict):
                    number = self.from_follower.get(peer)
                    if verdict.verdict != "wait":
                        self.from_follower.pop(peer, None)
                    if number is not None:
                        self._send(peer, Stream(-number, verdict), 200)
                case Leave(leader):
                    number = self.to_leader.pop(leader, None)
                    if number is not None:
                        self._send(leader, Stream(number, None), 50)
                case Stand(attempt):
                    self.attempt = attempt
                    self.sim.stood(self, attempt)
                case Disband(reason):
                    self.sim.note("disbands", self.name, reason)
                    self.attempt = None
        self._begin_if_due(now)

    def _begin_if_due(self, now: float, called: bool = False) -> None:
        attempt = self.attempt
        if attempt is None or self.begun or not self.batch.may_begin(attempt.peers, called, now):
            return
        self.begun = True
        self.batch.fixed = True
        self._do(self.gathering.handle(Begun(), now), now)
        self.sim.begin(self, attempt)
        for peer in sorted((attempt.peers & self.sim.peers.keys()) - {self.name}):
            if not (self.peer.client and self.sim.peers[peer].client):
                self._send(peer, Call(attempt.nonce), 500)

    def _send(self, to: str, message: Any, size: int) -> None:
        message = self.sim.lies(self, to, message)
        if message is not None:
            self.world.send(self.name, to, message, size)

    def receive(self, source: str, message: Any, now: float) -> None:
        match message:
            case Stream(number, Join() as join):
                try:
                    check_position(join.position, RUN, 64 * self.sim.wanted)
                except ValueError:
                    return
                self.from_follower[source] = number
                self._do(self.gathering.handle(Asked(source, join), now), now)
            case Stream(number, None):
                if self.from_follower.get(source) == number:
                    del self.from_follower[source]
                    self._do(self.gathering.handle(Lost(source, False), now), now)
            case Stream(number, Verdict() as verdict):
                if self.to_leader.get(source) == -number:
                    self._do(self.gathering.handle(Answered(source, verdict), now), now)
            case Call(nonce):
                if self.attempt is not None and self.attempt.nonce == nonce:
                    self._begin_if_due(now, called=True)
            case Ask_(since):
                self._send(source, Records(source, self.chain.since(since)), 2000)
            case Records(records=records):
                self._catch_up(Records(source, records), now)

    def failed(self, other: str, reason: str, now: float) -> None:
        self.to_leader.pop(other, None)
        self.from_follower.pop(other, None)
        self._do(self.gathering.handle(Lost(other, True), now), now)
        self._catch_up(NoAnswer(other), now)

    # Rounds and the chain

    def round_over(self, attempt: Attempt, commit: Commit | None, failed: frozenset[str], now: float) -> None:
        if self.attempt is None or self.attempt.nonce != attempt.nonce or not self.begun:
            return
        self.attempt, self.begun = None, False
        self._do(self.gathering.handle(Over(failed - {self.name}, commit is not None), now), now)
        if commit is not None:
            self.adopt([commit], now)
        else:
            self._part(self.batch.open(self.position()))
            self.report()

    def adopt(self, records: Iterable[ChainRecord], now: float) -> None:
        change = self.chain.adopt(tuple(records))
        if not change.taken:
            return
        self.peer.records = self.chain.records
        counted = [
            entry for record in change.taken if isinstance(record, Commit) for entry in record.value.counted
            if entry.peer == self.name
        ]  # fmt: skip
        if self.begun:
            self.attempt, self.begun = None, False
            self.gathering.handle(Over(), now)
        self.samples = self.later if counted else self.samples + self.later
        self.later = 0.0
        self.batch.open(self.position())
        self.report()
        self.looks_at = min(self.looks_at, now + 0.1)
        self._do(self.gathering.handle(Tick(), now), now)
        self._catch_up(Look(), now)

    def _catch_up(self, event: Any, now: float) -> None:
        for effect in self.catch_up.handle(event, now):
            match effect:
                case AskRecords(peer, since):
                    self._send(peer, Ask_(since), 200)
                case TakeRecord(record, holders):
                    self._fetch([record], holders, 0.3)
                case TakeState(records, donors):
                    self._fetch(records, donors, 3.0)

    def _fetch(self, records: Iterable[ChainRecord], holders: tuple[str, ...], seconds: float) -> None:
        records = tuple(records)
        self.world.after(seconds * self.random.uniform(0.5, 2), self._fetched, records, holders)

    def _fetched(self, records: tuple[ChainRecord, ...], holders: tuple[str, ...]) -> None:
        if self.sim.process(self.name) is not self:
            return
        link = records[-1].link
        able = [self.sim.process(holder) for holder in holders if self.world.reachable(self.name, holder)]
        have = isinstance(records[-1], Reset) or any(p is not None and link in p.chain for p in able)
        self.world.call(self.name, "have" if have else "have_not", records)

    def have(self, records: tuple[ChainRecord, ...], now: float) -> None:
        self.adopt(records, now)

    def have_not(self, records: tuple[ChainRecord, ...], now: float) -> None:
        self._catch_up(Failed(), now)


def _short(effect: Any) -> tuple[Any, ...]:
    match effect:
        case Ask(leader):
            return (leader,)
        case Answer(peer, verdict):
            return peer, verdict.verdict, verdict.leader
    return (effect.leader,)


class Round:
    """A referee's round: the members that begin within the patience count, if they are a quorum with a full batch."""

    def __init__(self, sim: "GatheringSimulation", attempt: Attempt) -> None:
        self.sim, self.attempt = sim, attempt
        self.entries: dict[str, Entry] = {}
        self.over = False
        sim.world.after(PATIENCE, self.end)

    def join(self, process: Process) -> None:
        if self.over:
            failed = frozenset[str]()
            self.sim.world.after(PATIENCE, self.sim.world.call, process.name, "round_over", self.attempt, None, failed)
            return
        pieces: tuple[Piece, ...] = ()
        if process.samples >= 1:
            self.sim.pieces += 1
            hash = hashlib.sha256(f"{process.name} {self.sim.pieces}".encode()).hexdigest()
            pieces = (Piece(hash=hash, samples=int(process.samples), weight=int(process.samples)),)
        voter = Voter(process.name, process.peer.incarnation)
        entry = Entry(run_id=RUN, part="", previous=self.attempt.previous, voter=voter, pieces=pieces)
        self.entries[process.name] = entry.signed(self.sim.signers[process.name])
        if len(self.entries) == len(self.attempt.members):
            self.sim.world.after(0.5, self.end)

    def end(self) -> None:
        if self.over:
            return
        self.over = True
        sim = self.sim
        here = [name for name in sorted(self.entries) if sim.world.alive(name) and not sim.world.frozen(name)]
        hub = next((name for name in here if not sim.peers[name].client), None)
        here = [name for name in here if hub is not None and (name == hub or sim.world.reachable(hub, name))]
        commit = self.commit(here)
        failed = frozenset(self.attempt.peers - set(here))
        for name in sorted(self.entries):
            sim.world.after(
                sim.random.uniform(0.02, 0.3), sim.world.call, name, "round_over", self.attempt, commit, failed
            )

    def commit(self, here: list[str]) -> Commit | None:
        sim = self.sim
        processes = [process for name in here if (process := sim.process(name)) is not None]
        heads = {process.chain.head.previous for process in processes}
        if heads != {self.attempt.previous} or self.attempt.previous in sim.commits:
            return None
        head = processes[0].chain.head
        counted = [self.entries[name] for name in here]
        if sum(entry.samples for entry in counted) < sim.wanted or not head.electorate.enough(e.voter for e in counted):
            sim.note("too few", here, sum(entry.samples for entry in counted))
            return None
        average = hashlib.sha256("".join(entry.digest for entry in counted).encode()).hexdigest()
        value = head.value(counted, [entry.samples for entry in counted], average)
        epoch = Epoch(1, here[0], "")
        votes = [head.accepted(entry.voter, epoch, value).signed(sim.signers[entry.peer]) for entry in counted]
        made = Commit(value=value, accepted=tuple(votes))
        sim.made(made)
        return made


class GatheringSimulation:
    """
    :ivar wanted: samples of a batch
    """

    def __init__(self, seed: int, name: str = "", wanted: int = 100) -> None:
        self.seed, self.name, self.wanted = seed, name, wanted
        self.random = Random(f"gathering {name} {seed}")
        self.world = World(self.random)
        self.verifier, self.organizer = SimulatedVerifier(seed), SimulatedSigner(seed, "organizer")
        self.signers: dict[str, SimulatedSigner] = {}
        self.peers: dict[str, Peer] = {}
        self.coordinator = "p0"
        part = PartReset(part="", previous="", state="0" * 64)
        genesis = Reset(run_id=RUN, term=0, step=0, parts=(part,), coordinator=Voter("p0", 1))
        self.genesis = genesis.signed(self.organizer)
        self.directory = Directory(self.world, self.world.reachable, self._common_time)
        self.trace: list[tuple[Any, ...]] = []
        self.commits: dict[str, Commit] = {}
        self.steps: list[Step] = []
        self.full_at: dict[str, float] = {}
        self.waits: list[float] = []
        """Seconds from the full batch to the commit."""
        self.rounds: dict[str, Round] = {}
        self.liars: dict[str, Lie] = {}
        self.pieces = self._looked = 0
        self.mended = 0.0
        self.groups = set[str]()
        self.verbose = False
        self._parsed: dict[int, tuple[Any, Position | ValueError]] = {}
        self._no_quorum_since: float | None = None
        self.world.after(0.5, self._referee)

    @property
    def reproduction(self) -> str:
        return f"python -m tests.simulation.gathering {self.name} {self.seed}"

    def violation(self, text: str) -> None:
        raise Violation(f"{text} ({self.reproduction})")

    def note(self, *what: Any) -> None:
        self.trace.append((round(self.world.now, 2), *what))

    def _common_time(self, name: str) -> float:
        return EPOCH + self.world.now + self.peers[name].skew

    def parse(self, value: Any) -> Position:
        """Each value once, for thousands of looks see the same."""
        known = self._parsed.get(id(value))
        if known is None:
            try:
                known = value, check_position(Position.parse(value), RUN, 64 * self.wanted)
            except ValueError as error:
                known = value, error
            self._parsed[id(value)] = known
        if isinstance(known[1], ValueError):
            raise known[1]
        return known[1]

    # Peers

    def add(self, speed: float | None = None, client: bool = False, line: Line | None = None) -> Peer:
        """The first one is the coordinator, which computes nothing."""
        name = f"p{len(self.peers)}"
        speed = self.random.uniform(1, 8) if speed is None else speed
        peer = self.peers[name] = Peer(name, 0.0 if name == self.coordinator else speed, client)
        self.signers[name] = SimulatedSigner(self.seed, name)
        self.world.lines[name] = line or Line()
        self._start(peer)
        return peer

    def _start(self, peer: Peer) -> None:
        peer.starts += 1
        peer.process = Process(self, peer)
        if not peer.client:
            self.directory.add_node(peer.name)
        self.world.start(peer.name, peer.process)

    def process(self, name: str) -> Process | None:
        """If it lives."""
        return self.peers[name].process if self.world.alive(name) else None

    def processes(self) -> list[Process]:
        return [process for name in self.peers if (process := self.process(name)) is not None]

    def crash(self, peer: Peer) -> None:
        if self.world.alive(peer.name):
            self.note("dies", peer.name)
            self.world.kill(peer.name)

    def leave(self, peer: Peer) -> None:
        """It says so in the directory."""
        process = self.process(peer.name)
        if process is not None:
            self.note("leaves", peer.name)
            self.directory.put(peer.name, None, process.told_expires + 1)
            self.world.after(0.1, self.world.kill, peer.name)

    def restart(self, peer: Peer) -> None:
        if not self.world.alive(peer.name):
            self.note("returns", peer.name)
            self._start(peer)

    def lie(self, peer: Peer, how: Lie) -> None:
        self.liars[peer.name] = how

    def lies(self, process: Process, to: str, message: Any) -> Any:
        how = self.liars.get(process.name)
        return message if how is None else how(process, to, message)

    # Rounds

    def stood(self, process: Process, attempt: Attempt) -> None:
        self.groups.add(attempt.nonce)
        self.note("stands", process.name, len(attempt.members), attempt.nonce[:4])

    def begin(self, process: Process, attempt: Attempt) -> None:
        if attempt.nonce not in self.rounds:
            self.rounds[attempt.nonce] = Round(self, attempt)
        self.rounds[attempt.nonce].join(process)

    def made(self, commit: Commit) -> None:
        self.commits[commit.previous] = commit
        counted = frozenset(entry.peer for entry in commit.value.counted)
        here = {process.name for process in self.processes() if process.chain.head.previous == commit.previous}
        self.steps.append(Step(self.world.now, counted))
        self.waits.append(self.world.now - self.full_at.get(commit.previous, self.world.now))
        self.note("commit", commit.value.step, sorted(counted), f"without {sorted(here - counted)}")

    def _referee(self) -> None:
        """Notes when a batch is full; signs a reset for the coordinator if no quorum lives."""
        self.world.after(0.25, self._referee)
        filled: dict[str, float] = {}
        for process in self.processes():
            head = process.chain.head.previous
            filled[head] = filled.get(head, 0.0) + process.samples + process.later
        for head, samples in filled.items():
            if samples >= self.wanted:
                self.full_at.setdefault(head, self.world.now)
        leader = self.process(self.coordinator)
        if leader is None or self.world.frozen(self.coordinator):
            self._no_quorum_since = None
            return
        at = leader.chain.head
        there = [
            process for process in self.processes()
            if not self.world.frozen(process.name) and process.chain.head.previous == at.previous
            and (process is leader or self.world.reachable(leader.name, process.name))
        ]  # fmt: skip
        if at.electorate.enough(Voter(p.name, p.peer.incarnation) for p in there) or len(there) < 2:
            self._no_quorum_since = None
        elif self._no_quorum_since is None:
            self._no_quorum_since = self.world.now
        elif self.world.now > self._no_quorum_since + 20:
            self._no_quorum_since = None
            voters = tuple((Voter(p.name, p.peer.incarnation), 1) for p in there if p is not leader)
            reset = new_reset(leader.chain, Branch(at.previous, ()), Voter(leader.name, 1), "0" * 64, voters)
            self.note("reset", reset.step, len(voters))
            leader.adopt([reset.signed(self.organizer)], self.world.clock(leader.name))

    # What must hold

    def run(self, until: float) -> float:
        """The story; then all is mended, and soon each step counts all honest peers that live.

        :return: seconds from the mending until the first such step
        """
        world = self.world
        world.run(until)
        world.heal()
        for name in self.peers:
            world.thaw(name)
            self.peers[name].skew = 0.0
        self.restart(self.peers[self.coordinator])
        if len(self.processes()) < 2:
            self.add()
        self.mended = world.now
        self.note("mended")
        speed = sum(process.peer.speed for process in self.processes())
        world.run(self.mended + WITHIN + CALM * self.wanted / speed, stop=self._settled)
        return self.check_together()

    def check_together(self) -> float:
        """Seconds from the mending until everybody was in a step. Raises Violation."""
        whole = self._whole_steps()
        if not whole:
            steps = self.steps_since(self.mended)
            last = f"the last one without {sorted(self._lacking(steps[-1]))}" if steps else "none"
            self.violation(f"not together after all was mended: {len(steps)} steps, {last}")
        return whole[0][0] - self.mended

    def _settled(self) -> bool:
        return len(self.steps) != self._looked and len(self._whole_steps()) >= CALM

    def _whole_steps(self) -> list[Step]:
        """Steps that count everybody: the last ones, all in a row; any if somebody lies."""
        self._looked = len(self.steps)
        found: list[Step] = []
        for step in reversed(self.steps_since(self.mended)):
            if not self._lacking(step):
                found.insert(0, step)
            elif not self.liars:
                break
            if len(found) == CALM:
                return found
        return []

    def _lacking(self, step: Step) -> set[str]:
        living = {process.name for process in self.processes()} - set(self.liars)
        return living - step.counted

    def steps_since(self, when: float) -> list[Step]:
        return [step for step in self.steps if step.when > when]
