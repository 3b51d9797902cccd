"""A swarm from one seed: peers that join, die, return and lie; and what must hold in the end."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any

from dedloc_kit.swarm.consensus.messages import Group, Options
from dedloc_kit.swarm.consensus.participant import Participant
from dedloc_kit.swarm.consensus.records import Commit, PartReset, Reset, Voter
from dedloc_kit.swarm.consensus.resets import Branch, ResetOptions
from tests.simulation.data_plane import ZERO, digest_of
from tests.simulation.keys import SimulatedSigner, SimulatedVerifier
from tests.simulation.peer import Disk, Peer, Process
from tests.simulation.watch import Violation, Watch
from tests.simulation.world import Line, Pair, World

RUN = "run"
WITHIN = 120.0


@dataclass(frozen=True)
class Policy:
    """Defences outside the state machines; taken out, the simulation must notice.

    :ivar persist: a vote is on disk before it is sent
    :ivar incarnation: a peer without its vote file is another voter
    :ivar resets: the coordinator signs resets by itself
    :ivar choose: a branch that was left is chosen if it has more samples
    :ivar goodbye: a reset follows at once if all that are missing have said goodbye
    :ivar stored: the average that was voted for is on disk with the vote
    """

    persist: bool = True
    incarnation: bool = True
    resets: bool = True
    choose: bool = True
    goodbye: bool = True
    stored: bool = True


Hook = Callable[[Process, Reset, str], None]
Lie = Callable[[str, Any], Any]
"""What a liar sends in place of a message to a peer; None for nothing."""


class Simulation:
    """
    :ivar overlap: how often two overlapping groups form in place of one
    :ivar stale: how often a group begins with an epoch number from old records
    :ivar zeros: steady clocks begin anywhere, and jump as a machine starts again
    :ivar machines: of those who run another one than the others, by peer
    :ivar groups: by id
    :ivar trace: (virtual seconds, what happened)
    :ivar name: for the line that reproduces a failure
    """

    def __init__(self, seed: int, minimum: int = 12, policy: Policy | None = None, name: str = "") -> None:
        self.seed, self.name, self.policy = seed, name, policy or Policy()
        self.random = Random(f"{name} {seed}")
        self.world = World(self.random)
        self.watch = Watch(self)
        self.options, self.reset_options = Options(minimum=minimum), ResetOptions(minimum=minimum)
        self.participant: type[Participant] = Participant
        self.machines: dict[str, type[Participant]] = {}
        self.organizer, self.verifier = SimulatedSigner(seed, "organizer"), SimulatedVerifier(seed)
        self.peers: dict[str, Peer] = {}
        self.coordinator = "p0"
        self.groups: dict[str, Group] = {}
        self.trace: list[tuple[Any, ...]] = []
        self.overlap = self.stale = 0.0
        self.zeros = False
        self.liars: dict[str, Lie] = {}
        self.on_reset: list[Hook] = []
        self._orders = 0
        self._healed_at: float | None = None
        self.genesis = self._genesis()
        self.world.after(0.1, self._gather)

    def _genesis(self) -> Reset:
        part = PartReset(part="", previous="", state=digest_of(ZERO))
        coordinator = Voter(self.coordinator, 1)
        return Reset(run_id=RUN, term=0, step=0, parts=(part,), coordinator=coordinator).signed(self.organizer)

    @property
    def reproduction(self) -> str:
        return f"python -m tests.simulation {self.name} {self.seed}"

    def note(self, *what: Any) -> None:
        self.trace.append((round(self.world.now, 2), *what))

    def weight_of(self, samples: int) -> int:
        """Labels of so many samples: of unequal lengths."""
        return self.random.randint(1, 64) * samples

    # Peers

    def add(
        self, role: str = "volunteer", line: Line | None = None, speed: int | None = None, firewalled: bool = False
    ) -> Peer:
        """:param role: "coordinator", without samples, or "volunteer"; :param speed: samples in two seconds"""
        name = f"p{len(self.peers)}"
        if (role == "coordinator") != (name == self.coordinator):
            raise ValueError("the coordinator is the first peer")
        speed = 0 if role == "coordinator" else self.random.randint(1, 4) if speed is None else speed
        peer = self.peers[name] = Peer(name, line or Line(), speed, firewalled)
        self.world.lines[name] = peer.line
        self._start(peer, 0)
        return peer

    def _start(self, peer: Peer, lag: int) -> None:
        peer.starts += 1
        if self.zeros:
            self.world.zero[peer.name] = self.random.uniform(-1e6, 1e6)
        peer.process = Process(self, peer, lag)
        if peer.starts > 1:
            peer.process.ready_at += 1
        self.world.start(peer.name, peer.process)

    def alive(self, peer: Peer) -> bool:
        return self.world.alive(peer.name)

    def processes(self) -> list[Process]:
        """Of peers that live and have not left."""
        each = [peer.process for peer in self.peers.values() if self.alive(peer)]
        return [process for process in each if process is not None and not process.votes.left]

    def volunteers(self) -> list[Peer]:
        return [process.peer for process in self.processes() if process.name != self.coordinator]

    @property
    def everybody(self) -> list[str]:
        return list(self.peers)

    # Faults

    def crash(self, peer: Peer) -> None:
        if self.alive(peer) and peer.process is not None:
            self.note("dies", peer.name)
            peer.process.alive = False
            self.world.kill(peer.name)

    def restart(self, peer: Peer, remembering: bool = True, lag: int = 0) -> None:
        """:param remembering: its disk is there, but for so many of its newest records"""
        if self.alive(peer):
            return
        if not remembering or (peer.process is not None and peer.process.votes.left):
            peer.disk = Disk(full=peer.disk.full and peer.bad_disk)
            if self.policy.incarnation:
                peer.incarnation = self.random.randint(2, 2**40)
        self.note("returns", peer.name, "remembering" if remembering else "new", lag)
        self._start(peer, lag)

    def pause(self, peer: Peer, seconds: float, clock_stops: bool = False) -> None:
        self.note("stands still", peer.name, seconds)
        self.world.freeze(peer.name, seconds, clock_stops)

    def cut(self, one: Iterable[str], other: Iterable[str], seconds: float = inf, both: bool = True) -> None:
        """Nothing goes from one side to the other."""
        one, other = sorted(one), sorted(other)
        self.note("cut", one, other, seconds, both)
        pairs: set[Pair] = {(a, b) for a in one for b in other if a != b}
        self.world.cut(pairs | ({(b, a) for a, b in pairs} if both else set()), seconds)

    def split(self, side: Iterable[str], seconds: float = inf, both: bool = True) -> None:
        side = set(side)
        self.cut(side, set(self.peers) - side, seconds, both)

    def heal(self) -> None:
        self.world.heal()

    def skew(self, peer: Peer, rate: float) -> None:
        """Before it is started: its clock runs at this rate."""
        self.world.drift[peer.name] = rate

    def fill_disk(self, peer: Peer, full: bool = True) -> None:
        self.note("disk", peer.name, full)
        peer.disk.full = full

    def lie(self, peer: Peer, how: Lie) -> None:
        self.liars[peer.name] = how

    def lies(self, name: str, to: str, message: Any) -> Any:
        return self.liars[name](to, message) if name in self.liars else message

    def leave(self, peer: Peer) -> None:
        process = peer.process
        if self.alive(peer) and process is not None and not process.votes.left and not self.world.frozen(peer.name):
            self.note("leaves", peer.name)
            self.world.call(peer.name, "leave")
            self.world.after(self.random.choice([0.05, 1.0]), self.crash, peer)

    def order(self) -> None:
        """An order of the organizer, known to some."""
        self._orders += 1
        order = f"{self._orders:064x}"
        for process in {p.name: p for p in (self.processes()[0], self.random.choice(self.processes()))}.values():
            process.orders.add(order)

    def rollback(self, back: int) -> None:
        """A person wants an earlier step."""
        peer = self.peers[self.coordinator]
        process = peer.process
        if not self.alive(peer) or process is None or self.world.frozen(peer.name) or process.signing is not None:
            return
        links = [self.genesis.link, *(record.link for record in process.chain.records)]
        base = links[max(0, len(links) - 1 - back)]
        now = self.world.clock(peer.name)
        self.note("rollback", process.chain.at(base).step)
        process.sign(Branch(base, ()), process.watch.voters(process.chain, now), now, chosen=True)

    # Groups: matchmaking knows everything

    def _gather(self) -> None:
        self.world.after(0.5, self._gather)
        idle = [p for p in self.processes() if not self.world.frozen(p.name) and p.idle]
        heads: dict[str, list[Process]] = {}
        for process in idle:
            heads.setdefault(process.head.previous, []).append(process)
        for there in heads.values():
            while there:
                leader = next((p for p in there if p.leads), None) or self.random.choice(there)
                members = [p for p in there if p is leader or self._can_meet(leader, p)]
                there = [p for p in there if p not in members]
                if sum(p.contributions.samples for p in members) < self.options.minimum:
                    continue
                names = {p.name for p in members}
                absent = [p for p in self.processes() if p.name not in names and self._can_meet(leader, p)]
                if absent and self.random.random() < 0.6:
                    continue
                if len(members) > 2 and self.random.random() < self.overlap:
                    for _ in range(2):
                        self.form(self.random.sample(members, max(2, 2 * len(members) // 3)))
                else:
                    self.form(members)

    def _can_meet(self, leader: Process, other: Process) -> bool:
        if leader.peer.firewalled and other.peer.firewalled:
            return False
        return self.world.reachable(leader.name, other.name)

    def form(self, members: list[Process]) -> None:
        """Tell them, each a bit later, that they are a group."""
        members = sorted(members, key=lambda process: process.name)
        head = members[0].head
        entries = [process.entry() for process in members]
        able = [process.name for process in members if not process.peer.firewalled]
        if not able or not head.electorate.enough(entry.voter for entry in entries):
            return  # without a reachable reducer the round waits
        first = 1 + max(process.votes.vote(head).promised.number for process in members)
        if self.stale and self.random.random() < self.stale:
            first = 1
        group = Group(
            run_id=RUN,
            part="",
            step=head.step,
            previous=head.previous,
            nonce=f"{self.random.getrandbits(128):032x}",
            members=tuple(entries),
            reducers=tuple(self.random.sample(able, len(able))),
            first=first,
        )
        self.groups[group.id] = group
        for process in members:
            self.world.after(self.random.uniform(0.01, 0.1), self.world.call, process.name, "invited", group)

    # What must hold

    def run(self, until: float, within: float = WITHIN) -> float:
        """The story; then all is mended, and within so many seconds there is a step, one branch, and books that agree.

        :return: seconds from the mending until the next step
        """
        world = self.world
        world.run(until)
        world.triggers.clear()
        self.on_reset.clear()
        world.heal()
        for name in self.everybody:
            world.thaw(name)
            if not self.peers[name].bad_disk:
                self.peers[name].disk.full, self.peers[name].disk.delay = False, 0.01
        self.restart(self.peers[self.coordinator])
        if not self.volunteers():
            self.add()
        since = world.now
        self._healed_at = since
        within = max(within, 60 + max(process.watch.lost_after for process in self.processes()))
        world.run(since + within + 60, stop=self._looker(since))
        return self.check(since, within)

    def _looker(self, since: float) -> Callable[[], bool]:
        """Looks once a second whether everything is as it should be."""
        looked = [-1]

        def settled() -> bool:
            if looked[0] == int(self.world.now):
                return False
            looked[0] = int(self.world.now)
            best = self.best()
            return self.moved(since) is not None and best.choice.deadline == inf and self._apart() is None

        return settled

    def moved(self, since: float) -> float | None:
        """When the first commit after that was made, on the best branch."""
        links = [record.link for record in self.best().chain.records if isinstance(record, Commit)]
        return next((self.watch.first[link] for link in links if self.watch.first.get(link, 0) > since), None)

    def best(self) -> Process:
        processes = self.processes()
        leading = [process for process in processes if process.leads]
        return leading[0] if leading else max(processes, key=lambda process: process.chain.rank)

    def check(self, since: float, within: float) -> float:
        """Raises Violation."""
        when = self.moved(since)
        if when is None or when > since + within:
            self.watch.violation(f"no step within {within:.0f} s")
        if (apart := self._apart()) is not None:
            self.watch.violation(apart)
        for process in self.processes():
            self._check_books(process)
        return when - since

    def _apart(self) -> str | None:
        best = self.best()
        for process in self.processes():
            one_branch = process.head.previous in best.chain or best.head.previous in process.chain
            if process.head.term != best.head.term or not one_branch:
                return f"{process.name} is on another branch than {best.name}"
        return None

    def _check_books(self, process: Process) -> None:
        """Every sample is in one place, and counts at most once."""
        commits = [record for record in process.chain.records if isinstance(record, Commit)]
        pieces = Counter(p.hash for commit in commits for entry in commit.value.counted for p in entry.pieces)
        if pieces and max(pieces.values()) > 1:
            self.watch.violation(f"a piece counts twice on the branch of {process.name}")
        offered, counted = set(process.offered), set(process.counted)
        waiting = {piece.hash for piece in process.contributions.waiting}
        rolled = set(process.rolled_back)
        if counted != offered & set(pieces):
            self.watch.violation(f"{process.name} believes what its branch does not count")
        if waiting | counted | rolled != offered or len(waiting) + len(counted) + len(rolled) != len(offered):
            self.watch.violation(f"samples of {process.name} are lost, or in two places")
        samples = sum(process.offered[each].samples for each in offered) + process.contributions.fresh
        if samples != process.generated:
            self.watch.violation(f"{process.name} has computed {process.generated} samples, and accounts for {samples}")
        orders = {order for commit in commits for order in commit.value.orders}
        if orders != process.orders.done:
            self.watch.violation(f"orders of {process.name} are not those of its branch")


__all__ = ["Policy", "Simulation", "Violation"]
