"""Microbatches by name, and losses that depend on parameters, batch and step alone: for every task."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from pyarrow import parquet
from torch import nn

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources import blocks
from dedloc_kit.learning.task import Batch, create_task
from dedloc_kit.learning.tasks.in_blocks import ORIGIN, InBlocks, Origin, origin_of
from dedloc_kit.learning.train.computing.card import samples_in
from dedloc_kit.learning.train.computing.microbatch import pieces
from dedloc_kit.run.config import RunConfig
from tests import tiny
from tests.learning.tasks import swav_run, text_to_image_run
from tests.pictures import striped
from tests.text_runs import MODEL, text_run, write_text
from tests.tiny import tiny_run

pytestmark = pytest.mark.usefixtures("one_thread")

TASKS = ("albert", "causal", "encoder", "swav", "text-to-image")
ALBERT = {**MODEL, "embedding_size": 16, "max_position_embeddings": 64}


def fail(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunConfig]:
    """A run of any task on data of its own, with other options."""
    folder = tmp_path_factory.mktemp("data")
    write_text(folder)
    text_to_image_run.write_codes(folder)
    (folder / "striped").mkdir()
    striped(folder / "striped", 40)
    striped(folder / "striped", 40, "test")

    def made(name: str, **options: Any) -> RunConfig:
        if name == "swav":
            run = swav_run.run_of(folder / "striped", **{"queue": 0, **options})
            return run.model_copy(update={"microbatch": 8})
        if name == "text-to-image":
            return text_to_image_run.run_of(folder, **options)
        if name == "albert":
            options["model"] = {**ALBERT, **options.get("model", {})}
            return text_run(folder, name, **options)
        return text_run(folder, name, **options)

    return made


def equal(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(torch.equal(values, other[name]) for name, values in one.items())


@pytest.mark.parametrize("name", TASKS)
def test_any_microbatch_is_made_again_from_its_name_bit_for_bit(name: str, run_of: Callable[..., RunConfig]) -> None:
    run = run_of(name)
    batches = InBlocks(run, create_task(run), 7, fail).batches(6, first=2)
    stream = list(takewhile(lambda batch: origin_of(batch).block < 4, batches))
    again = InBlocks(run, create_task(run), 7, fail)
    for batch in (stream[1], stream[-1], *stream[2:5], stream[0]):
        for part in pieces(batch, 4):  # a device's memory may not hold six
            assert equal(again.derive(origin_of(part)), part)
    origin = origin_of(stream[1])
    assert not equal(InBlocks(run, create_task(run), 8, fail).derive(origin), stream[1])


def test_the_microbatches_of_a_block_are_read_once_if_they_are_asked_for_in_their_order(
    run_of: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of("causal").model_copy(update={"microbatch": 2})
    task = create_task(run)
    stream = list(takewhile(lambda batch: origin_of(batch).block == 0, InBlocks(run, task, 7, fail).batches(2)))
    begun, make = list[int](), task.batches_of

    def noted(items: Iterable[Any], microbatch: int, seed: int) -> Iterator[Batch]:
        begun.append(seed)
        return make(items, microbatch, seed)

    monkeypatch.setattr(task, "batches_of", noted)
    again = InBlocks(run, task, 7, fail)
    assert len(stream) > 3
    assert all(equal(again.derive(origin_of(batch)), batch) for batch in stream)
    assert len(begun) == 1


@pytest.mark.parametrize("name", TASKS)
def test_a_block_holds_the_same_samples_whatever_the_microbatch(name: str, run_of: Callable[..., RunConfig]) -> None:
    run = run_of(name)
    names = set(next(InBlocks(run, create_task(run), 3, fail).batches(1)))

    def samples(microbatch: int, first: int) -> list[Batch]:
        stream = InBlocks(run, create_task(run), 3, fail).batches(microbatch, first)
        return list(islice((each for batch in stream for each in pieces(batch, 1)), 60))

    one, other, later = samples(1, 0), samples(5, 0), samples(5, 1)
    assert all(equal(a, b) for a, b in zip(one, other, strict=True))
    assert [origin_of(each).position for each in one] == list(range(60))
    assert later[0][ORIGIN].tolist() == [[1, -1, 0]]
    drawn = {"labels", "large", "classifier_kept"} & names
    assert not any(torch.equal(one[0][key], later[0][key]) for key in drawn)
    assert ORIGIN in names
    assert names - {ORIGIN} == next(create_task(run).batches(2, 0, fail)).keys()


@pytest.mark.parametrize("name", TASKS)
def test_a_loss_and_its_gradient_do_not_depend_on_what_a_device_draws(
    name: str, run_of: Callable[..., RunConfig]
) -> None:
    run = run_of(name)
    task = create_task(run)
    assert task.unsupported("checks") == ""
    model, batch = task.model(), next(task.batches(8, 0, fail))
    assert drawn(task, model, batch, 1) == drawn(task, model, batch, 2) == drawn(create_task(run), model, batch, 3)


def drawn(task: Any, model: nn.Module, batch: Batch, seed: int) -> list[float]:
    """The loss, and a sum of each gradient, after another random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.zero_grad()
        loss = task.loss(model, task.prepare(batch), 0)
        loss.backward()
    return [loss.item(), *(p.grad.double().sum().item() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("albert", {"model": {"hidden_dropout_prob": 0.1}}, "task.model.hidden_dropout_prob is 0.1"),
        ("albert", {"model": {"attention_probs_dropout_prob": 0.1}}, "task.model.attention_probs_dropout_prob is 0.1"),
        ("causal", {"model": {"attention_dropout": 0.1}}, "task.model.attention_dropout is 0.1"),
        ("encoder", {"model": {"mlp_dropout": 0.2}}, "task.model.mlp_dropout is 0.2"),
        ("swav", {"queue": 16}, "set task.queue to 0"),
    ],
)
def test_a_run_that_draws_on_the_device_or_remembers_says_what_is_against_checking_it(
    name: str, options: dict[str, Any], said: str, run_of: Callable[..., RunConfig]
) -> None:
    task = create_task(run_of(name, **options))
    assert said in task.unsupported("checks")
    model, batch = task.model(), next(task.batches(8, 0, fail))
    found = [drawn(task, model, batch, seed) for seed in range(4)]
    assert any(each != found[0] for each in found), "and it is true"


def test_experts_that_hang_on_rounding_are_against_it_and_so_is_a_task_that_promises_nothing(
    run_of: Callable[..., RunConfig],
) -> None:
    mixed = create_task(run_of("causal", architecture="mixtral", model={**MODEL, "num_local_experts": 2}))
    assert "which expert a word goes to" in mixed.unsupported("checks")
    assert "does not promise" in tiny.TinyTask(tiny_run()).unsupported("checks")


def test_what_the_classifier_of_an_albert_drops_stands_in_the_batch(run_of: Callable[..., RunConfig]) -> None:
    run = run_of("albert", model={"classifier_dropout_prob": 0.25})
    task = create_task(run)
    batches = list(islice(task.batches(16, 0, fail), 20))
    kept = torch.cat([batch["classifier_kept"] for batch in batches])
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.02)
    model: Any = task.model()
    batch = batches[0]
    pooled = model.albert(**{name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")})[1]
    model.zero_grad()
    pooled.retain_grad()
    model.albert.forward = lambda **_: (torch.zeros(16, batch["labels"].shape[1], 32), pooled)
    task.loss(model, task.prepare(batch), 0).backward()
    assert torch.equal(pooled.grad != 0, batch["classifier_kept"]), "only through what is kept does anything flow"
    scores = model.sop_classifier.classifier(pooled * batch["classifier_kept"] / 0.75)
    order = nn.functional.cross_entropy(scores, batch["sentence_order_label"])
    masked = task.loss(model, task.prepare(batch), 0) - order
    batch["classifier_kept"][:] = True
    full = nn.functional.cross_entropy(model.sop_classifier.classifier(pooled / 0.75), batch["sentence_order_label"])
    torch.testing.assert_close(task.loss(model, task.prepare(batch), 0), masked + full)
    without = create_task(run_of("albert", model={"classifier_dropout_prob": 0.0}))
    assert "classifier_kept" not in next(without.batches(2, 0, fail))


def test_a_name_that_cannot_be_or_that_the_data_does_not_hold_is_refused(run_of: Callable[..., RunConfig]) -> None:
    run = run_of("causal")
    for wrong in ((-1, None, 0, 1), (0, blocks.PLACES, 0, 1), (0, -1, 0, 1), (0, None, -1, 1), (0, None, 0, 0)):
        with pytest.raises(ValueError, match="no microbatch"):
            Origin(*wrong)
    order = InBlocks(run, create_task(run), 0, fail)
    for absent in (Origin(0, None, 10**9, 4), Origin(0, None, 60, 8), Origin(0, None, 0, 65)):
        with pytest.raises(ValueError, match="holds no microbatch"):
            order.derive(absent)


def test_a_run_whose_loss_looks_at_several_samples_together_gets_full_microbatches_alone(
    run_of: Callable[..., RunConfig],
) -> None:
    run = run_of("swav")
    found = list(islice(InBlocks(run, create_task(run), 0, fail).batches(8), 120))
    assert {samples_in(batch) for batch in found} == {8}
    assert max(origin_of(batch).block for batch in found) >= 1


def test_data_that_makes_no_samples_is_given_up(tmp_path: Path, run_of: Callable[..., RunConfig]) -> None:
    run = run_of("albert")
    parquet.write_table(pyarrow.table({"text": ["river"] * 3}), tmp_path / "a.parquet")
    source = run.data.train[0].model_copy(update={"dataset": str(tmp_path)})
    run = run.model_copy(update={"data": run.data.model_copy(update={"train": (source,)})})
    with pytest.raises(UserError, match="not a single sample"):
        next(InBlocks(run, create_task(run), 0, fail).batches(4))
