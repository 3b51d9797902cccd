"""Held-out batches go through the stages of others, and nothing is left of them there."""

import asyncio
from collections.abc import Iterator

import pytest

from dedloc_kit.swarm.pipeline import measuring
from dedloc_kit.swarm.pipeline.computing import Given
from dedloc_kit.swarm.pipeline.measuring import Measuring, NotMeasured
from dedloc_kit.swarm.remote.judging import Refusal
from tests.swarm.pipeline.local_pipeline import Batch, Pipeline, microbatches, offer


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    pipeline = Pipeline(global_batch=12)
    try:
        yield pipeline
    finally:
        pipeline.close()


def losses(pipeline: Pipeline, batches: list[Batch], step: int = 0) -> list[float]:
    asks = Measuring(pipeline.endpoint("organizer"), pipeline.stages, "float32", pipeline.offers)
    return pipeline.run(asks.losses(batches, step))


def own(pipeline: Pipeline, batch: Batch) -> float:
    hidden = None
    for stage in pipeline.stages:
        hidden = stage.forward(stage.model(), hidden, batch)
    assert hidden is not None
    return float(hidden.detach())


def test_what_others_measure_is_what_one_process_does_and_nothing_is_added(pipeline: Pipeline) -> None:
    batches = microbatches(9)
    assert losses(pipeline, batches) == pytest.approx([own(pipeline, batch) for batch in batches], abs=1e-5)
    assert pipeline.samples() == [0, 0, 0]
    assert all(peer.calls for peer in pipeline.of(1)), "all peers of a stage help"
    assert not any(peer.drivers.told() for peer in pipeline.peers.values()), "no step waits for who measures"


def test_who_is_gone_or_fails_is_not_asked_again(pipeline: Pipeline) -> None:
    def refuse(given: Given) -> None:
        raise Refusal("failed", "as the test wants it")

    pipeline.peers["2b"].before = refuse
    pipeline.cut("1a")
    batches = microbatches(9)
    assert losses(pipeline, batches) == pytest.approx([own(pipeline, batch) for batch in batches], abs=1e-5)
    assert not pipeline.peers["2b"].calls
    pipeline.cut("1b")
    with pytest.raises(NotMeasured, match="nobody of stage 1"):
        losses(pipeline, batches)


def test_a_step_that_is_over_is_not_measured_and_one_that_is_not_yet_taken_is_waited_for(pipeline: Pipeline) -> None:
    pipeline.peers["1a"].sums.step = pipeline.peers["1b"].sums.step = 1
    with pytest.raises(NotMeasured, match="stage 1 is at step 1 already"):
        losses(pipeline, microbatches(3), 0)

    asks = Measuring(pipeline.endpoint("organizer"), pipeline.stages, "float32", pipeline.offers)

    async def later() -> list[float]:
        asked = asyncio.create_task(asks.losses(microbatches(3), 1))
        await asyncio.sleep(0.05)
        for peer in pipeline.peers.values():
            peer.sums.step = 1
        return await asked

    assert len(pipeline.run(later())) == 3


def test_a_stage_that_names_no_stage_of_the_run_is_nobodys(pipeline: Pipeline) -> None:
    offers = {**pipeline.offers(), "stranger": offer(stage=7), "newcomer": offer(stage=0, state="joining")}
    asks = Measuring(pipeline.endpoint("organizer"), pipeline.stages, "float32", lambda: offers)
    assert len(pipeline.run(asks.losses(microbatches(2), 0))) == 2


def test_whoever_keeps_it_waiting_does_so_for_a_while_only(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "SECONDS", 0.2)
    with pytest.raises(NotMeasured, match="not done"):
        losses(pipeline, microbatches(2), 5)
