from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.masking import IGNORED, word_starts
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.tasks.encoder import Encoder
from dedloc_kit.records.evaluation import FillMask
from tests.batches import batches_from
from tests.text_runs import WORDS, text_run, write_text


def fail(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_text(folder)
    return folder


def task_of(folder: Path, **task: Any) -> Encoder:
    created = create_task(text_run(folder, "encoder", **task))
    assert isinstance(created, Encoder)
    return created


def test_batches_are_full_and_three_tenths_of_their_text_are_masked(folder: Path) -> None:
    task = task_of(folder)
    batch = next(batches_from(task, 64, 0, fail))
    assert {name: tuple(values.shape) for name, values in batch.items()} == dict.fromkeys(batch, (64, 32))
    told = batch["labels"] != IGNORED
    original = torch.where(told, batch["labels"], batch["input_ids"])
    special = torch.isin(original, torch.tensor(task.tokenizer.all_special_ids))
    assert not (told & special).any(), "no mark of a document's ends is hidden"
    assert not (original == task.tokenizer.pad_token_id).any()
    assert float(told.sum() / (~special).sum()) == pytest.approx(0.3, abs=0.02)
    begins = batch["position_ids"] == 0
    assert begins[:, 0].all()
    assert torch.equal((original == task.tokenizer.cls_token_id)[:, 1:], begins[:, 1:])


def test_whole_words_are_masked_where_the_run_says_so(folder: Path) -> None:
    task = task_of(folder, masking="words")
    batch = next(batches_from(task, 32, 0, fail))
    told = (batch["labels"] != IGNORED).numpy()
    original = np.where(told, batch["labels"], batch["input_ids"])
    starts = word_starts(task.tokenizer)[original] | np.isin(original, task.tokenizer.all_special_ids)
    inside = ~starts[:, 1:]
    assert inside.any()
    assert (told[:, 1:] == told[:, :-1])[inside].all(), "all tokens of a word or none"


def test_the_loss_is_that_of_each_document_by_itself(folder: Path) -> None:
    task = task_of(folder)
    model: Any = task.model()
    batch = next(batches_from(task, 4, 0, fail))
    loss = task.loss(model, task.prepare(batch), 0).mean
    losses = []
    for ids, positions, labels in zip(batch["input_ids"], batch["position_ids"], batch["labels"], strict=True):
        starts = torch.nonzero(positions == 0).flatten()[1:]
        for part, wanted in zip(ids.tensor_split(starts), labels.tensor_split(starts), strict=True):
            scores = model(input_ids=part[None]).logits[0]
            losses.append(functional.cross_entropy(scores, wanted, reduction="none")[wanted != IGNORED])
    torch.testing.assert_close(loss, torch.cat(losses).mean(), rtol=0, atol=1e-6)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_an_evaluation_shows_what_the_model_puts_into_gaps(folder: Path) -> None:
    task = task_of(folder)
    evaluation = task.evaluate(task.model())
    assert 0 <= evaluation.metrics["masked accuracy"] < 0.5
    assert evaluation.samples
    for sample in evaluation.samples:
        assert isinstance(sample, FillMask)
        assert any(word in sample.truth for word in WORDS)


@pytest.mark.parametrize("architecture", ["modernbert", "deberta-v2"])
def test_a_few_steps_lower_the_training_and_the_held_out_loss(folder: Path, architecture: str) -> None:
    task = task_of(folder, architecture=architecture)
    model = task.model()
    optimizer = torch.optim.AdamW(task.groups(model), lr=0.01)
    before = task.evaluate(model)
    batches = batches_from(task, 16, 0, fail)
    for step in range(20):
        task.loss(model, task.prepare(next(batches)), step).mean.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert task.evaluate(model).loss < 0.9 * before.loss


def test_a_tokenizer_without_a_mask_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="the tokenizer has no cls_token; make one with: dedloc prepare tokenizer"):
        task_of(folder, tokenizer=str(folder / "causal"))
