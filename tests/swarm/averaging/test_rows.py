"""An all-reduce over rows: the same bits for all, and the exact mean of those on the roll, whoever dies and whenever.

All of it happens in simulated time: nobody is taken for dead because this machine is slow.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence

import pytest
import torch
from torch import Tensor

from benchmarks.lib.lines import Lines, SimulatedTime
from benchmarks.lib.party import Party
from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.swarm.averaging.agreement.handshake import GroupRefused
from dedloc_kit.swarm.averaging.agreement.roll import Fault
from dedloc_kit.swarm.averaging.allreduce import AllReduce, Patience
from dedloc_kit.swarm.averaging.reduction.plan import PIECES, Plan, balanced
from dedloc_kit.swarm.averaging.reduction.reducing import Reducing
from dedloc_kit.swarm.averaging.streams import messages
from dedloc_kit.swarm.averaging.streams.messages import Says, say
from dedloc_kit.swarm.network.service import Stream

SIZE, RATE = 60_000, 400_000.0
PATIENCE = Patience(2.0, 4.0)
LIMIT = 300.0
"""Simulated seconds in which every round has to be over."""


class Rows(Party):
    """Over lines in a time of their own."""

    wires: Lines
    simulated: SimulatedTime

    async def connect(self, me: int, number: int) -> tuple[Stream, Stream]:
        return await self.wires.connect(me, number)

    def run(self, story: Callable[[], Coroutine[None, None, None]] | None = None) -> list[BaseException | None]:
        """A round, in which this happens."""

        async def meet() -> list[BaseException | None]:
            await self.begin()
            if story is not None:
                await story()
            async with asyncio.timeout(LIMIT):
                return await self.end()

        self.simulated = SimulatedTime()
        with self.simulated.running() as runner:
            self.wires = Lines(self.simulated, [RATE] * len(self.gradients))
            return runner.run(meet())


def in_rows(rows: Sequence[int], *, compression: str = "none", clients: int = 0, global_batch: int = 1) -> Rows:
    torch.manual_seed(0)
    gradients = [torch.randn(SIZE) for _ in rows]
    samples = [1 + 7 * number % 5 for number in range(len(rows))]
    return Rows(
        gradients, samples, global_batch, compression, clients=clients, rows=rows, organizer=1, patience=PATIENCE
    )


def three_by_three(**kind: object) -> Rows:
    return in_rows([0, 1, 2] * 3, **kind)  # type: ignore[arg-type]


def check(party: Rows, living: Sequence[int], outcomes: Sequence[object], error: float = 1e-6) -> set[int]:
    """All of these have the same bits, and they are the average of those on the roll; who is on it."""
    assert [outcomes[number] for number in living] == [None] * len(living), outcomes
    introductions = party.members[living[0]].introductions
    assert introductions is not None
    counted = [int(peer.removeprefix("peer")) for peer in introductions.contributions]
    weights = torch.tensor([float(party.samples[number]) for number in counted])
    mean: Tensor = weights @ torch.stack([party.gradients[number] for number in counted]) / weights.sum()
    for number in living:
        found = party.members[number].introductions
        assert found is not None
        assert found.signed == introductions.signed
        assert party.members[number].messages == party.members[living[0]].messages
        assert torch.equal(party.averages[number], party.averages[living[0]])
    assert float((party.averages[living[0]] - mean).norm() / mean.norm()) < error
    return set(counted)


@pytest.mark.parametrize("side", [3, 4])
@pytest.mark.parametrize(("compression", "error"), [("none", 1e-6), ("8bit", 0.03), ("4bit", 0.3)])
def test_all_rows_end_with_the_same_bits_and_the_mean_of_all(side: int, compression: str, error: float) -> None:
    party = in_rows([number % side for number in range(side * side)], compression=compression)
    everybody = range(side * side)
    assert check(party, everybody, party.run(), error) == set(everybody)
    assert not any(member.culprits or member.named or member.doubted for member in party.members)


def test_whoever_reduces_nothing_has_streams_to_the_reducers_of_its_row_alone() -> None:
    party = in_rows([0, 1, 2, 3] * 4, clients=8)
    assert check(party, range(16), party.run()) == set(range(16))
    for client in range(8, 16):
        assert {number for number, *_ in party.lines[client]} == {client % 4, client % 4 + 4}


def test_rows_with_too_few_samples_together_are_refused_alike_by_all() -> None:
    party = three_by_three(global_batch=27)
    outcomes = party.run()
    assert [str(outcome) for outcome in outcomes] == ["26 of 27 samples"] * 9
    assert all(isinstance(outcome, GroupRefused) for outcome in outcomes)


def begins(member: AllReduce) -> bool:
    return True


def sends(member: AllReduce) -> bool:
    return len(member._sent) >= 2


def knows_the_roll(member: AllReduce) -> bool:
    return member._voter.roll is not None


def has_averages(member: AllReduce) -> bool:
    return knows_the_roll(member) and len(member.averages.missing()) < len(member.plan.chunks)


def holds_the_average(member: AllReduce) -> bool:
    return member._voter.acknowledged is not None


async def until(when: Callable[[AllReduce], bool], member: AllReduce) -> None:
    async with asyncio.timeout(LIMIT):
        while not when(member):
            assert not member.over, "it lives to the end"
            await asyncio.sleep(0.003)


def leader(party: Party) -> int:
    return party.ranking[0]


def head(party: Party) -> int:
    """Of another row than the leader's."""
    return next(r for r in party.ranking if party.plan.rows[r] != party.plan.rows[party.ranking[0]])


def owner(party: Party) -> int:
    """Of that row, but not its head."""
    return next(r for r in party.plan.teams[party.plan.rows[head(party)]] if r != head(party))


@pytest.mark.parametrize("when", [begins, sends, knows_the_roll, has_averages, holds_the_average])
@pytest.mark.parametrize("who", [leader, head, owner])
def test_whoever_dies_in_rows_the_others_end_with_the_average_of_those_on_the_roll(
    who: Callable[[Party], int], when: Callable[[AllReduce], bool]
) -> None:
    party = three_by_three()
    victim = who(party)

    async def story() -> None:
        await until(when, party.members[victim])
        party.kill(victim)

    outcomes = party.run(story)
    living = [number for number in range(9) if number != victim]
    assert check(party, living, outcomes) >= set(living)
    for number in living:
        member = party.members[number]
        assert member.culprits | member.named <= {f"peer{victim}"}, "no survivor is blamed"


def test_members_of_a_row_that_has_failed_take_the_step_of_the_others_and_are_left_out_of_it() -> None:
    party = in_rows([0, 1, 2] * 4, clients=9)
    victim = head(party)
    row = party.plan.rows[victim]

    async def story() -> None:
        await until(sends, party.members[next(m for m in party.plan.teams[row] if m != victim)])
        party.kill(victim)

    outcomes = party.run(story)
    living = [number for number in range(12) if number != victim]
    counted = {number for number in living if party.plan.rows[number] != row}
    assert check(party, living, outcomes) == counted
    for number in living:
        assert party.members[number].absent.keys() == {f"peer{m}" for m in party.plan.teams[row]}


def test_of_rows_that_are_cut_in_two_one_side_goes_on_and_the_other_takes_no_step() -> None:
    party = three_by_three()
    some, others = [0, 1, 2, 3, 4], [5, 6, 7, 8]

    async def story() -> None:
        await until(sends, party.members[leader(party)])
        party.cut(some, others)

    outcomes = party.run(story)
    took = [number for number, outcome in enumerate(outcomes) if outcome is None]
    assert took, outcomes
    assert set(took) <= set(some), outcomes
    assert all(isinstance(outcome, Fault) for outcome in outcomes if outcome is not None), outcomes
    assert check(party, took, outcomes) <= set(some)


class SendsAMeanTwice(AllReduce):
    """A finisher gets each of its means, and then another one."""

    def post(self, reducer: int, *contents: bytes) -> None:
        super().post(reducer, *contents)
        for content in contents:
            if content[0] == Says.MEAN:
                middle = len(content) // 2
                super().post(reducer, content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])


class SendsMeansThatCannotBeRead(AllReduce):
    def post(self, reducer: int, *contents: bytes) -> None:
        super().post(reducer, *(c[:-4] if c[0] == Says.MEAN else c for c in contents))


class SpeaksForAnotherRow(AllReduce):
    """It says of reducers of other rows that they are gone."""

    def post(self, reducer: int, *contents: bytes) -> None:
        strangers = [r for r in self.plan.reducers if self.plan.rows[r] not in (self.row, self.plan.rows[reducer])]
        super().post(reducer, say(Says.GONE, strangers), *contents)


@pytest.mark.parametrize("kind", [SendsAMeanTwice, SendsMeansThatCannotBeRead, SpeaksForAnotherRow])
def test_an_owner_that_sends_nonsense_to_other_rows_is_named_and_the_others_take_the_step(
    kind: type[AllReduce],
) -> None:
    party = three_by_three()
    liar = owner(party)
    party.kinds[liar] = kind

    async def story() -> None:
        await asyncio.wait([task for number, task in enumerate(party.tasks) if number != liar], timeout=LIMIT)
        party.tasks[liar].cancel()

    outcomes = party.run(story)
    honest = [number for number in range(9) if number != liar]
    assert check(party, honest, outcomes) >= set(honest)
    culprits = set().union(*(party.members[number].culprits for number in honest))
    assert culprits == {f"peer{liar}"}


class HandsOnNothing(AllReduce):
    """It leads its row, says that it is there, and tells the row nothing of what the leader says."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        heads = self._voter.heads
        heads.first_told = list  # type: ignore[method-assign]


def test_a_head_that_hands_on_nothing_costs_its_row_the_step_at_most() -> None:
    party = in_rows([0, 1, 2, 3] * 4)
    liar = head(party)
    party.kinds[liar] = HandsOnNothing
    row = party.plan.rows[liar]

    async def story() -> None:
        others = [task for number, task in enumerate(party.tasks) if party.plan.rows[number] != row]
        await asyncio.wait(others, timeout=LIMIT)
        party.tasks[liar].cancel()

    outcomes = party.run(story)
    honest = [number for number in range(16) if party.plan.rows[number] != row]
    check(party, honest, outcomes)


def test_a_mean_is_taken_from_the_owner_of_its_values_alone() -> None:
    party = three_by_three()

    async def story() -> None:
        member = party.members[leader(party)]
        deal, me = member.plan.first, member.mine
        number = deal.finishers.index(me)
        right = {owners[number] for owners in deal.owners} - {me}
        wrong = next(r for r in member.plan.reducers if r not in right | set(member.plan.teams[member.row]))
        means = Reducing.take_mean
        await until(knows_the_roll, member)
        roll = member._voter.roll
        assert roll is not None
        way = member._coding.of_means(0, member.plan.layout)
        begin, end = member.plan.chunks[number]
        false = way.compress(torch.full((end - begin,), 1e6)).SerializeToString()
        means(member._reducing, wrong, messages.mean(number, roll.name, false)[1:])

    assert check(party, range(9), party.run(story)) == set(range(9))


class Noting(Rows):
    """Notes who sends averages of a roll while it takes part in a later ballot."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.early: set[int] = set()

    def wrap(self, stream: Stream, member: int) -> None:
        send = stream.send

        async def noting(content: bytes | memoryview) -> None:
            voter = self.members[member]._voter
            if content[0] == Says.AVERAGE and (voter.roll is None or voter.roll.ballot < voter.ballot):
                self.early.add(member)
            await send(content)

        stream.send = noting  # type: ignore[method-assign]


def test_averages_wait_while_there_is_another_ballot_and_come_if_its_roll_is_the_same() -> None:
    async def story() -> None:
        leader = party.members[party.ranking[0]]
        await until(has_averages, leader)
        leader._voter.leading.call(0)
        called.append(leader._voter.ballot)

    called, usual = list[int](), three_by_three()
    party = Noting(usual.gradients, usual.samples, rows=usual.rows, organizer=1, patience=PATIENCE)
    assert check(party, range(9), party.run(story)) == set(range(9))
    assert not party.early, "averages are sent that may be of no use"
    assert [member._voter.ballot for member in party.members] == 9 * called, "somebody has waited in vain"


# Who reduces what


def a_plan(rows: Sequence[int], bandwidths: Sequence[float]) -> Plan:
    layout = FlatLayout.of([torch.empty(1_000_000)])
    members = tuple(f"peer{number}" for number in range(len(rows)))
    return Plan(members, layout, balanced(layout.size, bandwidths, rows), tuple(rows))


def test_in_each_row_the_same_chunks_have_an_owner_and_finishers_are_dealt_evenly_over_the_rows() -> None:
    rows, bandwidths = [0, 1, 2, 3] * 8, [4.0, 3.0, 2.0, 2.0] * 4 + [0.0] * 16
    plan = a_plan(rows, bandwidths)
    assert plan.chunks[0][0] == 0
    assert [begin for begin, _ in plan.chunks[1:]] == [end for _, end in plan.chunks[:-1]]
    assert plan.chunks[-1][1] == 1_000_000
    assert len(plan.chunks) >= PIECES * 4
    for row, owners in enumerate(plan.first.owners):
        assert {plan.rows[owner] for owner in owners} == {row}
        assert all(bandwidths[owner] for owner in owners)
        assert len(set(owners)) == 4
    finished = [sum(plan.rows[f] == row for f in plan.first.finishers) for row in range(4)]
    assert max(finished) - min(finished) <= 1
    for number, finisher in enumerate(plan.first.finishers):
        assert finisher in {owners[number] for owners in plan.first.owners}


def test_of_an_owner_that_dies_its_chunks_are_dealt_anew_in_its_row_and_nothing_else_moves() -> None:
    plan = a_plan([0, 1, 2, 3] * 8, [1.0] * 16 + [0.0] * 16)
    victim = plan.first.owners[2][0]
    deal = plan.deal([r for r in plan.reducers if r != victim])
    assert [o for row, o in enumerate(deal.owners) if row != 2] == [
        o for row, o in enumerate(plan.first.owners) if row != 2
    ]
    heirs = {new for old, new in zip(plan.first.owners[2], deal.owners[2], strict=True) if old == victim}
    assert len(heirs) == 3
    assert all(old in (new, victim) for old, new in zip(plan.first.owners[2], deal.owners[2], strict=True))
    assert all(old in (new, victim) for old, new in zip(plan.first.finishers, deal.finishers, strict=True))


def test_chunks_and_those_of_the_dead_go_to_whoever_has_least_to_do_for_its_share() -> None:
    layout, shares = FlatLayout.of([torch.empty(1_000_000)]), (250_000, 250_000, 250_000, 150_000, 50_000, 50_000)
    members = tuple(f"peer{number}" for number in range(12))
    plan = Plan(members, layout, 2 * shares, (0,) * 6 + (1,) * 6)
    chunks = Counter(plan.first.owners[0])
    assert all(chunks[a] / shares[a] <= (chunks[b] + 1) / shares[b] for a in range(6) for b in range(6))
    after = Counter(plan.deal([r for r in plan.reducers if r != 3]).owners[0])
    assert sum(after.values()) == len(plan.chunks)
    assert [after[reducer] - chunks[reducer] for reducer in range(6)] == [2, 1, 1, -4, 0, 0]


def test_whoever_reduces_little_leads_last_and_all_others_by_turns() -> None:
    shares = [60_000, 180_000, 200_000, 250_000, 310_000]
    plan = Plan(tuple("abcde"), FlatLayout.of([torch.empty(1_000_000)]), tuple(shares))
    rankings = [plan.ranking(f"{number:040x}") for number in range(40)]
    assert {frozenset(ranking[:3]) for ranking in rankings} == {frozenset({2, 3, 4})}
    assert {ranking[0] for ranking in rankings} == {2, 3, 4}
    assert all(sorted(ranking) == [0, 1, 2, 3, 4] for ranking in rankings)


def test_a_row_of_which_no_reducer_lives_has_no_owners_and_finishes_nothing() -> None:
    plan = a_plan([0, 1, 2, 3] * 8, [1.0] * 16 + [0.0] * 16)
    deal = plan.deal([r for r in plan.reducers if plan.rows[r] != 1])
    assert deal.owners[1] == ()
    assert 1 not in {plan.rows[finisher] for finisher in deal.finishers}
    assert deal.source(0, 1, 17) == -1
