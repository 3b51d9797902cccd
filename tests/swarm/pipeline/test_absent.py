"""Whom a driver takes for gone before its record lapses: by its own look alone, and only where that can be believed."""

from collections.abc import Iterator
from typing import Any

import pytest
from hivemind.utils import get_dht_time

from dedloc_kit.swarm.pipeline import client, peers
from dedloc_kit.swarm.pipeline.driver import Driver
from tests.swarm.pipeline.local_pipeline import ROWS, Pipeline

EVERYONE = {f"{stage}{letter}" for stage in range(3) for letter in "ab"}


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    monkeypatch.setattr(peers, "AVOIDED_SECONDS", 0.05)
    pipeline = Pipeline(global_batch=12 * ROWS)
    try:
        yield pipeline
    finally:
        pipeline.close()


def met(pipeline: Pipeline, name: str = "d") -> Driver:
    driver = pipeline.drive(name, [])
    pipeline.until(lambda: heard(driver) == EVERYONE)
    return driver


def heard(driver: Driver) -> set[str]:
    return {name for name, known in dict(driver._peers._clients).items() if known.step >= 0}


def say(pipeline: Pipeline, name: str, **fields: Any) -> None:
    """In the directory, from now on."""
    before = pipeline.offers
    told = before()[name].model_copy(update={"time": get_dht_time() + 1, **fields})
    pipeline.offers = lambda: before() | {name: told}  # type: ignore[method-assign]


def test_the_peers_of_a_stage_are_absent_once_none_is_reached_until_they_say_something(pipeline: Pipeline) -> None:
    driver = pipeline.drive("d", [])
    driver._peers._offers = lambda: pipeline.offers()
    pipeline.until(lambda: heard(driver) == EVERYONE)
    pipeline.cut("1a")
    pipeline.until(lambda: "1a" not in heard(driver))
    assert driver.absent == frozenset(), "the stage has somebody"
    pipeline.cut("1b")
    pipeline.until(lambda: driver.absent == {"1a", "1b"})
    say(pipeline, "1b")
    assert driver.absent == {"1a"}, "it lives, and may be reached by others"
    say(pipeline, "1a", stage=2, state="joining")
    assert driver.absent == frozenset()


@pytest.mark.parametrize("side", [{"d"}, {"d", "0a", "0b"}])
def test_a_driver_that_is_cut_off_takes_nobody_for_gone(pipeline: Pipeline, side: set[str]) -> None:
    driver = met(pipeline)
    pipeline.loop.soon(pipeline.network.part, side)
    pipeline.until(lambda: heard(driver) == EVERYONE & side and len(driver._peers._lost) == len(EVERYONE - side))
    assert driver.absent == frozenset()


def test_a_driver_that_is_alone_in_its_own_stage_takes_nobody_for_gone(pipeline: Pipeline) -> None:
    """What it would do then is to leave it."""
    driver = met(pipeline, "0a")
    for name in ("1a", "1b", "0b"):
        pipeline.cut(name)
    pipeline.until(lambda: heard(driver) == {"0a", "2a", "2b"} and len(driver._peers._lost) == 3)
    assert driver.absent == frozenset()


def test_who_is_only_silent_is_not_absent(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENT_SECONDS", 1.5)
    monkeypatch.setattr(client, "AGAIN_SECONDS", 0.5)
    driver = met(pipeline)
    pipeline.cut("1b")
    pipeline.loop.soon(pipeline.network.freeze, "1a")
    pipeline.until(lambda: heard(driver) == EVERYONE - {"1a", "1b"} and driver._peers._lost["1b"].reset)
    assert driver.absent == {"1b"}, "the stage may have somebody"
