"""Stories of gathering, each told anew by every seed."""

from collections.abc import Callable
from typing import Any

from dedloc_kit.swarm.gathering.catchup import Records
from dedloc_kit.swarm.gathering.messages import Attempt, Join, Member, Verdict
from tests.simulation.gathering.simulation import GatheringSimulation, Lie, Peer, Process, Stream
from tests.simulation.world import Line

Story = Callable[[GatheringSimulation], float]
"""Sets a simulation up; returns when all is mended."""


def swarm(
    sim: GatheringSimulation, size: int, clients: float = 0.0, slow: bool = False, speed: float | None = None
) -> list[Peer]:
    """A coordinator, and volunteers that fill a batch in some seconds."""
    random = sim.random
    speeds = [random.choice([0.3, 3.0]) if slow else speed or random.uniform(1, 8) for _ in range(size - 1)]
    sim.wanted = int(sum(speeds) * random.uniform(6, 15)) + 1
    peers = [sim.add()]
    for speed in speeds:
        rate, delay = 12.5e6 / random.choice([1, 10, 100]), random.choice([0.005, 0.05, 0.2])
        peers.append(sim.add(speed, random.random() < clients, Line(rate, rate, delay) if slow else None))
    return peers


def some(sim: GatheringSimulation, peers: list[Peer], least: int = 1) -> list[Peer]:
    return sim.random.sample(peers, sim.random.randint(least, len(peers) - 1))


def quiet(sim: GatheringSimulation) -> float:
    """Nothing fails."""
    swarm(sim, sim.random.randint(2, 8))
    return 0


def alone(sim: GatheringSimulation) -> float:
    """The coordinator and one volunteer; either is away for a while."""
    peers = swarm(sim, 2)
    peer = sim.random.choice(peers)
    at = sim.random.uniform(5, 30)
    sim.world.at(at, sim.crash, peer)
    sim.world.at(at + 20, sim.restart, peer)
    return at + 20


def come_and_go(sim: GatheringSimulation) -> float:
    """Peers join, leave with and without a word, and return."""
    random = sim.random
    peers = swarm(sim, random.randint(2, 7))
    for _ in range(random.randint(2, 6)):
        at = random.uniform(3, 60)
        kind = random.choice(["add", "leave", "die", "return"])
        peer = random.choice(peers)
        if kind == "add":
            sim.world.at(at, sim.add)
        elif peer is not peers[0]:
            sim.world.at(at, sim.leave if kind == "leave" else sim.crash, peer)
            if kind == "return":
                sim.world.at(at + random.choice([0.5, 5, 30]), sim.restart, peer)
    return 60


def partitioned(sim: GatheringSimulation) -> float:
    """Some are cut off from the others, in both directions or in one."""
    random = sim.random
    peers = swarm(sim, random.randint(3, 8))
    side = {peer.name for peer in some(sim, peers)}
    rest = {peer.name for peer in peers} - side
    pairs = {(a, b) for a in side for b in rest}
    if random.random() < 0.7:
        pairs |= {(b, a) for a, b in pairs}
    at, seconds = random.uniform(3, 30), random.choice([3, 10, 40, 90])
    sim.world.at(at, sim.world.cut, pairs, seconds)
    return at + seconds


def dying_leader(sim: GatheringSimulation) -> float:
    """The peer that leads dies while the group gathers, again and again."""
    random = sim.random
    peers = swarm(sim, random.randint(3, 8))
    sim.world.broken = random.choice([0.0, 0.8, 1.0])
    left = [random.randint(1, 4)]

    def look(source: str, target: str, message: Any) -> None:
        sim.world.triggers[sim.world.delivered + 1] = look
        if not left[0] or not (isinstance(message, Stream) and isinstance(message.content, Join)):
            return
        if random.random() < 0.3:
            left[0] -= 1
            kill = sim.world.freeze if random.random() < 0.3 else None
            if kill is not None:
                kill(target, random.choice([2, 10, 30]))
            else:
                sim.crash(sim.peers[target])
                sim.world.after(random.choice([3, 30]), sim.restart, sim.peers[target])

    sim.world.triggers[1] = look
    return 70 if peers else 0


def stale_views(sim: GatheringSimulation) -> float:
    """The directory is slow and lossy, so peers see different peers; it stays so."""
    swarm(sim, sim.random.randint(3, 8), clients=0.2)
    sim.directory.lost, sim.directory.slow = sim.random.choice([0.1, 0.4]), sim.random.choice([0.1, 0.4])
    return 60


def clients(sim: GatheringSimulation) -> float:
    """Many make outgoing connections only; those that lead and hold the directory die and return."""
    random = sim.random
    peers = swarm(sim, random.randint(4, 10), clients=random.choice([0.4, 0.8]))
    for peer in peers:
        if not peer.client and random.random() < 0.4:
            at = random.uniform(5, 50)
            sim.world.at(at, sim.crash, peer)
            sim.world.at(at + random.choice([2, 20]), sim.restart, peer)
    return 70


def slow_lines(sim: GatheringSimulation) -> float:
    """Lines and devices differ a hundredfold."""
    swarm(sim, sim.random.randint(3, 10), clients=0.4, slow=True)
    return 30


def clocks(sim: GatheringSimulation) -> float:
    """Common clocks are seconds off, and jump; steady clocks run fast and slow."""
    random = sim.random
    peers = swarm(sim, random.randint(3, 8))
    for peer in peers:
        sim.world.drift[peer.name] = random.choice([1, 0.98, 1.02])
        peer.skew = random.uniform(-3, 3)
        for _ in range(random.randint(0, 2)):
            sim.world.at(random.uniform(5, 60), setattr, peer, "skew", random.choice([-30, -5, 5, 30, 3600]))
    return 60


def frozen(sim: GatheringSimulation) -> float:
    """Machines stand still for longer than any patience."""
    random = sim.random
    peers = swarm(sim, random.randint(3, 8))
    for _ in range(random.randint(1, 5)):
        sim.world.at(random.uniform(3, 50), sim.world.freeze, random.choice(peers).name, random.choice([1, 6, 20, 60]))
    return 110


# Liars. They sign for themselves alone.


def never_stands(process: Process, to: str, message: Any) -> Any:
    """Accepts, ranks first, and tells of no group."""
    if to == "":
        return message | {"follower": True}
    if isinstance(message, Stream) and isinstance(message.content, Verdict):
        return message._replace(content=Verdict(verdict="wait", seconds=500.0))
    return None if isinstance(message, Stream) and isinstance(message.content, Join) else message


def phantoms(process: Process, to: str, message: Any) -> Any:
    """Its groups name peers that do not come, and leave others out."""
    if to == "":
        return message | {"follower": True}
    if isinstance(message, Stream) and isinstance(message.content, Verdict) and message.content.attempt is not None:
        names = {process.name, to, "nobody", *process.sim.random.sample(sorted(process.sim.peers), 2)}
        members = tuple(Member(peer=name) for name in sorted(names))
        attempt = Attempt(
            nonce=f"{process.sim.random.randrange(4):032x}", previous=message.content.attempt.previous, members=members
        )
        return message._replace(content=Verdict(verdict="group", attempt=attempt))
    return message


def sends_away(process: Process, to: str, message: Any) -> Any:
    """Accepts, and sends away at once, to somebody else."""
    if to == "":
        return message | {"follower": True}
    if isinstance(message, Stream) and isinstance(message.content, Verdict):
        hint = process.sim.random.choice(["", "nobody", process.name, *process.sim.peers])
        process.world.after(0.05, process.world.send, process.name, to,
                            message._replace(content=Verdict(verdict="no", leader=hint)), 200)  # fmt: skip
        return message._replace(content=Verdict(verdict="wait"))
    return message


def claims_steps(process: Process, to: str, message: Any) -> Any:
    """Claims to be far ahead, and proves something else, or nothing."""
    if to == "":
        ahead = {"step": message["step"] + 1000, "head": "ab" * 32, "term": (2**40, "cd" * 32)}
        return message | ahead
    if isinstance(message, Records):
        lists = message.records, message.records[1:], message.records[::-1], ()
        return process.sim.random.choice([None, *(Records(process.name, records) for records in lists)])
    return message


def claims_samples(process: Process, to: str, message: Any) -> Any:
    """Claims batches, or a speed that nobody has."""
    if to == "":
        return message | process.sim.random.choice([{"samples": 10**9}, {"samples_per_second": 1e9}, {"fixed": True}])
    return message


def garbage(process: Process, to: str, message: Any) -> Any:
    """What stands in the directory is no position."""
    if to == "":
        return process.sim.random.choice([b"\x00", "x" * 1000, {"step": -1}, [[[]]], message | {"time": 1e300},
                                          message | {"time": 1e12}, message | {"extra": 1}])  # fmt: skip
    return message


def mute(process: Process, to: str, message: Any) -> Any:
    """It stands in the directory, and answers nobody."""
    return message if to == "" else None


LIES: tuple[Lie, ...] = (never_stands, phantoms, sends_away, claims_steps, claims_samples, garbage, mute)


def liar(sim: GatheringSimulation) -> float:
    """One of several volunteers lies, all the time."""
    random = sim.random
    peers = swarm(sim, random.randint(4, 8), clients=random.choice([0, 0.3]))
    sim.lie(random.choice(peers[1:]), LIES[sim.seed % len(LIES)])
    return 60


def anything(sim: GatheringSimulation) -> float:
    """All of it at random."""
    random = sim.random
    peers = swarm(sim, random.randint(2, 12), clients=random.choice([0, 0.4]), slow=random.random() < 0.3)
    sim.directory.lost, sim.directory.slow = random.choice([0, 0, 0.2]), random.choice([0, 0, 0.2])
    for peer in peers:
        peer.skew = random.uniform(-2, 2)
    until = random.choice([40.0, 90.0])
    for _ in range(random.randint(1, 7)):
        peer, at = random.choice(peers), random.uniform(0, until)
        kind = random.choice(["crash", "leave", "freeze", "cut", "one way", "add"])
        if kind in ("crash", "leave"):
            sim.world.at(at, sim.crash if kind == "crash" or peer is peers[0] else sim.leave, peer)
            if random.random() < 0.6:
                sim.world.at(at + random.choice([0.5, 5, 40]), sim.restart, peer)
        elif kind == "freeze":
            sim.world.at(at, sim.world.freeze, peer.name, random.choice([1, 6, 20]))
        elif kind == "add":
            sim.world.at(at, sim.add, None, random.random() < 0.3)
        else:
            side = {each.name for each in some(sim, peers)}
            pairs = {(a, b) for a in side for b in sim.peers if b not in side}
            pairs |= {(b, a) for a, b in pairs} if kind == "cut" else set()
            sim.world.at(at, sim.world.cut, pairs, random.choice([2, 10, 40]))
    return until + 40


STORIES: dict[str, Story] = {
    story.__name__: story
    for story in (
        *(quiet, alone, come_and_go, partitioned, dying_leader, stale_views, clients, slow_lines, clocks, frozen),
        *(liar, anything),
    )
}


def tell(name: str, seed: int) -> tuple[GatheringSimulation, float]:
    """The simulation, and the seconds from its mending until all step together. Raises Violation."""
    sim = GatheringSimulation(seed, name)
    return sim, sim.run(STORIES[name](sim))
