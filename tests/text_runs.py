"""Small text and the runs that learn it, for tests of the tasks of text."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dedloc_kit.data.tokenizer import train_tokenizer
from dedloc_kit.run import RunConfig, parse_run

WORDS = ["river", "sea", "bank", "boat", "water", "stone", "bridge", "mill", "field", "road", "tree", "house", "rain"]
END = "<|endoftext|>"
MODEL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def write_text(folder: Path) -> list[str]:
    """The folder `corpus`, `tokenizer` as ALBERT's and `bytes`, byte-level with an end-of-text token; the texts."""
    generator = np.random.default_rng(0)
    texts = [
        ".\n".join(" ".join(generator.choice(WORDS, size=6)) for _ in range(generator.integers(1, 12)))
        for _ in range(160)
    ]
    (folder / "corpus").mkdir()
    for split, part in (("train", texts[:120]), ("test", texts[120:])):
        parquet.write_table(pyarrow.table({"text": part}), folder / f"corpus/{split}-00000-of-00001.parquet")
    train_tokenizer(iter(texts), 100, folder / "tokenizer")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=300, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    )
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=END, eos_token=END).save_pretrained(folder / "bytes")
    return texts


def text_run(
    folder: Path, name: str, evaluation: bool = True, model: dict[str, Any] | None = None, **task: Any
) -> RunConfig:
    """A run of the task `name` on what `write_text` wrote."""
    source = {"dataset": str(folder / "corpus")}
    data: dict[str, Any] = {"train": [source], "shuffle_buffer": 10}
    if evaluation:
        data["evaluation"] = {**source, "split": "test"}
    tokenizer = {"causal": "bytes"}.get(name, "tokenizer")
    options = {"tokenizer": str(folder / tokenizer), "sequence_length": 32, "evaluation_samples": 20, **task}
    return parse_run(
        {
            "name": "tiny",
            "global_batch": 16,
            "task": {"name": name, "model": {**MODEL, **(model or {})}, **options},
            "data": data,
            "optimizer": {"warmup_steps": 1, "total_steps": 10},
        }
    )
