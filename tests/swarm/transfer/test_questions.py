"""Who gets a sketch of a peer's state, and how often."""

import asyncio

import pytest
import torch

from dedloc_kit.learning.train.state.sketch import SEED_BYTES, differ, read
from dedloc_kit.swarm.network.service import decode
from dedloc_kit.swarm.transfer import questions
from dedloc_kit.swarm.transfer.contents import Content, StateLayout
from dedloc_kit.swarm.transfer.protocol import Request
from dedloc_kit.swarm.transfer.questions import PEER_SECONDS, REMEMBERED_PEERS, SHARE, Answering, Budget

STATE = [torch.arange(10.0), torch.tensor(3.0)]
SEED = bytes(SEED_BYTES)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_answers_take_no_more_than_their_share_of_the_time_whoever_asks() -> None:
    clock = Clock()
    budget = Budget(clock)
    with budget.spend():
        clock.now += 2.0
    assert not budget.allows("b")
    clock.now += 2.0 * (1 / SHARE - 1) - 0.1
    assert not budget.allows("b")
    clock.now += 0.2
    assert budget.allows("b")


def test_each_peer_gets_an_answer_now_and_then_and_few_are_remembered() -> None:
    clock = Clock()
    budget = Budget(clock)
    budget.answered("a")
    assert (budget.allows("a"), budget.allows("b")) == (False, True)
    clock.now += PEER_SECONDS
    assert budget.allows("a")
    for number in range(2 * REMEMBERED_PEERS):
        budget.answered(str(number))
    assert len(budget._answered) == REMEMBERED_PEERS
    assert not budget.allows(str(2 * REMEMBERED_PEERS - 1))


def holding(version: str) -> Answering:
    layout = StateLayout(STATE)
    flat = layout.pack(STATE)

    async def find(_: str) -> Content:
        return Content(version, b"", flat.numpy().data)

    return Answering(layout, find)


def test_the_answer_is_a_sketch_of_the_state_or_which_other_one_the_peer_holds() -> None:
    request = Request(what="sketch", version="3/ab", seed=SEED)
    header = asyncio.run(holding("3/ab").answer("a", request))
    assert header.answer == "here"
    assert differ(STATE, SEED, read(decode(header.metadata))) == []
    other = asyncio.run(holding("4/cd").answer("a", request))
    assert (other.answer, other.version, other.metadata) == ("nothing", "4/cd", b"")


def test_whoever_goes_away_while_it_is_answered_has_had_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "SHARE", 1.0)  # only the limit for each peer is at work

    async def ask() -> list[str]:
        answering, request = holding("3/ab"), Request(what="sketch", version="3/ab", seed=SEED)
        gone = asyncio.create_task(answering.answer("a", request))
        await asyncio.sleep(0)
        gone.cancel()
        meanwhile = await answering.answer("b", request)
        assert answering._making is not None
        await answering._making
        return [meanwhile.answer, (await answering.answer("a", request)).answer]

    assert asyncio.run(ask()) == ["busy", "busy"]
