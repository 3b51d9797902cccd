"""What a model that exists is worth as a beginning, with a new vocabulary: bits per byte of held-out text as it learns.

    python -m benchmarks.continuing --text FOLDER ... --json FILE
    python -m benchmarks.continuing --text FOLDER ... --keep recipes/continue/start-smoke

A small decoder learns one half of the documents; the other half, with a vocabulary of its own, is then learned from
scratch, from the old model with random embeddings, from it with each token the mean of the old ones that spell it, and
the same with nothing but the embeddings trained at first. All see the same samples. Without --text it takes the demo's
text. With --keep only the old model is made, in a folder, as others publish theirs: for a run that goes on from it.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import torch
from pyarrow import parquet

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.task import Source
from dedloc_kit.learning.data.sources.stream import in_order, texts
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer, training_text
from dedloc_kit.learning.models.init_from import fingerprint
from dedloc_kit.learning.models.vocabulary_transfer import Origins, origins, transplant
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.tasks.batches import batches_of
from dedloc_kit.resources import small_text

BATCH, EVALUATIONS, HELD_OUT = 16, 6, 12
VOCABULARY, CHARACTERS = 4000, 2_000_000


def task_of(folder: Path, half: str) -> Any:
    source = {"dataset": str(folder / half)}
    model = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 256}
    task = {"name": "causal", "tokenizer": str(folder / f"{half}-tokenizer"), "sequence_length": 128, "model": model}
    return create_task(
        parse_run(
            {
                "name": half,
                "global_batch": BATCH,
                "task": {**task, "evaluation_samples": 64},
                "data": {"train": [source], "evaluation": {**source, "split": "test"}},
            }
        )
    )


def prepare(folder: Path, documents: Sequence[str]) -> None:
    """Each half as text to train on, text to evaluate on and a tokenizer."""
    for half, part in (("old", documents[::2]), ("new", documents[1::2])):
        (folder / half).mkdir()
        train = [text for number, text in enumerate(part) if number % HELD_OUT]
        for split, some in (("train", train), ("test", part[::HELD_OUT])):
            parquet.write_table(pyarrow.table({"text": some}), folder / half / f"{split}.parquet")
        sample = training_text(iter(train), CHARACTERS, 0, "bpe")
        train_tokenizer(sample, VOCABULARY, folder / f"{half}-tokenizer", "bpe", CAUSAL)


def curve(task: Any, model: Any, steps: int, frozen: int = 0) -> list[float]:
    """Bits per byte before the first step and after each part of them.

    :param frozen: steps in which the embeddings alone are trained
    """
    embeddings = model.get_input_embeddings().weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    batches = batches_of(task.run, task, BATCH, 0, print)
    found = [task.evaluate(model).metrics["bits per byte"]]
    for step in range(steps):
        task.loss(model, task.prepare(next(batches)), step).mean.backward()
        for parameter in model.parameters():
            if step < frozen and parameter is not embeddings:
                parameter.grad = None
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % max(1, steps // EVALUATIONS) == 0:
            found.append(task.evaluate(model).metrics["bits per byte"])
    return found


def keep(folder: Path, steps: int, where: Path) -> None:
    """Make the old model alone, and write it to a new folder `where`."""
    task = task_of(folder, "old")
    model = task.model()
    print("bits per byte:", *(f"{each:.3f}" for each in curve(task, model, steps)), flush=True)
    where.mkdir(parents=True)
    task.save(model, where, begin=task.begin)
    print(f'init_from_sha256 = "{fingerprint(where)}"')


def measure(folder: Path, steps: int) -> dict[str, list[float]]:
    before, after = task_of(folder, "old"), task_of(folder, "new")
    old = before.model()
    curves = {"old half": curve(before, old, steps)}
    made = origins(after.tokenizer, load_tokenizer(str(folder / "old-tokenizer")))
    print(f"{made.copied} tokens copied, {made.averaged} averaged, {made.drawn} drawn", flush=True)
    for name, parts, frozen in (
        ("scratch", None, 0),
        ("random embeddings", Origins([()] * len(made.parts)), 0),
        ("going on", made, 0),
        ("going on, embeddings first", made, steps // EVALUATIONS),
    ):
        model = after.model()
        if parts is not None:
            transplant(old, model, parts, seed=0)
        curves[name] = curve(after, model, steps, frozen)
        print(f"{name:28}", *(f"{each:6.3f}" for each in curves[name]), flush=True)
    return curves


def main() -> None:
    parser = argparse.ArgumentParser(description="Going on from a model with a new vocabulary, against from scratch")
    parser.add_argument("--text", type=Path, nargs="+", default=(small_text(),), help="folders (default: the demo's)")
    parser.add_argument("--steps", type=int, default=300, help="of each training (default: 300)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the curves there as well")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="make nothing but the old model, and write it there"
    )
    arguments = parser.parse_args()
    sources = [Source(dataset=str(folder.resolve())) for folder in arguments.text]
    documents = [text for source in sources for text in in_order(source, texts, warn=print)]
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), documents)
        if arguments.keep:
            keep(Path(folder), arguments.steps, arguments.keep)
            return
        curves = measure(Path(folder), arguments.steps)
    if arguments.json:
        arguments.json.write_text(json.dumps(curves, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
