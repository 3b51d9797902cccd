"""Losses that depend on parameters, batch and step alone: for every task."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.task import Batch, create_task
from tests import tiny
from tests.batches import batches_from
from tests.learning.tasks.runs import TASKS, run_maker
from tests.text_runs import MODEL
from tests.tiny import tiny_run

pytestmark = pytest.mark.usefixtures("one_thread")


def fail(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunConfig]:
    return run_maker(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("name", TASKS)
def test_a_loss_and_its_gradient_do_not_depend_on_what_a_device_draws(
    name: str, run_of: Callable[..., RunConfig]
) -> None:
    run = run_of(name)
    task = create_task(run)
    assert task.unsupported("checks") == ""
    model, batch = task.model(), next(batches_from(task, 8, 0, fail))
    assert drawn(task, model, batch, 1) == drawn(task, model, batch, 2) == drawn(create_task(run), model, batch, 3)


def drawn(task: Any, model: nn.Module, batch: Batch, seed: int) -> list[float]:
    """The loss, and a sum of each gradient, after another random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.zero_grad()
        loss = task.loss(model, task.prepare(batch), 0).mean
        loss.backward()
    return [loss.item(), *(p.grad.double().sum().item() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("albert", {"model": {"hidden_dropout_prob": 0.1}}, "task.model.hidden_dropout_prob is 0.1"),
        ("albert", {"model": {"attention_probs_dropout_prob": 0.1}}, "task.model.attention_probs_dropout_prob is 0.1"),
        ("causal", {"model": {"attention_dropout": 0.1}}, "task.model.attention_dropout is 0.1"),
        ("encoder", {"model": {"mlp_dropout": 0.2}}, "task.model.mlp_dropout is 0.2"),
        ("swav", {"queue_length": 16}, "set task.queue_length to 0"),
    ],
)
def test_a_run_that_draws_on_the_device_or_remembers_says_what_is_against_checking_it(
    name: str, options: dict[str, Any], said: str, run_of: Callable[..., RunConfig]
) -> None:
    task = create_task(run_of(name, **options))
    assert said in task.unsupported("checks")
    model, batch = task.model(), next(batches_from(task, 8, 0, fail))
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
    batches = list(islice(batches_from(task, 16, 0, fail), 20))
    kept = torch.cat([batch["classifier_kept"] for batch in batches])
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.02)
    model: Any = task.model()
    batch = batches[0]
    pooled = model.albert(**{name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")})[1]
    model.zero_grad()
    pooled.retain_grad()
    model.albert.forward = lambda **_: (torch.zeros(16, batch["labels"].shape[1], 32), pooled)
    task.loss(model, task.prepare(batch), 0).mean.backward()
    assert torch.equal(pooled.grad != 0, batch["classifier_kept"]), "only through what is kept does anything flow"
    scores = model.sop_classifier.classifier(pooled * batch["classifier_kept"] / 0.75)
    factor = task.options.mlm_probability * task.options.sequence_length
    order = nn.functional.cross_entropy(scores, batch["sentence_order_label"], reduction="sum")
    masked = task.loss(model, task.prepare(batch), 0).total - factor * order
    batch["classifier_kept"][:] = True
    scores = model.sop_classifier.classifier(pooled / 0.75)
    full = nn.functional.cross_entropy(scores, batch["sentence_order_label"], reduction="sum")
    torch.testing.assert_close(task.loss(model, task.prepare(batch), 0).total, masked + factor * full)
    without = create_task(run_of("albert", model={"classifier_dropout_prob": 0.0}))
    assert "classifier_kept" not in next(batches_from(without, 2, 0, fail))
