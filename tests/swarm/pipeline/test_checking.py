"""One answer in a hundred is compared with another peer's: that costs little, and honest ones are found alike."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator
from typing import cast

import pytest
import torch
from torch import Tensor

from dedloc_kit.swarm.pipeline import checking
from dedloc_kit.swarm.pipeline.checking import Checks, alike
from dedloc_kit.swarm.pipeline.client import Answered, StageClient
from dedloc_kit.swarm.pipeline.peers import StagePeers
from dedloc_kit.swarm.pipeline.protocol import Answer, Call, Content
from dedloc_kit.swarm.remote.lines import Opener
from dedloc_kit.swarm.remote.tensors import Form, in_form, packed, unpacked
from tests.swarm.pipeline.local_pipeline import LENGTH, ROWS, LinearStage, Pipeline, close, microbatches, plain_sum

GIVEN = torch.randn(4, 64, 128, generator=torch.Generator().manual_seed(0))
CHANGE = torch.randn(4, 64, 128, generator=torch.Generator().manual_seed(1)) * 0.1

CALL = Call(what="forward", stage=1, number=1, step=0, rows=ROWS, length=LENGTH)


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    pipeline = Pipeline(global_batch=12 * ROWS)
    try:
        yield pipeline
    finally:
        pipeline.close()


def answer(output: Tensor | None, loss: float | None = None, form: Form = "float32") -> Answered:
    travelled = None if output is None else unpacked(packed(in_form(output, form), form)).float()
    return Answered(Answer(loss=loss, seconds=0.1, waiting=0), travelled)


def calls(pipeline: Pipeline) -> Counter[str]:
    return Counter(given.call.what for peer in pipeline.of(1) for given in peer.calls)


def test_what_is_compared_is_added_once_and_honest_peers_are_alike(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "ONE_IN", 1)
    driver = pipeline.drive("d", batches := microbatches(12))
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    pipeline.until(lambda: not driver._checks._running)
    assert close(pipeline.sums(), plain_sum(batches))
    assert pipeline.samples() == [12 * ROWS] * 3
    assert min(calls(pipeline).values()) > 12
    forward = [given.call for peer in pipeline.of(1) for given in peer.calls if given.call.what == "forward"]
    assert all(call.adds for call in forward), "nobody sees which ones are compared"
    assert not driver.wrong.all()


def test_one_answer_in_many_is_compared(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([1, 1, 0])
    monkeypatch.setattr(secrets, "randbelow", lambda most: next(drawn, 1) if most == 100 else 0)
    driver = pipeline.drive("d", microbatches(12))
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    pipeline.until(lambda: not driver._checks._running)
    assert sum(len(peer.calls) for peer in pipeline.peers.values()) == 5 * 12 + 1


def test_few_answers_are_compared_at_a_time_and_none_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "ONE_IN", 1)
    monkeypatch.setattr(checking, "SECONDS", 0.1)
    asked = list[StageClient]()

    class Silent:
        def others(self, client: StageClient, step: int) -> list[StageClient]:
            return [client]

        async def room(self, client: StageClient) -> None:
            asked.append(client)
            await asyncio.Event().wait()

    async def look() -> None:
        async with asyncio.TaskGroup() as tasks:
            checks = Checks(cast(StagePeers, Silent()), tasks, "d", "float32")
            for _ in range(2):
                for _ in range(10):
                    checks.look(client, CALL, Content(b"", None, None), answer(GIVEN), 1)
                while checks._running:
                    await asyncio.sleep(0.01)

    client = StageClient(cast(Opener, None), "1a", LinearStage(1))
    asyncio.run(asyncio.wait_for(look(), 30))
    assert len(asked) == 2 * checking.AT_A_TIME


@pytest.mark.parametrize("form", ["8bit", "float16", "float32"])
def test_answers_that_differ_like_devices_are_alike_in_every_form(form: Form) -> None:
    rounding = CHANGE.bfloat16().float() - CHANGE
    one, other = answer(GIVEN + CHANGE, form=form), answer(GIVEN + CHANGE + 3 * rounding, form=form)
    assert alike(one, other, GIVEN, form)
    assert alike(answer(CHANGE, form=form), answer(CHANGE + 3 * rounding, form=form), None, form)


@pytest.mark.parametrize("form", ["8bit", "float16", "float32"])
def test_a_stage_that_leaves_its_layers_out_is_not_alike(form: Form) -> None:
    """A young one, which adds little."""
    assert not alike(answer(GIVEN + 0.4 * CHANGE, form=form), answer(GIVEN, form=form), GIVEN, form)


@pytest.mark.parametrize(("loss", "right"), [(2.02, True), (2.5, False), (0.0, False), (-2.0, False)])
def test_losses_are_compared(loss: float, right: bool) -> None:
    assert alike(answer(None, 2.0), answer(None, loss), GIVEN, "float32") == right


def test_numbers_as_large_as_any_are_compared() -> None:
    assert not alike(answer(GIVEN), answer(torch.full_like(GIVEN, 3e38)), GIVEN, "float32")
