"""The flow of chunks between all members of a round, in any order of messages: each contribution is averaged once."""

from collections import Counter, deque
from collections.abc import Collection
from random import Random
from typing import NamedTuple

import pytest

from dedloc_kit.learning.train.flat import SMALLEST_CHUNK, FlatLayout
from dedloc_kit.swarm.allreduce.flow import ChunkFlow, Transmit
from dedloc_kit.swarm.allreduce.plan import Plan

Values = Counter[int]
"""Of whose contributions something is the sum."""


class Message(NamedTuple):
    kind: str
    chunk: int
    name: bytes = b""
    maker: int = -1
    values: Values = Counter()  # noqa: RUF012 - never changed


class Node:
    """A member: its flow, and the values that lie beside it."""

    def __init__(self, net: "Net", me: int) -> None:
        self.net, self.me, self.flow = net, me, ChunkFlow(net.plan, me)
        self.parts: dict[tuple[int, int], Values] = {}
        self.sums: dict[tuple[int, int], Values] = {}
        self.averages: dict[int, Values] = {}
        self.own_sums: dict[int, Values] = {}
        self.early: list[tuple[int, Message]] = []
        self.counted: frozenset[int] = frozenset()
        self.sent: set[tuple[int, int]] = set()

    def assign(self, living: Collection[int]) -> None:
        self.flow.assign(living)
        assignment = self.flow.assignment
        for _, target, chunk in (*assignment.parts(self.me), *assignment.backups(self.me)):
            if (target, chunk) not in self.sent:
                self.sent.add((target, chunk))
                self.net.send(self.me, target, Message("part", chunk, values=Counter([self.me])))

    def reduce(self, name: bytes, counted: frozenset[int]) -> None:
        if name != self.flow.name:
            self.averages, self.own_sums = {}, {}
        self.counted = counted
        self.transmit(self.flow.reduce(name, counted))
        for chunk in self.flow.sums_due:
            self.own_sums[chunk] = self.add_up(chunk)
            self.transmit(self.flow.sum_made(chunk))
        self.finish()
        early, self.early = self.early, []
        for source, message in early:
            self.receive(source, message)

    def add_up(self, chunk: int) -> Values:
        mates = [m for m in self.counted if self.net.plan.rows[m] == self.flow.row]
        found: Values = Counter()
        for mate in mates:
            found.update(Counter([mate]) if mate == self.me else self.parts[mate, chunk])
        return found

    def finish(self) -> None:
        for chunk in self.flow.averages_due:
            if self.flow.ready(chunk):
                found = self.add_up(chunk)
                for owner in self.flow.summands(chunk):
                    found.update(self.sums[owner, chunk])
                self.averages[chunk] = found
                self.transmit(self.flow.take(chunk))

    def transmit(self, transmits: list[Transmit]) -> None:
        for to, chunk, is_sum in transmits:
            if is_sum:
                self.net.send(self.me, to, Message("sum", chunk, self.flow.name, values=self.own_sums[chunk]))
            else:
                held = self.flow.held[chunk]
                self.net.send(self.me, to, Message("average", chunk, self.flow.name, held, self.averages[chunk]))

    def receive(self, source: int, message: Message) -> None:
        kind, chunk, name, maker, values = message
        flow = self.flow
        if kind == "part":
            self.parts[source, chunk] = values
            flow.part_came(source, chunk)
        elif kind == "sum":
            self.sums[source, chunk] = values
            flow.take_sum(source, name, chunk)
            if flow.name:
                self.finish()
        elif name == flow.name and maker == flow.assignment.makers[chunk] and flow.accepts(source, chunk):
            if chunk not in flow.held:
                self.averages[chunk] = values
            self.transmit(flow.take(chunk))
        else:
            self.early.append((source, message))


class Net:
    """All members; messages between two of them come in their order."""

    def __init__(self, plan: Plan, random: Random) -> None:
        self.plan, self.random = plan, random
        self.queues: dict[tuple[int, int], deque[Message]] = {}
        self.dead: set[int] = set()
        self.sent: list[Message] = []
        self.nodes = [Node(self, member) for member in range(len(plan.members))]

    def send(self, source: int, target: int, message: Message) -> None:
        if not {source, target} & self.dead:
            self.sent.append(message)
            self.queues.setdefault((source, target), deque()).append(message)

    def kill(self, member: int) -> None:
        self.dead.add(member)
        self.queues = {pair: queue for pair, queue in self.queues.items() if member not in pair}

    def deliver(self, most: int = 10**9) -> None:
        for _ in range(most):
            if not self.queues:
                return
            pair = self.random.choice(list(self.queues))
            message = self.queues[pair].popleft()
            if not self.queues[pair]:
                del self.queues[pair]
            self.nodes[pair[1]].receive(pair[0], message)

    @property
    def living(self) -> list[Node]:
        return [node for node in self.nodes if node.me not in self.dead]

    def tell(self, living: Collection[int], step: int) -> frozenset[int]:
        """An epoch with these reducers: members hear of it, and of who counts, one after the other."""
        for node in self.random.sample(self.living, len(self.living)):
            node.assign(living)
            self.deliver(self.random.randrange(20))
        self.deliver()
        counted = self.whole(living)
        name = bytes([step]) + repr(sorted(counted)).encode()
        for node in self.random.sample(self.living, len(self.living)):
            node.reduce(name, counted)
            self.deliver(self.random.randrange(20))
        return counted

    def whole(self, living: Collection[int]) -> frozenset[int]:
        """From whom all reducers of its row have everything; rows without any do not count."""
        rows = self.plan.assign(living).rows
        reducers = [self.nodes[reducer] for reducer in living]
        everybody = (m for m, row in enumerate(self.plan.rows) if row in rows)
        return frozenset(member for member in everybody if all(each.flow.whole(member) for each in reducers))


def plan_of(random: Random, members: int, rows: int) -> Plan:
    lines = [random.uniform(10, 100) if random.random() < 0.6 else 0.0 for _ in range(members)]
    lines[: 2 * rows] = [50.0] * (2 * rows)
    values = random.randint(1, 12 * SMALLEST_CHUNK)
    return Plan.of([f"p{n}" for n in range(members)], FlatLayout((), (), values, values), lines, -(-members // rows))


def check(net: Net, counted: frozenset[int], living: Collection[int]) -> None:
    assignment = net.plan.assign(living)
    for node in net.living:
        if net.plan.rows[node.me] in assignment.rows:
            assert not node.flow.owing
            assert node.flow.held == dict(enumerate(assignment.makers))
            assert all(node.averages[chunk] == dict.fromkeys(counted, 1) for chunk in node.flow.held)


@pytest.mark.parametrize("seed", range(40))
def test_each_contribution_is_in_each_average_once_at_all_members(seed: int) -> None:
    random = Random(seed)
    rows = random.choice([1, 2, 3])
    net = Net(plan_of(random, random.randint(4 * rows, 16), rows), random)
    counted = net.tell(net.plan.reducers, 0)
    assert counted == frozenset(range(len(net.plan.members)))
    net.deliver()
    check(net, counted, net.plan.reducers)


@pytest.mark.parametrize("seed", range(60))
def test_after_deaths_at_any_moment_all_others_have_the_same_average(seed: int) -> None:
    """Each reducer that dies opens an epoch; averages of the one before are on their way meanwhile."""
    random = Random(seed)
    rows = random.choice([1, 2, 3])
    net = Net(plan_of(random, random.randint(4 * rows, 14), rows), random)
    living = set(net.plan.reducers)
    counted = net.tell(living, 0)
    for _ in range(random.randint(1, min(3, len(living) - 1))):
        net.deliver(random.randrange(60))
        dead = random.choice(sorted(living))
        net.kill(dead)
        living.discard(dead)
        counted = net.tell(living, 0)
    net.deliver()
    check(net, counted, living)
    in_rows = {m for m, row in enumerate(net.plan.rows) if row in net.plan.assign(living).rows}
    assert counted >= in_rows - net.dead, "who lives counts"


@pytest.mark.parametrize("seed", range(20))
def test_a_reducer_that_dies_after_its_parts_have_come_still_counts_in_rows(seed: int) -> None:
    random = Random(seed)
    net = Net(plan_of(random, random.randint(8, 16), 2), random)
    everybody = net.tell(net.plan.reducers, 0)
    dead = random.choice([r for r in net.plan.reducers if len(set(net.plan.reducers) & set(mates(net, r))) > 1])
    net.kill(dead)
    living = set(net.plan.reducers) - {dead}
    assert net.tell(living, 0) == everybody
    net.deliver()
    check(net, everybody, living)


def mates(net: Net, member: int) -> tuple[int, ...]:
    return net.plan.teams[net.plan.rows[member]]


def test_what_is_made_already_is_not_sent_again_after_a_death() -> None:
    random = Random(3)
    net = Net(plan_of(random, 12, 3), random)
    net.tell(net.plan.reducers, 0)
    net.deliver()
    dead = net.plan.reducers[-1]
    lost = set(net.plan.first.owned.get(dead, ()))
    net.kill(dead)
    living = set(net.plan.reducers) - {dead}
    net.sent.clear()
    counted = net.tell(living, 0)
    net.deliver()
    check(net, counted, living)
    assert {message.chunk for message in net.sent if message.kind != "part"} <= lost


def test_a_sum_counts_only_from_who_owns_the_chunk_in_its_row() -> None:
    plan = Plan(("a", "b", "c", "d"), FlatLayout((), (), 10, 10), (1.0, 0.5, 1.0, 0.5), (0, 0, 1, 1))
    flow = ChunkFlow(plan, 0)
    flow.part_came(1, 0)
    flow.take_sum(3, b"name", 0)
    flow.reduce(b"name", {0, 1, 2, 3})
    assert plan.first.makers == (0,)
    assert flow.averages_due == [0]
    assert not flow.ready(0), "d reduces as well, but c owns the chunk"
    assert flow.owing == {0, 2}
    flow.take_sum(2, b"another", 0)
    assert not flow.ready(0)
    flow.take_sum(2, b"name", 0)
    assert flow.ready(0)
    assert flow.owing == {0}


def test_a_row_that_does_not_count_is_not_waited_for_and_one_without_reducers_for_ever() -> None:
    plan = Plan(("a", "b", "c"), FlatLayout((), (), 10, 10), (1.0, 0.0, 1.0), (0, 0, 1))
    flow = ChunkFlow(plan, 0)
    flow.assign([0])
    flow.reduce(b"of a row", {0, 1})
    assert flow.ready(0)
    flow.reduce(b"of both", {0, 1, 2})
    assert not flow.ready(0), "who decides that c counts lies: nobody has its parts"
    assert flow.owing == {0}
