import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet
from torch.nn import functional

from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.masking import IGNORED
from dedloc_kit.learning.data.packing import Pack
from dedloc_kit.learning.data.sources.stream import in_order, texts
from dedloc_kit.learning.data.text.token_shards import shard_path, write_token_shard
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.tasks.causal import Causal
from dedloc_kit.records.evaluation import Continuation
from tests.batches import batches_from
from tests.text_runs import text_run, write_text


def fail(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_text(folder)
    return folder


def task_of(folder: Path, **task: Any) -> Causal:
    created = create_task(text_run(folder, "causal", **task))
    assert isinstance(created, Causal)
    return created


def test_the_loss_is_that_of_each_document_by_itself(folder: Path) -> None:
    """As transformers computes it for one text after the other."""
    task = task_of(folder)
    model: Any = task.model()
    batch = next(batches_from(task, 4, 0, fail))
    assert {name: tuple(values.shape) for name, values in batch.items()} == dict.fromkeys(batch, (4, 32))
    loss = task.loss(model, task.prepare(batch), 0).mean
    losses = []
    for ids, positions, labels in zip(batch["input_ids"], batch["position_ids"], batch["labels"], strict=True):
        starts = [*torch.nonzero(positions == 0).flatten().tolist(), len(ids)]
        for start, end in pairwise(starts):
            scores = model(input_ids=ids[None, start:end]).logits[0]
            losses.append(functional.cross_entropy(scores, labels[start:end], reduction="none"))
    torch.testing.assert_close(loss, torch.cat(losses).mean(), rtol=0, atol=1e-6)
    assert torch.equal(batch["input_ids"][:, 1:], batch["labels"][:, :-1]), "each token is told by those before it"
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_with_one_token_for_the_beginning_and_another_for_the_end_nothing_is_told_after_an_end(folder: Path) -> None:
    task = task_of(folder)
    task.begin, task.end = 5, 6
    ids = np.array([[5, 9, 6, 5, 8, 8, 6, 5]])
    labels = task.arrays(Pack(ids, np.zeros((1, 7), dtype=np.int64)), np.random.default_rng(0))["labels"]
    assert labels.tolist() == [[9, 6, IGNORED, 8, 8, 6, IGNORED]]


def test_evaluation_says_the_loss_per_token_and_per_byte_of_the_texts_as_they_were(folder: Path) -> None:
    task = task_of(folder, evaluation_samples=1000)
    texts = [text for text in task.held_out()[1] if isinstance(text, str)]
    evaluation = task.evaluate(task.model())
    rows = sum(len(batch["labels"]) for batch in task._evaluation)
    tokens = sum(len(task.tokenizer.backend_tokenizer.encode(text).ids) + 1 for text in texts)
    assert rows == (tokens - 1) // 32
    bits = evaluation.loss / math.log(2) * tokens / sum(len(text.encode()) for text in texts)
    assert evaluation.metrics["bits per byte"] == pytest.approx(bits, rel=1e-6)
    assert evaluation.metrics["perplexity"] == pytest.approx(math.exp(evaluation.loss))


def test_the_bytes_of_a_text_hardly_depend_on_how_much_of_it_is_measured(tmp_path: Path) -> None:
    """A document that is measured in part counts in part: where all are the same, each token has the same share."""
    text = write_text(tmp_path)[0]
    parquet.write_table(pyarrow.table({"text": [text] * 5}), tmp_path / "corpus/test-00000-of-00001.parquet")
    shares = []
    for samples in (1, 5, 1000):
        task = task_of(tmp_path, evaluation_samples=samples)
        found = task.held_out_packs()
        shares.append(found.bytes / sum(pack.positions.size for pack in found.packs))
    tokens = len(task.tokenizer(text, add_special_tokens=False)["input_ids"]) + 1
    assert 40 < tokens < 140, "one sample is less than a document, and five end within one"
    assert shares == pytest.approx([len(text.encode()) / tokens] * 3, rel=1e-6)


def test_viewers_see_how_the_model_goes_on_from_the_beginning_of_a_held_out_text(folder: Path) -> None:
    task = task_of(folder)
    samples = task.evaluate(task.model()).samples
    texts = [text for text in task.held_out()[1] if isinstance(text, str)]
    assert len(samples) == 5
    for sample in samples:
        assert isinstance(sample, Continuation)
        assert any(text.replace("\n", " ").startswith(sample.before + sample.truth) for text in texts)
    assert any(isinstance(sample, Continuation) and sample.written for sample in samples), (
        "an untrained model may end one at once"
    )


def test_token_shards_make_the_same_batches_and_the_same_evaluation_as_their_text(folder: Path, tmp_path: Path) -> None:
    run, sources, of_text = text_run(folder, "causal"), [], task_of(folder)
    assert run.data.evaluation is not None
    for source in (*run.data.train, run.data.evaluation):
        shards = tmp_path / source.split
        shards.mkdir()
        documents = of_text.texts.documents(in_order(source, texts, warn=fail))
        write_token_shard(documents, shard_path(shards, 0), of_text.vocabulary_hash, len(of_text.tokenizer))
        sources.append(Source(dataset=str(shards), tokenized=True))
    data = run.data.model_copy(update={"train": (sources[0],), "evaluation": sources[1]})
    task, tokenized = create_task(run), create_task(run.model_copy(update={"data": data}))
    one, other = batches_from(task, 4, 3, fail), batches_from(tokenized, 4, 3, fail)
    for _ in range(20):
        assert all(
            torch.equal(values, next_) for values, next_ in zip(next(one).values(), next(other).values(), strict=True)
        )
    model = task.model()
    assert tokenized.evaluate(model) == task.evaluate(model)


@pytest.mark.parametrize("architecture", ["llama", "gpt_neox"])
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
    after = task.evaluate(model)
    assert after.loss < 0.7 * before.loss
    assert after.metrics["bits per byte"] < 0.7 * before.metrics["bits per byte"]
    assert after.samples != before.samples


@pytest.mark.parametrize(
    ("task", "model", "message"),
    [
        ({"sequence_length": 64}, {"max_position_embeddings": 32}, "task.sequence_length must be at most .*(32)"),
        ({"architecture": "lama"}, {}, "did you mean 'llama'"),
        ({"mlm_probability": 0.1}, {}, "task.mlm_probability is not a known key"),
        ({"model": "large"}, {}, "task.model: input should be an object"),
    ],
)
def test_a_wrong_option_names_the_key_and_the_fix(
    folder: Path, task: dict[str, Any], model: dict[str, Any], message: str
) -> None:
    run = text_run(folder, "causal", model=model, **{key: value for key, value in task.items() if key != "model"})
    if "model" in task:
        run = run.model_copy(update={"task": run.task.model_copy(update={"model": task["model"]})})
    with pytest.raises(UserError, match=message):
        create_task(run)


def test_data_and_tokenizers_that_do_not_suit_say_so(folder: Path, tmp_path: Path) -> None:
    task = create_task(text_run(folder, "causal", evaluation=False))
    with pytest.raises(UserError, match=r"add \[data\.evaluation\]"):
        task.evaluate(task.model())
    task = task_of(folder, sequence_length=2000, model={"max_position_embeddings": 2048})
    task.held_out = lambda: (task.run.data.train[0], iter(["short"]))  # type: ignore[method-assign]
    with pytest.raises(UserError, match="holds less text than one sample"):
        task.evaluate(task.model())
    tokenizer = task.tokenizer
    tokenizer.eos_token = tokenizer.bos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="the tokenizer has no eos_token, which ends documents; make one with"):
        task_of(folder, tokenizer=str(tmp_path))
