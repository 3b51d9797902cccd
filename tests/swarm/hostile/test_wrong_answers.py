"""Stage peers that answer wrong numbers which look right: they are found out, and get no more work."""

import math
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from dedloc_kit.records.stages import Begun, StageOffer
from dedloc_kit.swarm.pipeline import checking
from dedloc_kit.swarm.pipeline.computing import Computed, Given
from dedloc_kit.swarm.pipeline.driver import Driver
from tests.swarm.pipeline.local_pipeline import ROWS, Peer, Pipeline, close, microbatches, offer, plain_sum

BATCHES = microbatches(24)
Lie = Callable[[Given, Tensor], Tensor]


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    monkeypatch.setattr(checking, "ONE_IN", 1)
    pipeline = Pipeline(global_batch=12 * ROWS)
    try:
        yield pipeline
    finally:
        pipeline.close()


def lies(peer: Peer, what: str, lie: Lie) -> None:
    """From now on, to all calls of a kind."""
    honest: Callable[[Given], Computed] = peer.compute

    def compute(given: Given) -> Computed:
        computed = honest(given)
        if given.call.what != what or computed.output is None:
            return computed
        return computed._replace(output=lie(given, computed.output))

    peer.compute = compute  # type: ignore[method-assign]


def zeros(given: Given, output: Tensor) -> Tensor:
    return torch.zeros_like(output)


def noise(given: Given, output: Tensor) -> Tensor:
    return torch.randn_like(output) * float(output.norm()) / math.sqrt(output.numel())


def stale(given: Given, output: Tensor) -> Tensor:
    """As of the first call, for ever."""
    first: Tensor = KEPT.setdefault(given.call.what, output)
    return first


def unchanged(given: Given, output: Tensor) -> Tensor:
    """What came in, as if the stage had no layers."""
    came = given.hidden if given.call.what == "forward" else given.gradient
    assert came is not None
    return came


KEPT: dict[str, Tensor] = {}


def drive(pipeline: Pipeline, name: str = "d", met_first: int = 0) -> Driver:
    """A batch, once so many peers of stage 1 have said what they hold."""
    begin = threading.Event()
    for peer in pipeline.of(0):
        peer.before = lambda given: begin.wait(30)
    driver = pipeline.drive(name, BATCHES)
    pipeline.until(lambda: len(met(driver)) >= met_first)
    begin.set()
    pipeline.until(lambda: driver.begun.final and pipeline.full() and not driver.in_flight)
    return driver


def next_step(pipeline: Pipeline, driver: Driver) -> None:
    """Another batch with the same parameters, from which nobody's gradients are missing, and none is wrong."""
    for peer in pipeline.peers.values():
        peer.sums.samples = 0
        for gradient in peer.sums.gradients:
            gradient.zero_()
    for peer in pipeline.peers.values():
        peer.sums.step = 1
    pipeline.until(
        lambda: driver.begun.step == 1 and driver.begun.final and pipeline.full(step=1) and not driver.in_flight
    )
    assert close(pipeline.sums(), plain_sum(BATCHES[12:]))
    assert pipeline.samples() == [12 * ROWS] * 3


@pytest.mark.parametrize("lie", [zeros, noise, stale, unchanged])
@pytest.mark.parametrize("what", ["forward", "backward"])
def test_who_is_alone_with_its_answers_gets_no_more_work(pipeline: Pipeline, what: str, lie: Lie) -> None:
    KEPT.clear()
    liar = pipeline.add("1c", 1)
    for honest in ("1a", "1b"):  # so that the liar gets most of the work
        pipeline.peers[honest].before = lambda given: time.sleep(0.02)
    lies(liar, what, lie)
    driver = drive(pipeline)
    pipeline.until(lambda: bool(driver.wrong.all()) and not driver._checks._running)
    called = len(liar.calls)
    next_step(pipeline, driver)
    assert set(driver.wrong.all()) == {what}
    assert called == len(liar.calls) > 0
    assert driver.accuses == ("1c",), "the organizer is told"


@pytest.mark.parametrize("what", ["forward", "backward"])
def test_where_two_differ_a_drivers_own_stage_peer_is_right(pipeline: Pipeline, what: str) -> None:
    lies(liar := pipeline.peers["1b"], what, zeros)
    driver = drive(pipeline, "1a")
    pipeline.until(lambda: bool(driver.wrong.all()) and not driver._checks._running)
    called = len(liar.calls)
    next_step(pipeline, driver)
    assert set(driver.wrong.all()) == {what}
    assert called == len(liar.calls)


def test_where_two_differ_and_nobody_decides_both_go_on(pipeline: Pipeline) -> None:
    lies(pipeline.peers["1b"], "forward", zeros)
    driver = drive(pipeline)
    pipeline.until(lambda: bool(driver.wrong.all()))
    assert set(driver.wrong.all()) == {"undecided"}
    assert driver.accuses == ()
    assert not driver._peers._barred
    assert not driver.missing


def test_a_driver_accuses_few_and_no_other_driver_believes_it(pipeline: Pipeline) -> None:
    everyone = [f"{stage}{letter}" for stage in range(3) for letter in "ab"]
    with pytest.raises(ValueError, match="accuses"):
        StageOffer.parse(offer(None).model_dump() | {"accuses": [*everyone, "c", "d", "e"]})
    honest = pipeline.offers

    def offers() -> dict[str, StageOffer]:
        return {**honest(), "slanderer": offer(None, nothing, accuses=tuple(everyone))}

    nothing = Begun(step=0, samples=0, final=True)
    pipeline.offers = offers  # type: ignore[method-assign]
    driver = drive(pipeline)
    assert all(pipeline.peers[name].calls for name in everyone)
    assert driver.accuses == ()


def test_a_stage_with_nobody_but_a_liar_has_nobody(pipeline: Pipeline) -> None:
    pipeline.add("1c", 1)
    lies(pipeline.peers["1c"], "forward", zeros)
    driver = drive(pipeline)
    pipeline.until(lambda: bool(driver.wrong.all()))
    for honest in ("1a", "1b"):
        pipeline.cut(honest)
    pipeline.until(lambda: driver.missing == "stage 1 of 3 has nobody")


def test_a_peer_that_holds_another_state_than_most_gets_no_work_until_it_holds_theirs(pipeline: Pipeline) -> None:
    other = pipeline.add("1c", 1)
    right, other.sums.sketch = other.sums.sketch, (1.0, 2.001)
    driver = drive(pipeline, met_first=3)
    assert driver.wrong.all() == {"state": 1}
    assert not other.calls
    other.sums.sketch = right
    pipeline.until(lambda: not driver._peers._astray)
    pipeline.cut("1a")
    pipeline.cut("1b")
    pipeline.until(lambda: met(driver) == {"1c"})
    assert not driver.missing


def test_a_drivers_own_state_is_right_whatever_most_hold(pipeline: Pipeline) -> None:
    others = [pipeline.peers["1b"], pipeline.add("1c", 1)]
    for other in others:
        other.sums.sketch = (1.0, 2.001)
    driver = drive(pipeline, "1a", met_first=3)
    assert driver.wrong.all() == {"state": 2}
    assert not [call for other in others for call in other.calls]


def met(driver: Driver) -> set[str]:
    """Who of stage 1 has said what it holds."""
    return {peer for peer, client in driver._peers._clients.items() if client.step >= 0 and client.stage.number == 1}
