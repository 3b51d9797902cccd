"""The plan of an all-reduce in rows, followed chunk by chunk."""

from collections import Counter
from random import Random

import pytest

from dedloc_kit.swarm.allreduce.rows import Deal, RowPlan, Transfer, chunk_length, divide, row_count, shares

SEEDS = range(40)


def plan_of(random: Random, members: int, rows: int, chunks: int, reachable: float = 0.5) -> RowPlan:
    """Members with lines of 10 to 100, of whom some reduce."""
    names = tuple(f"p{number}" for number in range(members))
    lines = {name: random.uniform(10, 100) if random.random() < reachable else 0.0 for name in names}
    for number in range(rows):  # each row has one that reduces
        lines[names[number]] = lines[names[number]] or 50.0
    row_of = divide(lines, rows)
    share_of = dict.fromkeys(names, 0.0)
    for row in range(rows):
        team = [name for name in names if row_of[name] == row]
        able = [name for name in team if lines[name]]
        share_of |= dict(zip(able, shares([lines[name] for name in able], len(team)), strict=True))
    sizes = tuple(random.randint(90, 100) for _ in range(chunks))
    return RowPlan(names, tuple(row_of[n] for n in names), tuple(share_of[n] for n in names), sizes)


def follow(deal: Deal, counted: frozenset[str]) -> dict[str, list[Counter[str]]]:
    """What the average of each chunk is the sum of, at each living member that gets one."""
    plan, chunks = deal.plan, range(len(deal.plan.sizes))
    brought = {(member, chunk): member for member in counted for chunk in chunks}
    sums: dict[tuple[str, int], Counter[str]] = {}
    for owner, mine in deal.owned.items():
        for chunk in mine:
            sums[owner, chunk] = Counter([brought[owner, chunk]] if owner in counted else [])
    for member in counted:
        for source, target, chunk in deal.parts(member):
            sums[target, chunk][brought[source, chunk]] += 1
    finished = {chunk: Counter(sums[deal.finisher(chunk), chunk]) for chunk in chunks}
    for owner in deal.owned:
        for _, target, chunk in deal.sums(owner):
            assert deal.finishes(target, chunk)
            finished[chunk] += sums[owner, chunk]
    held = {(deal.finisher(chunk), chunk): finished[chunk] for chunk in chunks}
    order = sorted(((o, c) for o, mine in deal.owned.items() for c in mine), key=lambda each: not deal.finishes(*each))
    for owner, chunk in order:
        for transfer in deal.averages(owner, chunk):
            assert transfer.source == deal.source(transfer.target, chunk)
            assert (transfer.target, chunk) not in held or deal.finishes(transfer.target, chunk)
            held[transfer.target, chunk] = held[transfer.source, chunk]
    members = [m for m in plan.members if deal.owners[plan.row_of[m]]]
    return {member: [held[member, chunk] for chunk in chunks] for member in members}


def transfers(deal: Deal, counted: frozenset[str]) -> set[Transfer]:
    found = {each for member in counted for each in deal.parts(member)}
    for owner, mine in deal.owned.items():
        found |= {*deal.sums(owner), *(each for chunk in mine for each in deal.averages(owner, chunk))}
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_each_chunk_of_each_counted_member_is_in_the_average_once(seed: int) -> None:
    random = Random(seed)
    rows = random.choice([1, 1, 2, 3, 5])
    plan = plan_of(random, random.randint(3 * rows, 40), rows, random.randint(1, 50))
    living = plan.reducers - set(random.sample(sorted(plan.reducers), random.randrange(len(plan.reducers))))
    deal = plan.deal(living)
    assert set(deal.owned) <= living
    in_rows = frozenset(m for m in plan.members if plan.row_of[m] in deal.rows)
    counted = frozenset(m for m in in_rows if random.random() < 0.8) or in_rows
    averages = follow(deal, counted)
    assert averages.keys() == in_rows
    assert all(average == dict.fromkeys(counted, 1) for chunks in averages.values() for average in chunks)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_death_changes_only_transfers_of_the_dead(seed: int) -> None:
    random = Random(seed)
    rows = random.choice([1, 2, 4])
    plan = plan_of(random, random.randint(6 * rows, 60), rows, random.randint(20, 80))
    living = set(plan.reducers)
    everybody = frozenset(plan.members)
    while len(living) > 1:
        before = plan.deal(living)
        dead = random.choice(sorted(living))
        living.remove(dead)
        after = plan.deal(living)
        lost = transfers(before, everybody) - transfers(after, everybody)
        new_owner = {
            c: o[c] for row, o in enumerate(after.owners) if row == plan.row_of[dead] and o for c in range(len(o))
        }
        for transfer in lost:  # what goes between others now stays with the heir, who has it from itself or first
            heir = new_owner.get(transfer.chunk)
            assert dead in transfer[:2] or heir in transfer[:2]
        for row, owners in enumerate(before.owners):
            for chunk, owner in enumerate(owners):
                if owner != dead:
                    assert after.owners[row][chunk] == owner
        for chunk in range(len(plan.sizes)):
            if before.finisher(chunk) != dead:
                assert after.finisher(chunk) == before.finisher(chunk)


def test_deaths_in_any_order_end_alike() -> None:
    random = Random(5)
    plan = plan_of(random, 50, 2, 60)
    dead = random.sample(sorted(plan.reducers), 6)
    again = plan_of(Random(5), 50, 2, 60)
    for count in range(1, 7):
        again.deal(plan.reducers - set(dead[-count:]))
    assert again.deal(plan.reducers - set(dead)).owners == plan.deal(plan.reducers - set(dead)).owners


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("values", [18_000_000, 125_000_000])
def test_64_reducers_have_at_most_1_2_times_their_share(seed: int, values: int) -> None:
    random, length = Random(seed), chunk_length(values)
    sizes = tuple(min(length, values - begin) for begin in range(0, values, length))
    names = tuple(f"p{number}" for number in range(64))
    for lines in ([1.0] * 64, [random.uniform(10, 100) for _ in names]):
        fair = shares(lines, 64)
        plan = RowPlan(names, (0,) * 64, tuple(fair), sizes)
        deal = plan.deal(plan.reducers)
        for name, share in zip(names, fair, strict=True):
            load = sum(sizes[chunk] for chunk in deal.owned.get(name, ()))
            assert load <= 1.2 * share * values


@pytest.mark.parametrize("seed", SEEDS)
def test_who_inherits_the_chunks_of_a_dead_reducer_has_its_own_part_of_them(seed: int) -> None:
    random = Random(seed)
    rows = random.choice([1, 2, 4])
    plan = plan_of(random, random.randint(6 * rows, 60), rows, random.randint(20, 80))
    living = plan.reducers
    while living:
        dead = random.choice(sorted(living))
        before, after = plan.deal(living), plan.deal(living - {dead})
        row = plan.row_of[dead]
        lost = before.owned.get(dead, ())
        backups = {(target, chunk) for _, target, chunk in before.backups(dead)}
        assert backups == {(after.owners[row][chunk], chunk) for chunk in lost if after.owners[row]}
        assert before.backups("p0") or "p0" not in before.owned or len(living & set(plan.teams[plan.row_of["p0"]])) == 1
        living -= {dead}


def test_the_chunks_of_the_dead_are_shared_by_many() -> None:
    names = tuple(f"p{number}" for number in range(64))
    plan = RowPlan(names, (0,) * 64, (1.0,) * 64, (100,) * 320)
    for dead in names:
        assert max(map(len, plan.deal(plan.reducers - {dead}).owned.values())) <= 7


def test_finishers_are_as_even_as_owners() -> None:
    plan = plan_of(Random(1), 256, 4, 320, reachable=1.0)
    deal = plan.deal(plan.reducers)
    finished = Counter(deal.finisher(chunk) for chunk in range(320))
    assert max(finished.values()) <= 3
    assert Counter(deal.finishers) == dict.fromkeys(range(4), 80)


def test_a_row_without_a_living_reducer_does_not_count() -> None:
    plan = RowPlan(("a", "b", "c", "d"), (0, 0, 1, 1), (1.0, 0.0, 1.0, 0.0), (10, 10, 10))
    deal = plan.deal({"c"})
    assert deal.rows == (1,)
    assert not deal.parts("b")
    assert deal.source("b", 0) is None
    assert {deal.finisher(chunk) for chunk in range(3)} == {"c"}
    assert not plan.deal(set()).rows


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
    lines = {f"p{n}": random.uniform(10, 100) if random.random() < 0.3 else 0.0 for n in range(count)}
    rows = row_count(count)
    row_of = divide(lines, rows)
    assert Counter(row_of.values()) == dict.fromkeys(range(rows), count // rows)
    sums = [sum(lines[name] for name in lines if row_of[name] == row) for row in range(rows)]
    assert max(sums) <= 1.15 * min(sums)
