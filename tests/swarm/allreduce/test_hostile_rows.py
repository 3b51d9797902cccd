"""In a group of several rows: who sends what no honest member sends costs the others nothing but its samples."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
import torch

from benchmarks.lib.lines import Lines, SimulatedTime, Wire
from dedloc_kit.learning.train.flat import SMALLEST_CHUNK, FlatLayout
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding, Feedback
from dedloc_kit.swarm.allreduce.flow import ChunkFlow
from dedloc_kit.swarm.allreduce.parts import Sums
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.allreduce.wire import Kind
from dedloc_kit.swarm.consensus.messages import Report
from tests.swarm.allreduce.tapped import Simulated, Tapped, agreed, check_one_step, kind_of

SAMPLES = (3, 5, 4, 7, 2, 6, 8, 9, 4)
CLIENT = 8
Lie = Callable[[Tapped, int, int, bytes], Sequence[bytes]]
"""What a liar sends in place of a message: itself and its receiver are given."""


def a_party(compression: str = "4bit") -> Simulated:
    torch.manual_seed(0)
    gradients = [torch.randn(100_000) for _ in SAMPLES]
    return Simulated(gradients, SAMPLES, compression=compression, clients=1, row=3, patience=Patience(8.0, 8.0))


def meet(party: Simulated, liar: int, lie: Lie) -> list[object]:
    class Lying(Wire):
        async def send(self, content: bytes | memoryview) -> None:
            message = bytes(content)
            for each in lie(party, self.me, self.other, message) if self.me == liar else [message]:
                await super().send(each)

    async def run() -> list[object]:
        await party.begin()
        await asyncio.wait([task for number, task in enumerate(party.tasks) if number != liar])
        party.tasks[liar].cancel()
        return list(await party.end())

    simulated = SimulatedTime()
    with simulated.running() as runner:
        party.wires = Lines(simulated, [1e7] * len(SAMPLES), wire=Lying)
        return runner.run(run())


def in_place_of_sums(change: Callable[[int, bytes, bytes], bytes]) -> Lie:
    def lie(party: Tapped, me: int, receiver: int, message: bytes) -> Sequence[bytes]:
        return [change(*wire.read_average(message[1:]))] if kind_of(message) == Kind.SUM else [message]

    return lie


def beside_parts(more: Callable[[int, bytes], bytes]) -> Lie:
    """To an owner of the own row."""

    def lie(party: Tapped, me: int, receiver: int, message: bytes) -> Sequence[bytes]:
        return [more(*wire.read_part(message[1:])), message] if kind_of(message) == Kind.PART else [message]

    return lie


def part_for_another_row(party: Tapped, me: int, receiver: int, message: bytes) -> Sequence[bytes]:
    return [wire.part(0, b""), message] if kind_of(message) == Kind.SUM else [message]


LIES = {
    "a sum that cannot be read": in_place_of_sums(lambda number, name, _: wire.row_sum(number, name, b"\x07" * 40)),
    "a sum of a chunk that there is not": in_place_of_sums(lambda _, name, values: wire.row_sum(2**31, name, values)),
    "a sum that is too long": in_place_of_sums(lambda n, name, values: wire.row_sum(n, name, values + bytes(4000))),
    "a sum without a name": in_place_of_sums(lambda n, _, __: bytes([Kind.SUM]) + n.to_bytes(4, "big")),
    "a sum to its own row": beside_parts(lambda number, values: wire.row_sum(number, bytes(32), values)),
    "a part for another row": part_for_another_row,
}


@pytest.mark.parametrize("lie", LIES.values(), ids=list(LIES))
def test_the_others_take_the_step_and_blame_the_liar_alone(lie: Lie) -> None:
    party = a_party()
    liar = party.ranking[-1]
    outcomes = meet(party, liar, lie)
    took = check_one_step(party, outcomes, 0.3)
    living = set(range(len(SAMPLES))) - {liar}
    assert living <= set(took), outcomes
    counted = {int(entry.peer.removeprefix("peer")) for entry in party.members[took[0]].counted}
    assert living <= counted
    blamed = [party.members[number].culprits | party.members[number].named for number in living]
    assert set().union(*blamed) == {f"peer{liar}"}


def test_who_withholds_its_sums_is_named_and_its_row_counts_all_the_same() -> None:
    party = a_party("none")
    party.limit = 30.0
    liar = party.ranking[-1]
    outcomes = meet(party, liar, lambda _, __, ___, message: [] if kind_of(message) == Kind.SUM else [message])
    living = set(range(len(SAMPLES))) - {liar}
    assert living <= set(check_one_step(party, outcomes)), outcomes
    counted = {int(entry.peer.removeprefix("peer")) for entry in party.members[min(living)].counted}
    assert living <= counted
    assert set().union(*(party.members[number].named for number in living)) == {f"peer{liar}"}


def test_a_reducer_that_keeps_its_report_to_itself_is_out_of_the_round_and_suspected_by_the_decider() -> None:
    party = a_party("none")
    party.limit = 30.0
    decider, liar = party.ranking[0], party.ranking[-1]
    outcomes = meet(party, liar, lambda _, __, ___, message: [] if agreed(message, Report) else [message])
    living = set(range(len(SAMPLES))) - {liar}
    assert living <= set(check_one_step(party, outcomes)), outcomes
    assert party.members[decider].culprits == {f"peer{liar}"}
    assert not any(party.members[number].culprits - {f"peer{liar}"} for number in living)


# Memory


def two_rows(values: int = 12 * SMALLEST_CHUNK) -> tuple[Plan, Coding, ChunkFlow]:
    layout = FlatLayout((), (), values, values)
    plan = Plan(("a", "b", "c", "d", "e", "f"), layout, (1.0, 1.0, 0.0) * 2, (0, 0, 0, 1, 1, 1))
    coding = Coding(codec_of("4bit"), Feedback(values), Feedback(values))
    return plan, coding, ChunkFlow(plan, 0)


def a_sum(plan: Plan, coding: Coding, number: int, value: float = 1.0) -> bytes:
    begin, end = plan.chunks[number]
    way = coding.of_means(begin, plan.layout)
    return bytes(way.compress(torch.full((end - begin,), value)).SerializeToString())


def test_of_sums_that_come_too_early_so_many_are_kept_as_their_source_may_have_to_send() -> None:
    plan, coding, flow = two_rows(64 * 2**15)
    sums = Sums(plan, coding, flow)
    owner = plan.first.owners[1][0]
    own = len(plan.first.owned[owner])
    for number in range(len(plan.chunks)):
        sums.take(owner, number, bytes(32), a_sum(plan, coding, number))
    flow.assign([0, 1, owner])
    kept = 0
    for number in range(len(plan.chunks)):
        try:
            sums.of(owner, number)
            kept += 1
        except KeyError:
            pass
    assert own <= kept <= 3 * own + 1


def test_the_last_sum_of_a_number_is_the_one_that_counts() -> None:
    plan, coding, flow = two_rows()
    sums, chunk = Sums(plan, coding, flow), plan.first.owned[0][0]
    owner = plan.first.owners[1][chunk]
    for name, value in ((b"one", 1.0), (b"two", 3.0)):
        sums.take(owner, chunk, name, a_sum(plan, coding, chunk, value))
    assert torch.allclose(sums.of(owner, chunk), torch.tensor(3.0), rtol=0.01)


@pytest.mark.parametrize("source", [1, 5], ids=["its own row", "a client"])
def test_a_sum_of_whom_none_is_expected_is_refused(source: int) -> None:
    plan, coding, flow = two_rows()
    with pytest.raises(ValueError, match="nobody is to send"):
        Sums(plan, coding, flow).take(source, 0, b"", a_sum(plan, coding, 0))
