"""The plan of an all-reduce in rows, followed chunk by chunk."""

from collections import Counter
from random import Random

import pytest

from dedloc_kit.learning.train.flat import SMALLEST_CHUNK, FlatLayout
from dedloc_kit.swarm.allreduce.plan import Assignment, Plan, Transfer, row_count, shares

SEEDS = range(40)


def layout_of(values: int) -> FlatLayout:
    return FlatLayout((), (), values, values)


def plan_of(random: Random, members: int, rows: int, reachable: float = 0.5, values: int = 0) -> Plan:
    """Members with lines of 10 to 100, of whom some reduce, and at most 16 chunks."""
    names = tuple(f"p{number}" for number in range(members))
    lines = [random.uniform(10, 100) if random.random() < reachable else 0.0 for _ in names]
    for number in range(rows):  # each row has one that reduces
        lines[number] = lines[number] or 50.0
    values = values or random.randint(1, 16 * SMALLEST_CHUNK)
    return Plan.of(names, layout_of(values), lines, -(-members // rows))


def follow(assignment: Assignment, counted: frozenset[int]) -> dict[int, list[Counter[int]]]:
    """What the average of each chunk is the sum of, at each living member that gets one."""
    plan, chunks, makers = assignment.plan, range(len(assignment.plan.chunks)), assignment.makers
    sums: dict[tuple[int, int], Counter[int]] = {}
    for owner, mine in assignment.owned.items():
        for chunk in mine:
            sums[owner, chunk] = Counter([owner] if owner in counted else [])
    for member in counted:
        for source, target, chunk in assignment.parts(member):
            sums[target, chunk][source] += 1
    finished = {chunk: Counter(sums[makers[chunk], chunk]) for chunk in chunks}
    for owner in assignment.owned:
        for _, target, chunk in assignment.sums(owner):
            assert makers[chunk] == target
            finished[chunk] += sums[owner, chunk]
    held = {(makers[chunk], chunk): finished[chunk] for chunk in chunks}
    order = sorted(((o, c) for o, mine in assignment.owned.items() for c in mine), key=lambda x: makers[x[1]] != x[0])
    for owner, chunk in order:
        for transfer in assignment.averages(owner, chunk):
            assert transfer.source == assignment.source(transfer.target, chunk)
            assert (transfer.target, chunk) not in held or makers[chunk] == transfer.target
            held[transfer.target, chunk] = held[transfer.source, chunk]
    members = [m for m in range(len(plan.members)) if plan.rows[m] in assignment.rows]
    return {member: [held[member, chunk] for chunk in chunks] for member in members}


def transfers(assignment: Assignment, counted: frozenset[int]) -> set[Transfer]:
    found = {each for member in counted for each in assignment.parts(member)}
    for owner, mine in assignment.owned.items():
        found |= {*assignment.sums(owner), *(each for chunk in mine for each in assignment.averages(owner, chunk))}
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_each_chunk_of_each_counted_member_is_in_the_average_once(seed: int) -> None:
    random = Random(seed)
    rows = random.choice([1, 1, 2, 3, 5])
    plan = plan_of(random, random.randint(3 * rows, 40), rows)
    living = frozenset(plan.reducers) - set(random.sample(plan.reducers, random.randrange(len(plan.reducers))))
    assignment = plan.assign(living)
    assert set(assignment.owned) <= living
    in_rows = frozenset(m for m, row in enumerate(plan.rows) if row in assignment.rows)
    counted = frozenset(m for m in in_rows if random.random() < 0.8) or in_rows
    averages = follow(assignment, counted)
    assert averages.keys() == in_rows
    assert all(average == dict.fromkeys(counted, 1) for chunks in averages.values() for average in chunks)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_death_changes_only_transfers_of_the_dead(seed: int) -> None:
    random = Random(seed)
    rows = random.choice([1, 2, 4])
    plan = plan_of(random, random.randint(6 * rows, 60), rows)
    living = set(plan.reducers)
    everybody = frozenset(range(len(plan.members)))
    while len(living) > 1:
        before = plan.assign(living)
        dead = random.choice(sorted(living))
        living.remove(dead)
        after = plan.assign(living)
        lost = transfers(before, everybody) - transfers(after, everybody)
        new_owner = dict(enumerate(after.owners[plan.rows[dead]]))
        for transfer in lost:  # what goes between others now stays with the heir, who has it from itself or first
            heir = new_owner.get(transfer.chunk)
            assert dead in transfer[:2] or heir in transfer[:2]
        for row, owners in enumerate(before.owners):
            for chunk, owner in enumerate(owners):
                if owner != dead:
                    assert after.owners[row][chunk] == owner
        for chunk, maker in enumerate(before.makers):
            if maker != dead:
                assert after.makers[chunk] == maker


def test_deaths_in_any_order_end_alike() -> None:
    random = Random(5)
    plan = plan_of(random, 50, 2)
    dead = random.sample(plan.reducers, 6)
    again = plan_of(Random(5), 50, 2)
    for count in range(1, 7):
        again.assign(set(plan.reducers) - set(dead[-count:]))
    living = set(plan.reducers) - set(dead)
    assert again.assign(living).owners == plan.assign(living).owners


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("values", [18_000_000, 125_000_000])
def test_64_reducers_have_at_most_1_2_times_their_share(seed: int, values: int) -> None:
    random = Random(seed)
    names = tuple(f"p{number}" for number in range(64))
    for lines in ([1.0] * 64, [random.uniform(10, 100) for _ in names]):
        plan = Plan.of(names, layout_of(values), lines)
        assert max(plan.rows) == 0
        for member, share in enumerate(plan.shares):
            mine = [plan.chunks[chunk] for chunk in plan.first.owned.get(member, ())]
            assert sum(end - begin for begin, end in mine) <= 1.2 * share * values


@pytest.mark.parametrize("seed", SEEDS)
def test_who_inherits_the_chunks_of_a_dead_reducer_has_its_own_part_of_them(seed: int) -> None:
    random = Random(seed)
    rows = random.choice([1, 2, 4])
    plan = plan_of(random, random.randint(max(24, 6 * rows), 60), rows)
    living = frozenset(plan.reducers)
    while living:
        dead = random.choice(sorted(living))
        before, after = plan.assign(living), plan.assign(living - {dead})
        heirs = after.owners[plan.rows[dead]]
        backups = {(target, chunk) for _, target, chunk in before.backups(dead)}
        assert backups == ({(heirs[chunk], chunk) for chunk in before.owned.get(dead, ())} if heirs else set())
        living -= {dead}


def test_in_a_small_group_nobody_sends_its_own_parts_twice() -> None:
    plan = plan_of(Random(1), 11, 1)
    assert not any(plan.first.backups(reducer) for reducer in plan.reducers)


def test_the_chunks_of_the_dead_are_shared_by_many() -> None:
    names = tuple(f"p{number}" for number in range(64))
    plan = Plan(names, layout_of(18_000_000), (1.0,) * 64)
    for dead in plan.reducers:
        assert max(map(len, plan.assign(set(plan.reducers) - {dead}).owned.values())) <= 7
    many = set(plan.reducers) - set(range(0, 64, 4))
    assert max(map(len, plan.assign(many).owned.values())) <= 10


def test_finishers_are_as_even_as_owners() -> None:
    plan = plan_of(Random(1), 256, 4, reachable=1.0, values=18_000_000)
    finished = Counter(plan.first.makers)
    assert max(finished.values()) <= 3
    assert Counter(plan.first.finishers) == dict.fromkeys(range(4), 80)


def test_a_row_without_a_living_reducer_does_not_count() -> None:
    plan = Plan(("a", "b", "c", "d"), layout_of(3 * SMALLEST_CHUNK), (1.0, 0.0, 1.0, 0.0), (0, 0, 1, 1))
    assignment = plan.assign({2})
    assert assignment.rows == {1}
    assert not assignment.parts(1)
    assert assignment.source(1, 0) is None
    assert set(assignment.makers) == {2}
    nobody = plan.assign(set())
    assert not nobody.rows
    assert not nobody.makers
    assert nobody.source(1, 0) is None


def test_there_are_no_more_rows_than_reducers() -> None:
    names = tuple(f"p{number}" for number in range(300))
    assert max(Plan.of(names, layout_of(1000), [1.0, 1.0, *[0.0] * 298]).rows) == 1
    assert max(Plan.of(names, layout_of(1000), [None, *[0.0] * 299]).rows) == 0


def test_a_line_that_nobody_knows_counts_as_the_usual_one() -> None:
    plan = Plan.of(("a", "b", "c", "d"), layout_of(1000), [30.0, None, 50.0, 0.0])
    assert plan.shares == Plan.of(("a", "b", "c", "d"), layout_of(1000), [30.0, 40.0, 50.0, 0.0]).shares
    assert plan.shares[1] > 0


def test_shares_make_all_lines_busy_for_the_same_time() -> None:
    lines, members = [100.0, 50.0, 25.0, 100.0], 10
    found = shares(lines, members)
    assert sum(found) == pytest.approx(1)
    times = [(1 + share * (members - 2)) / line for share, line in zip(found, lines, strict=True)]
    assert times == pytest.approx([times[0]] * 4)
    assert shares([100.0, 100.0, 1.0], 10)[2] == 0.0
    assert shares([30.0, 10.0], 2) == [0.75, 0.25]


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_have_like_bandwidth_and_as_many_members(seed: int) -> None:
    random, count = Random(seed), 256
    names = tuple(f"p{number}" for number in range(count))
    lines = [random.uniform(10, 100) if random.random() < 0.3 else 0.0 for _ in names]
    rows, found = row_count(count), Plan.of(names, layout_of(1000), lines).rows
    assert Counter(found) == dict.fromkeys(range(rows), count // rows)
    sums = [sum(line for line, each in zip(lines, found, strict=True) if each == row) for row in range(rows)]
    assert max(sums) <= 1.15 * min(sums)
