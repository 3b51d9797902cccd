"""The world of agreement, with groups that form by themselves: the state machines of both, put together.

What the all-reduce adds is small here: members bring their contributions to the first reducer, which makes the group of
those that came.
"""

import hashlib
from collections.abc import Iterable
from math import inf
from typing import Any, NamedTuple

from dedloc_kit.records.position import Position
from dedloc_kit.swarm.consensus.messages import Group
from dedloc_kit.swarm.consensus.records import Entry
from dedloc_kit.swarm.gathering.batch import BatchFilling
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
from tests.simulation.gathering.simulation import EPOCH, HEARTBEAT, PATIENCE, Stream
from tests.simulation.peer import WORK, Peer, Process
from tests.simulation.simulation import RUN, Simulation
from tests.simulation.stories import STORIES

INVITED = 2 * PATIENCE
"""Seconds until a round is given up whose group nobody has made."""


class Brings(NamedTuple):
    """A member's contribution, for the first reducer; the others learn that the round has begun."""

    nonce: str
    entry: Entry
    promised: int


class Invited(NamedTuple):
    nonce: str
    group: Group | None


class GatheredProcess(Process):
    """A peer that finds its groups."""

    def __init__(self, simulation: "GatheredSimulation", peer: Peer, lag: int = 0) -> None:
        super().__init__(simulation, peer, lag)
        self.sim = simulation
        now = self.world.clock(self.name)
        self.table = PeerTable(self.name)
        self.told_time = 0.0
        self.told = self.tell()
        self.batch = BatchFilling(self.name, self.told, self.chain, self.table, simulation.options.minimum)
        me = Member(peer=self.name, client=peer.firewalled)
        self.gathering = Gathering(me, self.chain, self.table, self.batch, GatheringTimes(), self.world.random)
        self.attempt: Attempt | None = None
        self.begun_at = inf
        self.brought: dict[str, dict[str, Brings]] = {}
        self.numbers = 0
        self.to_leader: dict[str, int] = {}
        self.from_follower: dict[str, int] = {}
        self.looking = False
        self.looks_at = self.reported = self.batch_at = now

    # The directory

    def tell(self) -> Position:
        """Where this peer is now."""
        self.told_time = max(self.told_time + 1e-3, EPOCH + self.world.now)
        return Position(
            run_id=RUN,
            term=self.head.term,
            step=self.head.step,
            head=self.head.previous,
            incarnation=self.votes.as_voter(self.head).incarnation,
            samples=self.contributions.samples,
            samples_per_second=self.peer.speed / WORK,
            boundary_seconds=WORK,
            follower=not self.peer.speed,
            client=self.peer.firewalled,
            time=self.told_time,
        )

    def report(self, now: float) -> None:
        self.told, self.reported = self.tell(), now
        self.sim.directory.put(self.name, self.told, self.told.time + SILENT)

    def looked(self, found: dict[str, Any] | None, now: float) -> None:
        self.looking, self.looks_at = False, now + self.batch.look_period(now)
        if found is not None and self.alive:
            self.table.look(found, now)
            if (self.told.head, self.told.samples) != (self.head.previous, self.contributions.samples):
                self.report(now)
            self._gather(Tick(), now)

    # Time

    @property
    def deadline(self) -> float:
        if self.votes.left:
            return super().deadline
        looks = inf if self.looking else self.looks_at
        times = (looks, self.reported + HEARTBEAT, self.batch_at, self.gathering.deadline, self.begun_at + INVITED)
        return min(super().deadline, *times)

    def tick(self, now: float) -> None:
        super().tick(now)
        if not self.alive or self.votes.left:
            return
        if not self.looking and now >= self.looks_at:
            self.looking = True
            wide = not self.table.alive() or self.table.looks % 10 == 0
            self.sim.directory.look(self.name, wide, lambda found: self.world.call(self.name, "looked", found))
        if now >= self.reported + HEARTBEAT:
            self.report(now)
        if now >= self.batch_at:
            self.batch_at = self.batch.deadline(now)
            if self.begun_at == inf and self.participant is None:
                self.batch.update(self.tell(), now, None if self.attempt is None else self.attempt.peers)
            self._begin_if_due(now)
        if now >= self.gathering.deadline:
            self._gather(Tick(), now)
        if now >= self.begun_at + INVITED:
            self._round_over(now)

    # Gathering

    def _gather(self, event: Any, now: float) -> None:
        self._carry_out(self.gathering.handle(event, now), now)

    def _carry_out(self, effects: Iterable[Any], now: float) -> None:
        for effect in effects:
            match effect:
                case Ask(leader):
                    self.numbers += 1
                    self.to_leader[leader] = self.numbers
                    join = Join(position=self.tell(), expects=len(self.gathering.expected(now)))
                    self._send(leader, Stream(self.numbers, join))
                case Answer(peer, verdict):
                    if peer in self.from_follower:
                        self._send(peer, Stream(-self.from_follower[peer], verdict))
                case Leave(leader):
                    if (number := self.to_leader.pop(leader, None)) is not None:
                        self._send(leader, Stream(number, None))
                case Stand(attempt):
                    self.sim.note("stands", self.name, len(attempt.members))
                    self.sim.attempts.add(attempt.nonce)
                    self.attempt = attempt
                case Disband():
                    self.attempt = None
        self._begin_if_due(now)

    def _reducers(self, attempt: Attempt) -> list[str]:
        able = [member.peer for member in attempt.members if not member.client]
        return sorted(able, key=lambda name: hashlib.sha256(f"{attempt.nonce} {name}".encode()).digest())

    def _begin_if_due(self, now: float, called: bool = False) -> None:
        attempt = self.attempt
        if attempt is None or self.begun_at < inf or not self.idle:
            return
        if not self.batch.may_begin(attempt.peers, called, now):
            return
        self.begun_at = now
        self._gather(Begun(), now)
        brings = Brings(attempt.nonce, self.entry(), self.votes.vote(self.head).promised.number)
        reducers = self._reducers(attempt)
        for reducer in reducers:
            if reducer != self.name:
                self._send(reducer, brings)
        if reducers[0] == self.name:
            self._bring(self.name, brings, now)
            self.world.after(PATIENCE, self.world.call, self.name, "invite", attempt)

    def _bring(self, source: str, brings: Brings, now: float) -> None:
        there = self.brought.setdefault(brings.nonce, {})
        there[source] = brings
        self._begin_if_due(now, called=self.attempt is not None and self.attempt.nonce == brings.nonce)
        if self.attempt is not None and there.keys() >= self.attempt.peers:
            self.invite(self.attempt, now)

    def invite(self, attempt: Attempt, now: float) -> None:
        """Make the group of those that have come."""
        if self.attempt is not attempt or self.participant is not None or self._reducers(attempt)[0] != self.name:
            return
        there = self.brought.pop(attempt.nonce, {})
        there = {name: each for name, each in sorted(there.items()) if each.entry.previous == self.head.previous}
        reducers = tuple(name for name in self._reducers(attempt) if name in there)
        entries = tuple(each.entry for each in there.values())
        if not reducers or not self.head.electorate.enough(entry.voter for entry in entries):
            return
        group = Group(
            run_id=RUN,
            part="",
            step=self.head.step,
            previous=self.head.previous,
            nonce=attempt.nonce,
            members=entries,
            reducers=reducers,
            first=1 + max(each.promised for each in there.values()),
        )
        for name in there:
            if name != self.name:
                self._send(name, Invited(attempt.nonce, group))
        self.invited(group, now)

    def _round_over(self, now: float) -> None:
        self.attempt, self.begun_at = None, inf
        self._gather(Over(), now)

    # What the rounds tell

    def receive(self, source: str, message: Any, now: float) -> None:
        match message:
            case Stream(number, Join() as join):
                self.from_follower[source] = number
                self._gather(Asked(source, join), now)
            case Stream(number, None):
                if self.from_follower.get(source) == number:
                    self._gather(Lost(source, False), now)
            case Stream(number, Verdict() as verdict):
                if self.to_leader.get(source) == -number:
                    self._gather(Answered(source, verdict), now)
            case Brings():
                self._bring(source, message, now)
            case Invited(nonce, group):
                if self.attempt is not None and self.attempt.nonce == nonce and group is not None:
                    self.begun_at = inf if self.participant is not None else self.begun_at
                    self.invited(group, now)
            case _:
                super().receive(source, message, now)

    def invited(self, group: Group, now: float) -> None:
        super().invited(group, now)
        if self.participant is not None:
            self.begun_at = now + 3600  # the round has timers of its own

    def failed(self, other: str, reason: str, now: float) -> None:
        super().failed(other, reason, now)
        self._gather(Lost(other, True), now)

    def _abort(self, reason: str, now: float) -> None:
        super()._abort(reason, now)
        self.batch.open(self.tell())
        self._round_over(now)

    def _moved(self, now: float) -> None:
        super()._moved(now)
        self.attempt, self.begun_at = None, inf
        self.batch.open(self.tell())
        self.report(now)
        self.looks_at = min(self.looks_at, now + 0.1)
        self._gather(Tick(), now)


class GatheredSimulation(Simulation):
    """Nobody knows everything: peers know each other from the directory."""

    def __init__(self, seed: int, minimum: int = 12, name: str = "") -> None:
        super().__init__(seed, minimum=minimum, name=name)
        self.directory = Directory(self.world, self._reach, lambda name: EPOCH + self.world.now)
        self.attempts: set[str] = set()

    @property
    def reproduction(self) -> str:
        return f"python -m tests.simulation.gathering rounds.{self.name} {self.seed}"

    def _reach(self, one: str, other: str) -> bool:
        return self.world.reachable(one, other)

    def _gather(self) -> None:
        """Not here."""

    def _start(self, peer: Peer, lag: int) -> None:
        peer.starts += 1
        if self.zeros:
            self.world.zero[peer.name] = self.random.uniform(-1e6, 1e6)
        peer.process = GatheredProcess(self, peer, lag)
        if peer.starts > 1:
            peer.process.ready_at += 1
        if not peer.firewalled:
            self.directory.add_node(peer.name)
        self.world.start(peer.name, peer.process)


def tell_rounds(name: str, seed: int) -> tuple[GatheredSimulation, float]:
    """One of the stories of agreement. Raises Violation."""
    sim = GatheredSimulation(seed, name=name)
    return sim, sim.run(STORIES[name](sim))
