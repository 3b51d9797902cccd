"""Microbatches go through all stages, each counts once in each, whoever comes and goes."""

import time
from collections.abc import Iterator

import pytest

from dedloc_kit.swarm.pipeline.computing import Given
from tests.swarm.pipeline.local_pipeline import ROWS, Pipeline, close, microbatches, plain_sum


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    pipeline = Pipeline(global_batch=12 * ROWS)
    try:
        yield pipeline
    finally:
        pipeline.close()


def test_gradients_over_the_peers_of_each_stage_are_those_of_one_process(pipeline: Pipeline) -> None:
    batches = microbatches(12)
    driver = pipeline.drive("d", batches)
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    assert close(pipeline.sums(), plain_sum(batches))
    assert pipeline.samples() == [12 * ROWS] * 3
    assert driver.driven == 12 * ROWS
    assert all(peer.sums.samples for peer in pipeline.peers.values()), "all have work"
    assert driver.kept_bytes > 0
    pipeline.step()
    pipeline.until(lambda: driver.step == 1 and not driver.kept_bytes)


def test_two_drivers_fill_a_batch_and_say_what_is_in_it(pipeline: Pipeline) -> None:
    batches = {name: microbatches(12, seed) for seed, name in enumerate("de")}
    drivers = [pipeline.drive(name, given) for name, given in batches.items()]
    pipeline.until(lambda: pipeline.full() and not any(driver.in_flight for driver in drivers))
    counted = [b for d, name in zip(drivers, "de", strict=True) for b in batches[name][: d.begun.samples // ROWS]]
    assert close(pipeline.sums(), plain_sum(counted))
    assert pipeline.samples() == [ROWS * len(counted)] * 3
    assert len(counted) >= 12


@pytest.mark.parametrize("what", ["forward", "backward"])
def test_a_peer_that_is_gone_in_the_middle_costs_nothing(pipeline: Pipeline, what: str) -> None:
    batches, dying = microbatches(12), pipeline.peers["1b"]

    def die(given: Given) -> None:
        if given.call.what == what and sum(call.call.what == what for call in dying.calls) == 2:
            pipeline.loop.soon(pipeline.network.cut, "1b")
            time.sleep(0.1)

    dying.before = die
    driver = pipeline.drive("d", batches)
    pipeline.until(lambda: driver.begun.final and pipeline.full(but=["1b"]) and not driver.in_flight)
    assert close(pipeline.sums(but=["1b"]), plain_sum(batches))
    assert pipeline.samples(but=["1b"]) == [12 * ROWS] * 3
    assert set(pipeline.gone) == {"1b"}
    assert driver.again > 0 or what == "forward"


def test_what_a_peer_takes_with_it_after_the_last_microbatch_is_computed_again(pipeline: Pipeline) -> None:
    batches = microbatches(12)
    driver = pipeline.drive("d", batches)
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    lost = sum(given.call.what == "backward" for given in pipeline.peers["0a"].calls)
    pipeline.cut("0a")
    pipeline.until(lambda: pipeline.full(but=["0a"]))
    assert close(pipeline.sums(but=["0a"]), plain_sum(batches))
    assert driver.again == lost > 0


def test_after_a_step_what_is_begun_is_computed_with_the_new_parameters(pipeline: Pipeline) -> None:
    batches = microbatches(24)
    driver = pipeline.drive("d", batches)
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    pipeline.step()
    pipeline.until(
        lambda: driver.begun.step == 1 and driver.begun.final and pipeline.full(step=1) and not driver.in_flight
    )
    parameters = [list(pipeline.of(stage)[0].model.parameters()) for stage in range(3)]
    assert close(pipeline.sums(), plain_sum(batches[12:], parameters))


def test_a_stage_with_nobody_is_named_until_somebody_comes(pipeline: Pipeline) -> None:
    driver = pipeline.drive("d", batches := microbatches(12))
    pipeline.until(lambda: driver.driven > 0)
    pipeline.cut("1a")
    pipeline.cut("1b")
    pipeline.until(lambda: driver.missing == "stage 2 of 3 has nobody")
    pipeline.add("1c", 1)
    pipeline.until(lambda: pipeline.full(but=["1a", "1b"]) and not driver.in_flight)
    assert not driver.missing
    assert close(pipeline.sums(but=["1a", "1b"]), plain_sum(batches))
