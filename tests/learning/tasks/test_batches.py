"""Microbatches by name: of every task, with either mixture, from session to session."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from pyarrow import parquet

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import Source
from dedloc_kit.config.trust import TrustConfig
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.prefetching import Loader
from dedloc_kit.learning.data.sampler import DECAY, Origin, Position
from dedloc_kit.learning.task import Batch, Task, create_task
from dedloc_kit.learning.tasks.batches import (
    DECAY_START,
    ORIGIN,
    TRAIN_START,
    Batches,
    Feed,
    after,
    batches_of,
    origin_of,
    run_on,
    seed_for,
)
from dedloc_kit.learning.train.computing.card import samples_in
from dedloc_kit.learning.train.computing.microbatch import pieces
from tests.learning.tasks.runs import TASKS, run_maker
from tests.naming_task import Naming
from tests.text_runs import text_run, write_text
from tests.tiny import tiny_run

pytestmark = pytest.mark.usefixtures("one_thread")


def fail(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunConfig]:
    return run_maker(tmp_path_factory.mktemp("data"))


def made(run: RunConfig, seed: int, task: Task | None = None) -> Batches:
    return Batches(run, task or create_task(run), seed, fail)


def equal(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(torch.equal(values, other[name]) for name, values in one.items())


def with_last(run: RunConfig) -> RunConfig:
    """The same data for its end."""
    return run.model_copy(update={"data": run.data.model_copy(update={"cooldown": run.data.train})})


def checked(run: RunConfig) -> RunConfig:
    return run.model_copy(update={"trust": TrustConfig(checks="on")})


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("name", TASKS)
def test_any_microbatch_is_made_again_from_its_name_bit_for_bit(
    name: str, checks: bool, run_of: Callable[..., RunConfig]
) -> None:
    run = checked(run_of(name)) if checks else run_of(name)
    batches = made(run, 7).batches(6, Position(2))
    stream = list(takewhile(lambda batch: origin_of(batch).block < 4, batches))
    again = made(run, 7)
    for batch in (stream[1], stream[-1], *stream[2:5], stream[0]):
        for part in pieces(batch, 4):  # a device's memory may not hold six
            assert equal(again.derive(origin_of(part)), part)
    assert not equal(made(run, 8).derive(origin_of(stream[1])), stream[1])


@pytest.mark.parametrize("name", ["albert", "causal", "swav"])
def test_a_session_goes_on_where_the_one_before_stopped(name: str, run_of: Callable[..., RunConfig]) -> None:
    run = with_last(run_of(name))
    for begin in (TRAIN_START, DECAY_START):
        whole = list(islice(made(run, 7).batches(1, begin), 200))
        stopped = list(islice(made(run, 7).batches(3, begin), 11))[-1]
        samples = [after(each) for each in whole].index(after(stopped)) + 1
        goes_on = made(run, 7).batches(5, after(stopped))
        rest = [part for batch in islice(goes_on, 20) for part in pieces(batch, 1)]
        assert all(equal(*both) for both in zip(whole[samples:], rest, strict=False))
        assert len(whole) - samples > 50


def test_the_microbatches_of_a_block_are_read_once_if_they_are_asked_for_in_their_order(
    run_of: Callable[..., RunConfig],
) -> None:
    run = run_of("causal").model_copy(update={"microbatch": 2})
    begun = list[int]()

    class Told(type(create_task(run))):  # type: ignore[misc]
        def batches_of(self, items: Iterable[Any], microbatch: int, seed: int) -> Iterator[Batch]:
            begun.append(seed)
            yield from super().batches_of(items, microbatch, seed)

    stream = list(takewhile(lambda batch: origin_of(batch).block == 0, made(run, 7).batches(2)))
    again = made(run, 7, Told(run))
    assert len(stream) > 3
    assert all(equal(again.derive(origin_of(batch)), batch) for batch in stream)
    assert len(begun) == 1


@pytest.mark.parametrize("name", TASKS)
def test_a_block_holds_the_same_samples_whatever_the_microbatch(name: str, run_of: Callable[..., RunConfig]) -> None:
    run = run_of(name)

    def samples(microbatch: int, first: int) -> list[Batch]:
        stream = made(run, 3).batches(microbatch, Position(first))
        return list(islice((each for batch in stream for each in pieces(batch, 1)), 60))

    one, other, later = samples(1, 0), samples(5, 0), samples(5, 1)
    assert all(equal(a, b) for a, b in zip(one, other, strict=True))
    assert [origin_of(each).position for each in one] == list(range(60))
    assert later[0][ORIGIN].tolist() == [[1, -1, 0]]
    drawn = {"labels", "large", "classifier_kept"} & one[0].keys()
    assert not any(torch.equal(one[0][key], later[0][key]) for key in drawn)


def test_a_name_that_the_data_does_not_hold_is_refused(run_of: Callable[..., RunConfig]) -> None:
    order = made(run_of("causal"), 0)
    absent = (
        Origin(0, None, 10**9, 4),
        Origin(0, None, 60, 8),
        Origin(0, None, 0, 65),
        Origin(DECAY, None, 0, 4),
    )
    for origin in absent:
        with pytest.raises(ValueError, match=r"holds no microbatch|no data for its end"):
            order.derive(origin)


def test_a_run_whose_loss_looks_at_several_samples_together_gets_full_microbatches_alone(
    run_of: Callable[..., RunConfig],
) -> None:
    found = list(islice(made(run_of("swav"), 0).batches(8), 120))
    assert {samples_in(batch) for batch in found} == {8}
    assert max(origin_of(batch).block for batch in found) >= 1


def test_data_that_makes_no_samples_is_given_up(tmp_path: Path, run_of: Callable[..., RunConfig]) -> None:
    parquet.write_table(pyarrow.table({"text": ["river"] * 3}), tmp_path / "a.parquet")
    run = run_on(run_of("albert"), (Source(dataset=str(tmp_path)),))
    with pytest.raises(UserError, match="not a single sample"):
        next(made(run, 0).batches(4))


def feed(**data: Any) -> Feed:
    steady = {"schedule": "warmup-stable-decay", "warmup_steps": 0, "total_steps": 1000}
    run = tiny_run(data={"train": [{"dataset": "a/1"}], **data}, optimizer=steady)
    return Feed(Batches(run, Naming(run), 0, pytest.fail, "tests.naming_task"))


def read(batches: Iterator[Batch], count: int) -> list[list[float]]:
    return [batch["x"][1].tolist() for batch in islice(batches, count)]


def test_the_last_mixture_is_read_from_the_batch_on_with_which_the_rate_falls_and_then_the_first_one_goes_on() -> None:
    now = False
    with feed(cooldown=[{"dataset": "a/2"}, {"dataset": "a/3"}]).batches(2, lambda: now, ahead=3) as batches:
        assert read(batches, 2) == [[1.0, 0.0], [1.0, 1.0]]
        now = True
        assert read(batches, 2) == [[2.0, 3.0, 0.0], [2.0, 3.0, 1.0]]
        now = False  # the run has gone back to before it
        assert read(batches, 1) == [[1.0, 2.0]]


def test_a_run_without_a_last_mixture_reads_on() -> None:
    with feed().batches(2, lambda: True, ahead=3) as batches:
        assert read(batches, 2) == [[1.0, 0.0], [1.0, 1.0]]


def test_a_feed_knows_where_it_goes_on_in_either_mixture(tmp_path: Path) -> None:
    write_text(tmp_path)
    run, falls = with_last(text_run(tmp_path, "causal")), False
    first = Feed(made(run, 5))
    with first.batches(3, lambda: falls, ahead=2) as batches:
        usual = list(islice(batches, 3))
        falls = True
        last = list(islice(batches, 3))
    assert [origin_of(batch).block for batch in (*usual, *last)] == [0, 0, 0, DECAY, DECAY, DECAY]
    assert (first.train, first.decay) == (after(usual[-1]), after(last[-1])), "what was read ahead is not used up"
    for batch in (*usual, *last):
        assert equal(made(run, 5).derive(origin_of(batch)), batch)
    assert not torch.equal(usual[0]["input_ids"], last[0]["input_ids"])
    falls = False
    second = Feed(made(run, 5), first.train, first.decay)
    with second.batches(3, lambda: falls, ahead=2) as batches:
        assert origin_of(next(batches)).position == first.train.sample


@pytest.mark.child
def test_a_feed_goes_on_where_its_process_was_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_text(tmp_path)
    run = text_run(tmp_path, "causal")

    def make(_warn: Callable[[str], None], microbatch: int, seed: int, block: int, sample: int) -> Iterator[Batch]:
        for batch in made(run, seed).batches(microbatch, Position(block, sample)):
            yield {**batch, "pid": torch.full((samples_in(batch),), os.getpid())}

    batches = made(run, 5)
    with Feed(batches, loader=Loader(make, pytest.fail, 2, fork=True)).batches(3, lambda: False, ahead=2) as taken:
        found = [next(taken)]
        os.kill(int(found[0]["pid"][0]), signal.SIGKILL)
        found += islice(taken, 6)
    assert "pid" not in found[-1]
    for batch, right in zip(found, made(run, 5).batches(3), strict=False):
        assert equal({name: values for name, values in batch.items() if name != "pid"}, right)
    (record,) = caplog.records
    assert "was killed by signal 9" in record.getMessage()


def test_the_data_of_a_peer_is_its_own_and_another_runs_is_another(tmp_path: Path) -> None:
    write_text(tmp_path)
    run = text_run(tmp_path, "causal")
    assert seed_for(run, "QmOne") != seed_for(run, "QmTwo")
    assert seed_for(run, "QmOne") != seed_for(with_last(run), "QmOne")
    one, other = (next(batches_of(run, create_task(run), 3, seed_for(run, peer), fail)) for peer in ("QmOne", "QmTwo"))
    assert not torch.equal(one["input_ids"], other["input_ids"])


def test_a_task_that_cannot_be_checked_is_not_created_where_checks_are_on(tmp_path: Path) -> None:
    write_text(tmp_path)
    with pytest.raises(UserError, match=r"attention_dropout is 0\.1, .*; set it to 0; or remove trust\.checks"):
        create_task(checked(text_run(tmp_path, "causal", model={"attention_dropout": 0.1})))
    with pytest.raises(UserError, match="the task TinyTask does not promise"):
        create_task(checked(tiny_run()), "tests.tiny")
