"""Stories of failures, each told anew by every seed. A story sets a simulation up and returns when all is mended."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from dedloc_kit.swarm.consensus.messages import Acceptance, Decided, Promised, Proposal
from dedloc_kit.swarm.consensus.participant import Participant
from dedloc_kit.swarm.consensus.records import Reset
from tests.simulation.data_plane import Parts
from tests.simulation.liars import IgnoresVotes
from tests.simulation.peer import Peer, Process
from tests.simulation.simulation import Policy, Simulation, Violation
from tests.simulation.world import Line

Story = Callable[[Simulation], float]
VOTES = (Promised, Proposal, Acceptance, Decided)


def swarm(sim: Simulation, size: int, speed: int | None = None) -> list[Peer]:
    """A coordinator and so many volunteers; returns all."""
    return [sim.add("coordinator"), *(sim.add(speed=speed) for _ in range(size))]


def later(sim: Simulation, deliveries: int, call: Callable[[], object]) -> None:
    """As the n-th message from now is delivered."""
    sim.world.triggers[sim.world.delivered + deliveries] = lambda *_: call()


def mayfly(sim: Simulation, peer: Peer, after: float, back: float | None = None) -> None:
    """It dies, and perhaps returns, with or without its memory."""
    sim.world.after(after, sim.crash, peer)
    if back is not None:
        sim.world.after(after + back, sim.restart, peer, sim.random.random() < 0.6, sim.random.randint(0, 2))


def quiet(sim: Simulation) -> float:
    """Nothing fails."""
    swarm(sim, sim.random.randint(2, 8))
    return 30


def overlapping(sim: Simulation) -> float:
    """Two overlapping groups form for one step."""
    swarm(sim, sim.random.randint(3, 7))
    sim.overlap = 0.8
    return 40


def only_volunteer_gone(sim: Simulation) -> float:
    """The only volunteer vanishes without a word, and another one comes."""
    peer = swarm(sim, 1)[1]
    when = sim.random.uniform(5, 40)
    comes = when + sim.random.choice([0.5, 5, 30, 59, 61, 100, 300])
    if sim.random.random() < 0.5:
        sim.world.at(when, sim.crash, peer)
    else:
        later(sim, sim.random.randint(1, 200), lambda: sim.crash(peer))
    sim.world.at(comes, sim.add)
    return comes + 0.1


def churn(sim: Simulation) -> float:
    """One to three volunteers of free notebooks come and go every minute."""
    random, until = sim.random, 300.0

    def life(peer: Peer) -> None:
        go = sim.leave if random.random() < 0.4 else sim.crash
        sim.world.after(random.uniform(20, 100), lambda: sim.world.now < until and go(peer))

    for peer in swarm(sim, random.randint(1, 3))[1:]:
        life(peer)
    at = 0.0
    while at < until:
        at += random.uniform(5, 60)
        sim.world.at(at, lambda: life(sim.add()) if len(sim.volunteers()) < 3 else None)
    if random.random() < 0.3:
        sim.world.at(random.uniform(30, 250), sim.crash, sim.peers["p0"])
        sim.world.at(
            random.uniform(260, 300), sim.restart, sim.peers["p0"], random.random() < 0.7, random.randint(0, 2)
        )
    return until


def coordinator_away(sim: Simulation) -> float:
    """The coordinator is away for ten minutes; volunteers go on, if they can; it comes back."""
    random = sim.random
    peers = swarm(sim, random.randint(1, 5))
    begin, kind = random.uniform(10, 30), random.choice(["crash", "crash", "freeze", "new"])
    if kind == "freeze":
        sim.world.at(begin, sim.pause, peers[0], 600)
    else:
        sim.world.at(begin, sim.crash, peers[0])
        sim.world.at(begin + 600, sim.restart, peers[0], kind != "new", random.randint(0, 2))
    for _ in range(random.randint(0, 2)):
        mayfly(sim, random.choice(peers[1:]), begin + random.uniform(5, 500), random.choice([None, 5, 100]))
    return begin + 601


def partitioned(sim: Simulation) -> float:
    """The coordinator is cut off with some volunteers, or none; both sides do what they can; then it heals."""
    random = sim.random
    peers = swarm(sim, random.randint(2, 6))
    begin, seconds = random.uniform(8, 30), random.choice([20, 65, 90, 150, 300])
    side = ["p0", *(p.name for p in random.sample(peers[1:], random.randint(0, len(peers) - 2)))]
    sim.world.at(begin, sim.split, side, seconds, random.random() < 0.8)
    if random.random() < 0.3:
        sim.world.at(begin + random.uniform(10, seconds), sim.crash, random.choice(peers[1:]))
    return begin + seconds


def minority(sim: Simulation) -> float:
    """For ten minutes the coordinator has one of five volunteers; the other four are cut off and go on."""
    peers = swarm(sim, 5, speed=2)
    sim.world.at(sim.random.uniform(8, 20), sim.split, ["p0", sim.random.choice(peers[1:]).name])
    return 620


def alone_after(sim: Simulation) -> float:
    """The coordinator signs a reset, and is gone for ten minutes right after it; volunteers are there."""
    peers = swarm(sim, sim.random.randint(2, 5))
    at = sim.random.uniform(10, 30)
    sim.world.at(at, sim.rollback, sim.random.randint(0, 2))
    sim.world.at(at + sim.random.choice([0.1, 0.5, 1]), sim.crash, peers[0])
    return at + 600


def crash_at_reset(sim: Simulation) -> float:
    """The coordinator crashes just before or after it signs a reset."""
    random = sim.random
    peers = swarm(sim, random.randint(1, 4))
    point, remembering, done = random.choice(["before", "after", "told"]), random.random() < 0.7, [False]

    def crash(process: Process, reset: Reset, when: str) -> None:
        if not done[0] and when == point.replace("told", "after"):
            done[0] = True
            sim.world.after(random.uniform(0.005, 0.2) if point == "told" else 0, sim.crash, peers[0])
            sim.world.after(random.uniform(1, 60), sim.restart, peers[0], remembering, random.randint(0, 2))

    sim.on_reset.append(crash)
    at = random.uniform(5, 30)
    if random.random() < 0.4:
        sim.world.at(at, sim.rollback, random.randint(0, 3))
        return at + 90
    for victim in random.sample(peers[1:], max(1, (2 * len(peers)) // 3 - 1)):
        sim.world.at(at, sim.crash, victim)
    sim.world.at(at + random.uniform(1, 50), sim.add)
    return at + 140


def two_resets(sim: Simulation) -> float:
    """Two resets in a row, of which some hear the first, the second, or both."""
    random = sim.random
    peers = swarm(sim, random.randint(2, 5))
    at = random.uniform(10, 40)
    side = [p.name for p in random.sample(peers[1:], random.randint(1, len(peers) - 1))]
    sim.world.at(at + random.uniform(-1, 1), sim.split, side, random.choice([2, 10, 40, 80]))
    sim.world.at(at, sim.rollback, random.randint(0, 3))
    sim.world.at(at + random.choice([0.02, 0.1, 0.5, 3, 20]), sim.rollback, random.randint(0, 3))
    if random.random() < 0.3:
        mayfly(sim, peers[0], at + random.uniform(0, 3), random.uniform(4, 60))
    return at + 85


def beside_commit(sim: Simulation) -> float:
    """A reset beside a commit that is just being made."""
    random = sim.random
    peers = swarm(sim, random.randint(1, 5))
    left = [random.randint(5, 60 * len(peers))]

    def look(source: str, target: str, message: Any) -> None:
        left[0] -= 1
        if left[0] <= 0 and isinstance(message, (*VOTES, Parts)):
            sim.note("reset beside", type(message).__name__)
            sim.rollback(random.randint(0, 2))
            if random.random() < 0.5:
                return
            left[0] = random.randint(1, 40)
        sim.world.triggers[sim.world.delivered + 1] = look

    sim.world.triggers[1] = look
    return 60


def sleeper(sim: Simulation) -> float:
    """Volunteers sleep through a change of term."""
    random = sim.random
    peers = swarm(sim, random.randint(2, 5))
    at, seconds = random.uniform(5, 30), random.uniform(70, 200)
    for peer in random.sample(peers[1:], random.randint(1, len(peers) - 1)):
        if random.random() < 0.5:
            later(sim, random.randint(20, 60 * len(peers)), partial(sim.pause, peer, seconds))
        else:
            sim.world.at(at, sim.pause, peer, seconds)
    if random.random() < 0.5:
        sim.world.at(at + random.uniform(1, 20), sim.rollback, random.randint(0, 2))
    if random.random() < 0.6:
        sim.world.at(at + random.uniform(1, 60), sim.add)
    return at + seconds + 1


def lost_file(sim: Simulation) -> float:
    """The coordinator loses its disk, perhaps twice, while terms change."""
    random = sim.random
    peers = swarm(sim, random.randint(1, 4))
    at = random.uniform(10, 30)
    sim.world.at(at, sim.rollback, random.randint(0, 2))
    for victim in random.sample(peers[1:], random.randint(0, len(peers) - 1)):
        sim.world.at(at + random.uniform(-3, 3), sim.pause, victim, random.choice([90, 140]))
    for _ in range(random.randint(1, 2)):
        sim.world.at(at + 0.3, sim.crash, peers[0])
        at += random.uniform(2, 20)
        sim.world.at(at, sim.restart, peers[0], False)
        at += random.uniform(1, 80)
    if random.random() < 0.7:
        sim.world.at(at - random.uniform(0, 60), sim.add)
    return at + 100


def bad_disks(sim: Simulation) -> float:
    """Disks that are full or slow, of volunteers and of the coordinator, and restarts."""
    random = sim.random
    peers = swarm(sim, random.randint(1, 5))
    for peer in peers:
        if peer is not peers[0] and random.random() < 0.2:
            peer.bad_disk = True  # it stays so
            sim.world.at(random.uniform(5, 90), sim.fill_disk, peer)
            continue
        for _ in range(random.randint(0, 2)):
            at, kind = random.uniform(0, 60), random.choice(["full", "slow", "hangs"])
            for when, delay, full in ((at, {"slow": 3.0, "hangs": 40.0}.get(kind, 0.01), kind == "full"),
                                      (at + random.choice([10, 100]), 0.01, False)):  # fmt: skip
                sim.world.at(when, setattr, peer.disk, "delay", delay)
                sim.world.at(when, setattr, peer.disk, "full", full)
        if random.random() < 0.3:
            back, lag = random.uniform(0.5, 20), random.randint(0, 2)

            def crash(peer: Peer = peer, back: float = back, lag: int = lag) -> None:
                sim.crash(peer)
                sim.world.after(back, sim.restart, peer, True, lag)

            later(sim, random.randint(20, 80 * len(peers)), crash)
    return 110


def firewalls(sim: Simulation) -> float:
    """Most are behind firewalls; those who can reduce die; perhaps nobody can but the coordinator, and it is away."""
    random = sim.random
    size = random.randint(2, 6)
    open_ = random.sample(range(size), random.randint(0, 1))
    peers = [sim.add("coordinator"), *(sim.add(firewalled=place not in open_) for place in range(size))]
    for victim in [peer for peer in peers if not peer.firewalled]:
        at, back = random.uniform(5, 40), random.uniform(20, 90)
        if random.random() < 0.6:
            later(sim, random.randint(20, 80 * size), partial(sim.crash, victim))
        else:
            sim.world.at(at, sim.crash, victim)
        sim.world.at(at + back, sim.restart, victim, random.random() < 0.6, random.randint(0, 2))
    return 130


def short_batches(sim: Simulation) -> float:
    """Members die while the batch is barely full: rounds fail, and what was offered is offered again, with more."""
    random = sim.random
    peers = swarm(sim, random.randint(2, 6))
    sim.overlap = random.choice([0, 0.5])
    for _ in range(random.randint(1, 4)):
        victim, back = random.choice(peers[1:]), random.uniform(2, 20)

        def crash(victim: Peer = victim, back: float = back) -> None:
            sim.crash(victim)
            if random.random() < 0.5:
                sim.world.after(back, sim.restart, victim, random.random() < 0.5, random.randint(0, 2))

        later(sim, random.randint(10, 80 * len(peers)), crash)
    for at in range(5, 60, 10):
        sim.world.at(at + random.random() * 10, sim.order)
    return 70


def resume_below(sim: Simulation) -> float:
    """Voters crash as they vote or take a step, and come back with an older state and the newest vote file."""
    return crash_at_votes(sim, remembering=1.0)


def forgetful(sim: Simulation) -> float:
    """Voters crash as they vote or take a step, and come back without their disk."""
    return crash_at_votes(sim, remembering=0.1)


def crash_at_votes(sim: Simulation, remembering: float) -> float:
    random, world = sim.random, sim.world
    peers = swarm(sim, random.randint(2, 4), speed=2)
    left, crashes = [random.randint(30, 60 * len(peers))], [random.randint(1, 3)]

    def look(source: str, target: str, message: Any) -> None:
        left[0] -= 1
        if left[0] <= 0 and isinstance(message, VOTES):
            crashes[0] -= 1
            hit = random.sample(peers, random.randint(1, len(peers)))
            kept = random.sample(peers, random.randint(0, 1))
            if kept:
                sim.split([kept[0].name], 40)
            for peer in hit:
                if peer not in kept:
                    after = random.choice([0.0, 0.05, 0.5, 3])
                    world.after(after, sim.crash, peer)
                    back, memory = after + random.choice([0.3, 1, 5]), random.random() < remembering
                    world.after(back, sim.restart, peer, memory, random.randint(0, 2))
            left[0] = random.randint(20, 200)
            if crashes[0] <= 0:
                return
        world.triggers[world.delivered + 1] = look

    world.triggers[1] = look
    return 80


def lonely_decider(sim: Simulation) -> float:
    """Again and again a decider is cut off with the first to hear what was decided; the others go on, if they can."""
    swarm(sim, sim.random.randint(4, 6), speed=2)
    cut_deciders(sim)
    return 90


def unwritten_votes(sim: Simulation) -> float:
    """Disks are full as members vote; if that decides, all but two start again, with what is on their disks."""
    peers = swarm(sim, sim.random.randint(4, 6), speed=2)
    left = [random_wait(sim)]
    full: list[Peer] = []

    def look(source: str, target: str, message: Any) -> None:
        left[0] -= 1
        if left[0] <= 0 and isinstance(message, Proposal):
            full[:] = [peer for peer in peers if peer.name != source]
            for peer in full:
                sim.fill_disk(peer)
                sim.world.after(5, sim.fill_disk, peer, False)
            left[0] = random_wait(sim)
        elif full and isinstance(message, Decided):
            sim.split([source, target], 40)
            for peer in (each for each in full if each.name != target):
                sim.fill_disk(peer, False)
                sim.crash(peer)
                sim.world.after(1, sim.restart, peer)
            full.clear()
        sim.world.triggers[sim.world.delivered + 1] = look

    sim.world.triggers[1] = look
    return 90


def lying_decider(sim: Simulation) -> float:
    """The same, and one of the others proposes something else then."""
    peers = swarm(sim, sim.random.randint(4, 6), speed=2)
    for liar in sim.random.sample(peers, 2):
        sim.machines[liar.name], sim.liars[liar.name] = IgnoresVotes, lambda to, message: message
    cut_deciders(sim)
    return 90


def cut_deciders(sim: Simulation) -> None:
    random, left = sim.random, [random_wait(sim)]

    def look(source: str, target: str, message: Any) -> None:
        left[0] -= 1
        if left[0] <= 0 and isinstance(message, Decided):
            sim.split([source, target], random.choice([6, 20, 40]))
            left[0] = random_wait(sim)
        sim.world.triggers[sim.world.delivered + 1] = look

    sim.world.triggers[1] = look


def random_wait(sim: Simulation) -> int:
    return sim.random.randint(20, 60 * len(sim.peers))


def same_term(sim: Simulation) -> float:
    """The coordinator signs a reset that only some hear, loses its disk, and signs another with what it can know."""
    random, world = sim.random, sim.world
    peers = swarm(sim, random.randint(2, 5))
    at = random.uniform(10, 30)
    heard = random.sample(peers[1:], random.randint(1, len(peers) - 2))
    world.at(at, sim.split, ["p0", *(peer.name for peer in heard)])
    world.at(at + 0.05, sim.rollback, random.randint(0, 2))
    then = at + random.choice([1, 10])
    for peer in heard:
        world.at(then, sim.pause, peer, random.choice([60, 120]))
    world.at(then, sim.crash, peers[0])
    world.at(then + 1, sim.restart, peers[0], False)
    world.at(then + 1, sim.heal)
    world.at(then + random.choice([5, 10, 20]), sim.rollback, random.randint(0, 2))
    return then + 90


def stale_numbers(sim: Simulation) -> float:
    """A group begins with a number from old records, and deciders start again: epochs might repeat."""
    random, world = sim.random, sim.world
    peers = swarm(sim, random.randint(2, 5))
    sim.stale, sim.overlap = 1.0, random.choice([0, 0.5])
    for _ in range(random.randint(1, 4)):
        victim, kind = random.choice(peers), random.choice(["crash", "suspect", "cut"])

        def fault(victim: Peer = victim, kind: str = kind) -> None:
            if kind == "crash":
                sim.crash(victim)
                world.after(random.uniform(0.1, 3), sim.restart, victim, True, random.randint(0, 1))
            elif kind == "cut":
                others = random.sample(sim.everybody, random.randint(1, len(peers)))
                sim.cut([victim.name], others, random.choice([1, 8]), both=False)
            else:
                suspect(sim, victim)

        later(sim, random.randint(10, 80 * len(peers)), fault)
    return 60


def suspect(sim: Simulation, victim: Peer) -> None:
    """Some believe wrongly that it has failed."""
    for name in sim.random.sample(sim.everybody, sim.random.randint(1, len(sim.everybody))):
        if name != victim.name and sim.world.alive(name):
            sim.world.call(name, "failed", victim.name, "wrongly suspected")


def leavers(sim: Simulation) -> float:
    """Volunteers say goodbye in the middle of rounds; some come back at once; the coordinator may crash."""
    random, world = sim.random, sim.world
    peers = swarm(sim, random.randint(2, 5))
    for _ in range(random.randint(1, 4)):
        peer = random.choice(peers[1:])

        def go(peer: Peer = peer) -> None:
            sim.leave(peer)
            world.after(random.choice([1.2, 2, 10, 30]), sim.restart, peer)
            if random.random() < 0.3:
                others = random.sample(sim.everybody, random.randint(1, len(peers)))
                sim.cut(others, sim.everybody, random.choice([5, 40]), both=False)
            if random.random() < 0.3:
                mayfly(sim, peers[0], random.uniform(0, 0.3), random.uniform(1, 5))

        later(sim, random.randint(10, 80 * len(peers)), go)
    return 70


def headless(sim: Simulation) -> float:
    """The coordinator is away, volunteers die and come back: the swarm stops exactly while no quorum lives."""
    random, world = sim.random, sim.world
    peers = swarm(sim, random.randint(1, 6))
    at = random.uniform(8, 20)
    world.at(at, sim.crash, peers[0])
    for peer in random.sample(peers[1:], random.randint(0, len(peers) - 1)):
        when = at + random.uniform(0, 60)
        world.at(when, sim.leave if random.random() < 0.2 else sim.crash, peer)
        if random.random() < 0.5:
            world.at(when + random.uniform(1, 100), sim.restart, peer, random.random() < 0.6, random.randint(0, 2))
    if random.random() < 0.4:
        world.at(at + random.uniform(0, 60), sim.add)

    def look() -> None:
        living = sim.processes()
        if not living:
            return
        newest = max(living, key=lambda process: process.chain.rank)
        head = newest.head
        quorum = head.electorate.enough(p.votes.as_voter(p.head) for p in living)
        moved = world.now - max(sim.watch.first.values(), default=0) < 45
        if quorum != moved and newest.chain.records:
            sim.watch.violation("stops though a quorum lives" if quorum else "goes on without a quorum")

    world.at(at + 225, look)
    return at + 230


def lossy(sim: Simulation) -> float:
    """Messages come twice, clocks run fast and slow, lines differ a hundredfold."""
    random = sim.random
    peers = swarm(sim, random.randint(2, 6))
    sim.world.duplicates = random.choice([0.02, 0.1])
    for peer in peers:
        sim.skew(peer, random.choice([1, 0.97, 1.03]))
        slow = random.choice([1, 1, 10, 100])
        sim.world.lines[peer.name] = type(peer.line)(12.5e6 / slow, 12.5e6 / slow, random.choice([0.005, 0.02, 0.2]))
    for _ in range(random.randint(0, 3)):
        later(sim, random.randint(1, 300), lambda: suspect(sim, random.choice(peers)))
    return 90


def clocks(sim: Simulation) -> float:
    """Steady clocks begin anywhere, run unequally, and stop while a machine sleeps; machines start again."""
    random = sim.random
    sim.zeros = True
    peers = swarm(sim, random.randint(2, 6))
    for peer in peers:
        sim.skew(peer, random.choice([1, 0.95, 1.05]))
    for _ in range(random.randint(1, 4)):
        victim, seconds = random.choice(peers), random.choice([1, 12, 30, 70])

        def hit(victim: Peer = victim, seconds: float = seconds) -> None:
            if random.random() < 0.7:
                sim.pause(victim, seconds, clock_stops=random.random() < 0.7)
            else:
                sim.crash(victim)
                sim.world.after(seconds / 4, sim.restart, victim, random.random() < 0.7, random.randint(0, 2))

        later(sim, random.randint(10, 80 * len(peers)), hit)
    return 110


def slow_lines(sim: Simulation) -> float:
    """Lines differ a hundredfold: parts of some need three times the patience; members die, some silently."""
    random = sim.random
    sim.options = replace(sim.options, patience=2.0, limit=120.0)
    sim.world.broken = random.choice([0.8, 0.0])
    sim.add("coordinator")
    for _ in range(random.randint(3, 7)):
        slow = random.choice([1, 1, 10, 100])
        line = Line(12.5e6 / slow, 12.5e6 / slow, random.choice([0.01, 0.2]))
        sim.add("volunteer", line, firewalled=slow == 100)
    for _ in range(random.randint(0, 2)):
        later(sim, random.randint(20, 80 * len(sim.peers)), lambda: sim.crash(random.choice(sim.volunteers())))
    return 150


def hidden(sim: Simulation) -> float:
    """Two in five are behind firewalls; members die, leave and come back."""
    random = sim.random
    size = random.randint(4, 11)
    peers = [sim.add("coordinator"), *(sim.add(firewalled=place % 5 < 2) for place in range(size))]
    for _ in range(random.randint(1, 4)):
        later(sim, random.randint(20, 60 * size), partial(FAULTS[random.choice(["restart", "leave", "kill"])], sim,
                                                          random.choice(peers)))  # fmt: skip
    return 60


def disk_at_vote(sim: Simulation) -> float:
    """Disks are full at the moment of a vote, and some machines start again then."""
    random, world = sim.random, sim.world
    peers = swarm(sim, random.randint(2, 5))
    left, times = [random.randint(10, 60 * len(peers))], [random.randint(1, 3)]

    def look(source: str, target: str, message: Any) -> None:
        left[0] -= 1
        if left[0] <= 0 and isinstance(message, VOTES):
            times[0] -= 1
            for peer in random.sample(peers, random.randint(1, len(peers))):
                sim.fill_disk(peer)
                world.after(random.choice([0.1, 5, 30]), sim.fill_disk, peer, False)
                if random.random() < 0.3:
                    world.after(random.choice([0.05, 1]), sim.crash, peer)
                    world.after(random.choice([2, 10]), sim.restart, peer, True, random.randint(0, 2))
            left[0] = random.randint(20, 200)
            if times[0] <= 0:
                return
        world.triggers[world.delivered + 1] = look

    world.triggers[1] = look
    return 80


def anything(sim: Simulation) -> float:
    """All of it at random."""
    random, world = sim.random, sim.world
    size, hidden = random.randint(1, 11), random.choice([0, 0, 0.4])
    sim.add("coordinator")
    for _ in range(size):
        sim.add(firewalled=random.random() < hidden)
    sim.overlap, sim.stale = random.choice([0, 0, 0.5]), random.choice([0, 0, 0.5])
    world.duplicates = random.choice([0, 0, 0.05])
    for peer in sim.peers.values():
        sim.skew(peer, random.choice([1, 1, 1, 0.98, 1.02]))
    until = random.choice([60, 120, 250])
    for _ in range(random.randint(1, 8)):
        kind = random.choice(list(FAULTS))
        if random.random() < 0.5:
            later(sim, random.randint(1, 100 * size), partial(fault, sim, kind))
        else:
            world.at(random.uniform(0, until), fault, sim, kind)
    return until


def fault(sim: Simulation, kind: str) -> None:
    """To somebody, more often to the coordinator and to those who decide."""
    processes = sim.processes()
    if processes:
        deciders = [process.participant.decider for process in processes if process.participant is not None]
        name = sim.random.choice(["p0", sim.random.choice(processes).name, sim.random.choice(deciders or ["p0"])])
        if sim.world.alive(name):
            sim.note(kind, name)
            FAULTS[kind](sim, sim.peers[name])


def _restart(sim: Simulation, peer: Peer) -> None:
    sim.crash(peer)
    back = sim.random.choice([0.5, 5, 70])
    sim.world.after(back, sim.restart, peer, sim.random.random() < 0.6, sim.random.randint(0, 2))


def _some(sim: Simulation) -> list[str]:
    return sim.random.sample(sim.everybody, sim.random.randint(1, len(sim.everybody)))


def _leave(sim: Simulation, peer: Peer) -> None:
    if peer.name != sim.coordinator:
        sim.leave(peer)
        if sim.random.random() < 0.5:
            sim.world.after(sim.random.uniform(3, 60), sim.restart, peer)


def _fill(sim: Simulation, peer: Peer) -> None:
    sim.fill_disk(peer)
    sim.world.after(sim.random.choice([5, 40]), sim.fill_disk, peer, False)


FAULTS: dict[str, Callable[[Simulation, Peer], object]] = {
    "kill": lambda sim, peer: sim.crash(peer) if peer.name != sim.coordinator else _restart(sim, peer),
    "restart": _restart,
    "leave": _leave,
    "freeze": lambda sim, peer: sim.pause(peer, sim.random.choice([1, 8, 30, 75, 100])),
    "partition": lambda sim, peer: sim.split(_some(sim), sim.random.choice([1, 8, 30, 75, 150])),
    "one way": lambda sim, peer: sim.cut([peer.name], _some(sim), sim.random.choice([1, 8, 30, 75]), both=False),
    "disk full": _fill,
    "slow disk": lambda sim, peer: setattr(peer.disk, "delay", sim.random.choice([2.0, 15.0])),
    "rollback": lambda sim, peer: sim.rollback(sim.random.randint(0, 3)),
    "new": lambda sim, peer: sim.add(),
    "order": lambda sim, peer: sim.order(),
    "suspect": suspect,
}
STORIES: dict[str, Story] = {
    story.__name__: story
    for story in (
        *(
            quiet,
            overlapping,
            short_batches,
            stale_numbers,
            resume_below,
            forgetful,
            bad_disks,
            firewalls,
            leavers,
            lossy,
            clocks,
            slow_lines,
            hidden,
            disk_at_vote,
            lonely_decider,
            unwritten_votes,
            lying_decider,
        ),
        *(anything, only_volunteer_gone, crash_at_reset, two_resets, beside_commit, sleeper, lost_file, same_term),
        *(headless, churn, partitioned, coordinator_away, minority, alone_after),
    )
}
ROUNDS = tuple(STORIES)[:18]
"""Stories of about a minute, in which terms hardly change."""


def tell(
    name: str, seed: int, policy: Policy | None = None, participant: type[Participant] = Participant
) -> tuple[Simulation, float]:
    """The simulation, and the seconds from its mending until the next step. Raises Violation."""
    sim = Simulation(seed, policy=policy, name=name)
    sim.participant = participant
    until = STORIES[name](sim)
    return sim, sim.run(until)


def violation(name: str, seed: int, policy: Policy | None = None) -> str | None:
    """What went wrong, if anything did."""
    try:
        tell(name, seed, policy)
    except Violation as error:
        return str(error)
    return None
