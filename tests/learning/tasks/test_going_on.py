"""What a model has learned before helps with another text and another vocabulary."""

from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from pyarrow import parquet

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import Source
from dedloc_kit.learning.data.sources.stream import in_order, texts
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer
from dedloc_kit.learning.models.vocabulary_transfer import Origins, origins, transplant
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.tasks.causal import Causal
from dedloc_kit.resources import small_text
from tests.batches import batches_from

STEPS, EVERY, BATCH = 20, 10, 16


def run_of(folder: Path, half: str) -> RunConfig:
    """A small decoder on one half of some documents, with a vocabulary of its own."""
    source = {"dataset": str(folder / half)}
    model = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96}
    task = {"name": "causal", "tokenizer": str(folder / f"{half}-tokenizer"), "sequence_length": 64, "model": model}
    return parse_run(
        {
            "name": half,
            "global_batch": BATCH,
            "task": {**task, "evaluation_samples": 16},
            "data": {"train": [source], "evaluation": {**source, "split": "test"}},
        }
    )


def task_of(folder: Path, half: str) -> Causal:
    task = create_task(run_of(folder, half))
    assert isinstance(task, Causal)
    return task


def curve(task: Causal, model: Any, steps: int) -> list[float]:
    """Bits per byte of held-out text before the first step and after every few."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = batches_from(task, BATCH, 0, print)
    found = [task.evaluate(model).metrics["bits per byte"]]
    for step in range(steps):
        task.loss(model, task.prepare(next(batches)), step).mean.backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % EVERY == 0:
            found.append(task.evaluate(model).metrics["bits per byte"])
    return found


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_going_on_with_a_new_vocabulary_is_better_than_from_scratch_at_every_evaluation(tmp_path: Path) -> None:
    documents = list(in_order(Source(dataset=str(small_text())), texts, warn=print))
    for half, vocabulary, part in (("old", 500, documents[::2]), ("new", 700, documents[1::2])):
        (tmp_path / half).mkdir()
        for split, some in (("train", part[10:]), ("test", part[:10])):
            parquet.write_table(pyarrow.table({"text": some}), tmp_path / half / f"{split}.parquet")
        train_tokenizer(iter(part[10:]), vocabulary, tmp_path / f"{half}-tokenizer", "bpe", CAUSAL)
    before, after = task_of(tmp_path, "old"), task_of(tmp_path, "new")
    old = before.model()
    curve(before, old, 3 * STEPS)

    made = origins(after.tokenizer, load_tokenizer(str(tmp_path / "old-tokenizer")))
    assert made.averaged > 50
    begun = {"scratch": after.model(), "random embeddings": after.model(), "going on": after.model()}
    transplant(old, begun["random embeddings"], Origins([()] * len(made.parts)), seed=0)
    transplant(old, begun["going on"], made, seed=0)
    curves = {name: curve(after, model, STEPS) for name, model in begun.items()}
    for other in ("scratch", "random embeddings"):
        assert all(mine < theirs for mine, theirs in zip(curves["going on"], curves[other], strict=True)), curves
