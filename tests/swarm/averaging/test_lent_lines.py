"""Those who only average: how fast their lines are found to be, and what it is found that they carried."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from benchmarks.lib.lines import Lines, SimulatedTime
from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.swarm.averaging.agreement.roll import Roll
from dedloc_kit.swarm.averaging.allreduce import AllReduce, Patience
from dedloc_kit.swarm.averaging.encoding.codec import codec_of
from dedloc_kit.swarm.averaging.reduction.carried import WHOLE, carried
from dedloc_kit.swarm.averaging.reduction.keeping import DiskFailed, Kept, OnDisk
from dedloc_kit.swarm.averaging.reduction.plan import Plan, balanced
from dedloc_kit.swarm.averaging.streams.window import Meter
from tests.swarm.averaging.test_slow_lines import Slow

COORDINATOR, LENDER = 0, 1
SAMPLES = (0, 0, 5, 4, 3, 7, 2, 6)
RATES = (250_000.0, 1_000_000.0, *[300_000.0] * 6)
"""Bytes per second: the coordinator's line is slow, all others are clients."""
SIZE = 700_000


def meet(shares: tuple[int, ...]) -> tuple[Slow, float, list[float | None]]:
    """A round with these shares; how long it took, and what each line was found to be."""
    torch.manual_seed(0)
    party = Slow([torch.randn(SIZE) for _ in SAMPLES], SAMPLES, compression="4bit", clients=6)
    party.plan = Plan(party.plan.members, party.plan.layout, shares)
    simulated = SimulatedTime()
    began = simulated.now
    with simulated.running() as runner:
        party.wires = Lines(simulated, RATES)
        assert runner.run(party.meet()) == [None] * len(SAMPLES)
    return party, simulated.now - began, [member.upload_rate for member in party.members]


def test_work_goes_to_a_lent_line_as_it_is_measured_and_a_round_takes_less_time() -> None:
    bandwidths: list[float | None] = [None, None, *[0.0] * 6]
    shares = balanced(SIZE, bandwidths)
    assert shares[:2] == (SIZE // 2, SIZE // 2), "nothing is known of them"
    party, seconds, found = meet(shares)
    slow, quick = found[:2]
    assert slow == pytest.approx(RATES[COORDINATOR], rel=0.25)
    assert quick is not None
    assert quick > 3 * RATES[COORDINATOR]
    again, less, _ = meet(balanced(SIZE, [slow, quick, *[0.0] * 6]))
    assert again.plan.shares[LENDER] > 5 * again.plan.shares[COORDINATOR]
    assert less < seconds / 2
    gifts = [next(iter(each.members)).carried for each in (party, again)]
    assert all(set(gift) == {"peer0", "peer1"} for gift in gifts)
    assert gifts[0]["peer1"].bytes == pytest.approx(gifts[0]["peer0"].bytes, rel=0.01)
    assert gifts[0]["peer1"].bytes == pytest.approx(len(SAMPLES[2:]) * SIZE / 2, rel=0.05), "4 bits up and 4 down"
    assert gifts[1]["peer1"].bytes == pytest.approx(
        2 * gifts[0]["peer1"].bytes * again.plan.shares[LENDER] / SIZE, rel=0.05
    )


def test_lines_that_are_alike_are_found_to_be_and_the_busiest_one_has_less_to_do() -> None:
    clients, size, busiest = 6, SIZE // 2, dict[int, int]()
    for lenders in (0, 2):
        reducers = 1 + lenders
        samples = (0,) * reducers + SAMPLES[2:]
        torch.manual_seed(0)
        party = Slow([torch.randn(size) for _ in samples], samples, compression="4bit", clients=clients)
        party.plan = Plan(party.plan.members, party.plan.layout, balanced(size, [1.0] * reducers + [0.0] * clients))
        simulated = SimulatedTime()
        with simulated.running() as runner:
            party.wires = Lines(simulated, [100_000.0] * len(samples))
            assert runner.run(party.meet()) == [None] * len(samples)
        found = [member.upload_rate or 0.0 for member in party.members[:reducers]]
        assert max(found) < 1.25 * min(found), "less than the step in which lines are told"
        assert 90_000.0 < min(found) < 150_000.0, "a few chunks do not fill it all the time"
        busiest[lenders] = max(party.wires.sent)
    # Each of them gets the averages as well: with more clients it comes to a third.
    assert busiest[2] / busiest[0] == pytest.approx((clients + 2) / (clients * 3), rel=0.05)


def party_of(clients: int, samples: tuple[int, ...], size: int = SIZE) -> Slow:
    torch.manual_seed(0)
    party = Slow([torch.randn(size) for _ in samples], samples, compression="4bit", clients=clients)
    party.patience = Patience(2.0, 4.0)
    return party


def test_who_lends_a_line_makes_the_same_average_without_holding_any_values(tmp_path: Path) -> None:
    averages = list[torch.Tensor]()
    for lent in ({}, {LENDER: OnDisk(tmp_path)}):
        party = party_of(2, (0, 0, 5, 4), SIZE // 4)
        party.lent = dict(lent)
        simulated = SimulatedTime()
        with simulated.running() as runner:
            party.wires = Lines(simulated, [1_000_000.0] * 4)
            assert runner.run(party.meet()) == [None] * 4
        averages.append(party.averages[COORDINATOR])
        lender = party.members[LENDER]
        assert lender.messages == party.members[COORDINATOR].messages
        assert (lender.averages.place(0) is None) == bool(lent)
    assert torch.equal(*averages)
    assert lender.plan.shares[LENDER] > 0
    assert not list(tmp_path.iterdir()), "a file without a name"


def test_whose_own_disk_is_full_gives_itself_up_and_blames_nobody_else() -> None:
    def full(_: bytes) -> Kept:
        raise DiskFailed("the disk takes nothing more")

    party = party_of(2, (0, 0, 5, 4), SIZE // 4)
    party.lent = {LENDER: full}
    simulated = SimulatedTime()
    with simulated.running() as runner:
        party.wires = Lines(simulated, [1_000_000.0] * 4)
        outcomes = runner.run(party.meet())
    assert [outcome is None for outcome in outcomes] == [True, False, True, True]
    assert party.members[LENDER].culprits == {"peer1"}
    assert not any(member.culprits - {"peer1"} for member in party.members)


def test_a_lender_that_dies_in_the_middle_of_a_round_costs_what_a_reducer_does_that_trains(tmp_path: Path) -> None:
    volunteer, samples = 2, (0, 0, 6, 6, 5, 4, 3)

    def seconds(dies: int | None, after: float = 0.0) -> float:
        party = party_of(3, samples, SIZE // 2)
        party.lent = {LENDER: OnDisk(tmp_path)}
        simulated = SimulatedTime()
        with simulated.running() as runner:
            party.wires = Lines(simulated, [100_000.0] * len(samples))

            async def meet() -> list[BaseException | None]:
                await party.begin()
                if dies is not None:
                    await asyncio.sleep(after)
                    party.kill(dies)
                return await party.end()

            began = simulated.now
            outcomes = runner.run(meet())
            took = simulated.now - began
        living = [number for number in range(len(samples)) if number != dies]
        assert [outcomes[number] for number in living] == [None] * len(living)
        assert party.ranking[0] not in (LENDER, volunteer), "who leads costs more"
        counted = {f"peer{number}" for number in living}
        for number in living:
            member = party.members[number]
            assert member.introductions is not None
            assert member.introductions.contributions.keys() >= counted
            assert f"peer{dies}" not in member.carried
            assert member.messages == party.members[COORDINATOR].messages
        return took

    usual = seconds(None)
    lent, other = (seconds(number, 0.4 * usual) - usual for number in (LENDER, volunteer))
    assert 0 < lent < 1.15 * other


class Silent(AllReduce):
    """Takes what it is given, and gives no averages."""

    def foresee(self, roll: Roll) -> None:
        pass

    def reduce(self, roll: Roll) -> None:
        pass


class Outdated(Silent):
    """Gives averages of another roll than the one of this round."""

    def reduce(self, roll: Roll) -> None:
        old = SimpleNamespace(name=b"\x07" * 32, reducers=roll.reducers, introductions=roll.introductions)
        self._reducing.begin(cast(Roll, old))


class Dense(AllReduce):
    """Gives exact averages where 4 bits are agreed."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._reducing._coding = replace(self._reducing._coding, codec=codec_of("none"))


@pytest.mark.parametrize(("kind", "compression"), [(Silent, "none"), (Outdated, "none"), (Dense, "4bit")])
def test_a_round_ends_without_a_lender_that_gives_nothing_what_is_old_or_too_much_and_it_is_named(
    kind: type[AllReduce], compression: str
) -> None:
    torch.manual_seed(0)
    samples = (0, 0, 5, 4, 3)
    gradients = [torch.randn(SIZE // 4) for _ in samples]
    party = Slow(gradients, samples, compression=compression, clients=2, organizer=COORDINATOR)
    party.patience, party.kinds = Patience(2.0, 4.0), {LENDER: kind}
    simulated = SimulatedTime()
    with simulated.running() as runner:
        party.wires = Lines(simulated, [1_000_000.0] * len(samples))
        outcomes = runner.run(party.meet())
    living = [number for number in range(len(samples)) if number != LENDER]
    assert [outcomes[number] for number in living] == [None] * len(living)
    mean = torch.tensor([5.0, 4.0, 3.0]) @ torch.stack(list(party.gradients[2:])) / 12.0
    for number in living:
        assert float((party.averages[number] - mean).norm() / mean.norm()) < (0.3 if compression == "4bit" else 1e-5)
        assert "peer1" not in party.members[number].carried
    seen = [party.members[number].culprits | party.members[number].doubted for number in living]
    assert any("peer1" in each for each in seen)


def test_one_who_says_that_all_came_at_once_makes_no_line_faster() -> None:
    meter, simulated = Meter(6), SimulatedTime()
    with simulated.running():
        for member in range(6):
            meter.sent(member, 1000)
        for member in range(6):
            simulated.now += 1.0 if member else 1e-6
            assert meter.came(member)
            assert not meter.came(member), "of nothing that is on its way"
    assert 6 * 1000 / 5 < meter.rate < 6 * 1000


def layout(size: int) -> FlatLayout:
    return FlatLayout.of([torch.empty(size)])


def plan_of(shares: tuple[int, ...], rows: tuple[int, ...] = ()) -> Plan:
    return Plan(tuple(f"peer{number}" for number in range(len(shares))), layout(100), shares, rows)


def test_what_a_line_carried_follows_from_who_reduced_and_who_counts() -> None:
    plan = plan_of((40, 60, 0, 0))
    sizes = [10 * (end - begin) for begin, end in plan.chunks]
    assert carried(plan, (0, 1), (0, 1), {0: 0, 1: 0, 2: 30, 3: 40}, sizes) == {0: 800, 1: 1200}
    assert carried(plan, (0, 1), (0,), {0: 0, 1: 20, 2: 30}, sizes) == {0: 800}, "who trains lends nothing"
    assert carried(plan, (1,), (0, 1), {0: 0, 1: 0, 2: 30}, sizes) == {1: 1000}, "who died carried nothing"
    assert carried(plan, (0, 1), (1,), {1: 0, 2: 30}, sizes) == {1: 600}, "nor does who is not on the roll"
    in_rows = plan_of((100, 0, 100, 0), (0, 0, 1, 1))
    sizes = [10 * (end - begin) for begin, end in in_rows.chunks]
    assert carried(in_rows, (0, 2), (0, 2), {0: 0, 1: 30, 2: 0, 3: 0}, sizes) == {0: 1000, 2: 0}


def test_friends_who_give_next_to_nothing_bring_a_lender_next_to_nothing() -> None:
    friends, honest = range(2, 62), range(62, 66)
    weights = {0: 0, 1: 0, **dict.fromkeys(friends, 1), **dict.fromkeys(honest, 10_000)}
    plan = plan_of((40, 60, *[0] * 64))
    sizes = [10 * (end - begin) for begin, end in plan.chunks]
    bytes_ = carried(plan, (0, 1), (0, 1), weights, sizes)
    alone = carried(plan, (0, 1), (0, 1), {m: w for m, w in weights.items() if m not in friends}, sizes)
    assert bytes_[1] - alone[1] == pytest.approx(60 * 1 / (WHOLE * 40_060) * 600, abs=1)
    assert bytes_[1] < 1.04 * alone[1]
    crowd = {0: 0, 1: 0, **dict.fromkeys(range(2, 66), 1)}
    assert math.isclose(carried(plan, (0, 1), (0, 1), crowd, sizes)[1], 64 * 600)
