"""Those who only average: how fast their lines are found to be, and what it is found that they carried."""

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.lib.lines import Lines, SimulatedTime, Wire
from dedloc_kit.learning.train.flat import CHUNK, FlatLayout
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.carried import WHOLE, carried
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of, decode, read_part
from dedloc_kit.swarm.allreduce.encoding.feedback import Feedback
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.allreduce.reduction.keeping import DiskFailed, Kept, OnDisk
from dedloc_kit.swarm.allreduce.round import RoundFailed
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.allreduce.window import Meter
from dedloc_kit.swarm.allreduce.wire import Kind
from tests.swarm.allreduce.tapped import Simulated, Tap, check_one_step, kind_of

COORDINATOR, LENDER = 0, 1
SAMPLES = (0, 0, 5, 4, 3, 7, 2, 6)
RATES = (250_000.0, 1_000_000.0, *[300_000.0] * 6)
"""Bytes per second: the coordinator's line is slow, all others are clients."""
SIZE = 700_000


def meet(reducers: Sequence[float | None]) -> tuple[Simulated, float, list[float | None]]:
    """A round whose reducers are held to have these lines; how long it took, and what each line was found to be."""
    torch.manual_seed(0)
    party = Simulated([torch.randn(SIZE) for _ in SAMPLES], SAMPLES, compression="4bit", clients=6)
    party.plan = Plan.of(party.plan.members, party.plan.layout, [*reducers, *[0.0] * 6])
    simulated = SimulatedTime()
    began = simulated.now
    with simulated.running() as runner:
        party.wires = Lines(simulated, RATES)
        assert len(check_one_step(party, runner.run(party.meet()), 0.3)) == len(SAMPLES)
    return party, simulated.now - began, [member.upload_rate for member in party.members]


def test_work_goes_to_a_lent_line_as_it_is_measured_and_a_round_takes_less_time() -> None:
    party, seconds, found = meet([None, None])
    assert party.plan.shares[:2] == (0.5, 0.5), "nothing is known of them"
    slow, quick = found[:2]
    assert slow == pytest.approx(RATES[COORDINATOR], rel=0.25)
    assert quick is not None
    assert quick > 3 * RATES[COORDINATOR]
    again, less, _ = meet([slow, quick])
    assert again.plan.shares[LENDER] > 5 * again.plan.shares[COORDINATOR]
    assert less < seconds / 2
    gifts = [carried_in(each) for each in (party, again)]
    assert all(set(gift) == {"peer0", "peer1"} for gift in gifts)
    assert gifts[0]["peer1"] == pytest.approx(gifts[0]["peer0"], rel=0.1)
    assert gifts[0]["peer1"] == pytest.approx(len(SAMPLES[2:]) * SIZE / 2, rel=0.1), "4 bits up and 4 down"
    assert gifts[1]["peer1"] == pytest.approx(2 * gifts[0]["peer1"] * again.plan.shares[LENDER], rel=0.1)


def carried_in(party: Simulated) -> dict[str, int]:
    """What the lines of those carried who brought no samples, as the first member knows it."""
    member = party.members[0]
    lenders = [entry.peer for entry in member.present if not entry.samples]
    assert member.commit is not None
    weights = {entry.peer: weight for entry, weight in zip(member.counted, member.commit.value.weights, strict=True)}
    sizes = [
        (end - begin) // 2 + len(made) for (begin, end), made in zip(party.plan.chunks, member.average, strict=True)
    ]
    return carried(member.makers, lenders, weights, sizes)


def test_lines_that_are_alike_are_found_to_be_and_the_busiest_one_has_less_to_do() -> None:
    clients, size, busiest = 6, 12 * CHUNK, dict[int, int]()
    for lenders in (0, 2):
        reducers = 1 + lenders
        samples = (0,) * reducers + SAMPLES[2:]
        torch.manual_seed(0)
        party = Simulated([torch.randn(size) for _ in samples], samples, compression="4bit", clients=clients)
        party.plan = Plan.of(party.plan.members, party.plan.layout, [1.0] * reducers + [0.0] * clients)
        party.limit = 600.0
        simulated = SimulatedTime()
        with simulated.running() as runner:
            party.wires = Lines(simulated, [400_000.0] * len(samples))
            assert len(check_one_step(party, runner.run(party.meet()), 0.3)) == len(samples)
        found = [member.upload_rate or 0.0 for member in party.members[:reducers]]
        assert max(found) < 1.25 * min(found), "less than the step in which lines are told"
        assert 360_000.0 < min(found) < 600_000.0, "a few chunks do not fill it all the time"
        busiest[lenders] = max(party.wires.sent)
    # Each of them gets the averages as well: with more clients it comes to a third.
    assert busiest[2] / busiest[0] == pytest.approx((clients + 2) / (clients * 3), rel=0.05)


def party_of(clients: int, samples: tuple[int, ...], size: int = SIZE) -> Simulated:
    torch.manual_seed(0)
    gradients = [torch.randn(size) for _ in samples]
    party = Simulated(gradients, samples, compression="4bit", clients=clients, organizer=COORDINATOR)
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
            assert len(check_one_step(party, runner.run(party.meet()), 0.3)) == 4
        averages.append(party.averages[COORDINATOR])
        lender = party.members[LENDER]
        assert lender.average == party.members[COORDINATOR].average
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
    assert {0, 2, 3} <= {*check_one_step(party, outcomes, 0.3)}
    assert isinstance(outcomes[LENDER], RoundFailed)
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
        assert {*check_one_step(party, outcomes, 0.3)} >= {*living}
        assert party.ranking[0] not in (LENDER, volunteer), "who leads costs more"
        counted = {f"peer{number}" for number in living if samples[number]}
        for number in living:
            assert {entry.peer for entry in party.members[number].counted} >= counted
            assert f"peer{dies}" not in party.members[number].makers, "it carried nothing"
        return took

    usual = seconds(None)
    lent, other = (seconds(number, 0.4 * usual) - usual for number in (LENDER, volunteer))
    assert 0 < lent < 1.15 * other


class TappedLines(Lines):
    tap: Tap


class TappedWire(Wire):
    async def send(self, content: bytes | memoryview) -> None:
        lines = self.lines
        assert isinstance(lines, TappedLines)
        for message in await lines.tap(self.me, self.other, bytes(content)):
            await super().send(message)


def nothing(number: int, name: bytes, encoded: bytes) -> Sequence[bytes]:
    """Takes what it is given, and gives no averages."""
    return []


def outdated(number: int, name: bytes, encoded: bytes) -> Sequence[bytes]:
    """Gives averages of others than those who count in this round."""
    return [wire.average(number, b"\x07" * 32, encoded)]


def dense(number: int, name: bytes, encoded: bytes) -> Sequence[bytes]:
    """Gives exact averages where 4 bits are agreed."""
    begin, end = FlatLayout.of([torch.empty(SIZE // 4)]).grid()[number]
    values = decode(read_part(encoded), end - begin)
    exact = Feedback(SIZE).encode(codec_of("none").averages, values, 0)
    return [wire.average(number, name, bytes(exact.SerializeToString()))]


@pytest.mark.parametrize(("gives", "compression"), [(nothing, "none"), (outdated, "none"), (dense, "4bit")])
def test_a_round_ends_without_a_lender_that_gives_nothing_what_is_old_or_too_much_and_it_is_named(
    gives: Callable[[int, bytes, bytes], Sequence[bytes]], compression: str
) -> None:
    torch.manual_seed(0)
    samples = (0, 0, 5, 4, 3)
    gradients = [torch.randn(SIZE // 4) for _ in samples]
    party = Simulated(gradients, samples, compression=compression, clients=2, organizer=COORDINATOR)
    party.patience = Patience(2.0, 4.0)
    simulated = SimulatedTime()

    async def tap(sender: int, receiver: int, message: bytes) -> Sequence[bytes]:
        if sender == LENDER and kind_of(message) == Kind.AVERAGE:
            return gives(*wire.read_average(message[1:]))
        return [message]

    with simulated.running() as runner:
        party.wires = lines = TappedLines(simulated, [1_000_000.0] * len(samples), wire=TappedWire)
        lines.tap = tap
        outcomes = runner.run(party.meet())
    living = [number for number in range(len(samples)) if number != LENDER]
    assert {*living} <= {*check_one_step(party, outcomes, 0.3 if compression == "4bit" else 1e-4)}
    for number in living:
        assert "peer1" not in party.members[number].makers, "it carried nothing"
    assert all(party.members[number].culprits | party.members[number].named == {"peer1"} for number in living)


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


def test_what_a_line_carried_follows_from_who_reduced_and_who_counts() -> None:
    owners, sizes = ["p0", "p1"], [400, 600]
    assert carried(owners, ("p0", "p1"), {"p2": 30, "p3": 40}, sizes) == {"p0": 800, "p1": 1200}
    assert carried(owners, ("p0",), {"p1": 20, "p2": 30}, sizes) == {"p0": 800}, "who trains lends nothing"
    assert carried(["p1", "p1"], ("p0", "p1"), {"p2": 30}, sizes) == {"p1": 1000}, "who died carried nothing"


def test_friends_who_give_next_to_nothing_bring_a_lender_next_to_nothing() -> None:
    friends, honest = [f"friend{number}" for number in range(60)], ["a", "b", "c", "d"]
    weights = {**dict.fromkeys(friends, 1), **dict.fromkeys(honest, 10_000)}
    owners, sizes, lenders = ["p0", "p1"], [400, 600], ("p0", "p1")
    found = carried(owners, lenders, weights, sizes)["p1"]
    alone = carried(owners, lenders, dict.fromkeys(honest, 10_000), sizes)["p1"]
    assert found - alone == pytest.approx(60 * 1 / (WHOLE * 40_060) * 600, abs=1)
    assert found < 1.04 * alone
    assert math.isclose(carried(owners, lenders, {f"p{number}": 1 for number in range(2, 66)}, sizes)["p1"], 64 * 600)
