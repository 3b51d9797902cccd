"""Span corruption on documents over a small vocabulary."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from dedloc_kit.config.loading import parse_run
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.text.tokens import Document
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL
from dedloc_kit.learning.data.tokenizers.tokenizer import train_tokenizer
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.train.optim.build import build_optimizer
from tests.batches import batches_from

SMALL = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spans")
    lines = [f"the river {name} runs from the hills to the sea and on to {name}" for name in ("wye", "exe", "tay")] * 80
    (folder / "corpus").mkdir()
    for split, part in (("train", lines[:200]), ("test", lines[200:])):
        (folder / "corpus" / f"{split}.txt").write_text("\n\n".join(part), encoding="utf-8")
    train_tokenizer(iter(lines), 320, folder / "tokenizer", "bpe", CAUSAL)
    return folder


def task_of(folder: Path, **options: Any) -> Any:
    source = {"dataset": str(folder / "corpus")}
    options = {"tokenizer": str(folder / "tokenizer"), "sequence_length": 40, "evaluation_samples": 20, **options}
    return create_task(
        parse_run(
            {
                "name": "spans",
                "global_batch": 8,
                "task": {"name": "span-corruption", "model": SMALL, **options},
                "data": {"train": [source], "evaluation": {**source, "split": "test"}},
                "optimizer": {"name": "adamw", "learning_rate": 0.01, "warmup_steps": 0, "total_steps": 100},
            }
        )
    )


def test_the_targets_tell_gap_by_gap_what_the_encoder_does_not_read(folder: Path) -> None:
    task = task_of(folder)
    first, last = task.sentinels.tolist()
    document = Document(np.tile(np.arange(100, 141), 99).astype(np.uint16), np.array([], dtype=np.int64))
    sizes = set[int]()
    for example in list(task.examples([document], np.random.default_rng(0)))[1:]:
        read, told = example["input_ids"].tolist(), example["labels"].tolist()
        assert (len(read), len(told)) == (40 - 6 + 2 + 1, 6 + 2 + 1), "6 of 40 tokens in 2 gaps, and the end"
        assert read[0] != first == told[0], "text comes first"
        assert read[-2:] == [last, task.end], "and a gap last"
        assert told[-1] == task.end
        one, other = told[1 : told.index(last)], told[told.index(last) + 1 : -1]
        whole = [*read[: read.index(first)], *one, *read[read.index(first) + 1 : -2], *other]
        assert all((after - before) % 41 == 1 for before, after in pairwise(whole)), "the document as it was"
        sizes |= {len(one), len(other)}
    assert sizes == {1, 2, 3, 4, 5}


def test_it_learns_what_stood_in_the_gaps(folder: Path) -> None:
    task = task_of(folder)
    model = task.model()
    optimizer = build_optimizer(task.run.optimizer, task.groups(model))
    before, batches = task.evaluate(model).loss, batches_from(task, 8, 0, pytest.fail)
    for step in range(40):
        task.loss(model, next(batches), step).mean.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert task.evaluate(model).loss < 0.7 * before


def test_an_export_is_what_transformers_loads(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = task_of(folder)
    model = task.model().eval()
    usage = task.export(model, tmp_path, str(tmp_path))
    tokens = AutoTokenizer.from_pretrained(tmp_path)("the <extra_id_0> runs <extra_id_1>", return_tensors="pt")
    assert tokens["input_ids"][0, [-2, -1]].tolist() == [task.sentinels[1], task.end]
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    with torch.inference_mode():
        one, other = (each(**tokens, labels=tokens["input_ids"]).logits for each in (loaded.eval(), model))
    assert torch.equal(one, other)
    exec(usage.code, {})
    assert capsys.readouterr().out.strip()


def test_what_is_against_it_says_so(folder: Path) -> None:
    assert task_of(folder).unsupported("checks") == ""
    assert "dropout_rate is 0.1" in task_of(folder, model={**SMALL, "dropout_rate": 0.1}).unsupported("checks")
    with pytest.raises(UserError, match=r"^task\.model\.d_mdel is not a known key of t5; did you mean 'd_model'"):
        task_of(folder, model={"d_mdel": 8})
