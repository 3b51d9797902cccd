"""Small text and the runs that learn it, for tests of the tasks of text."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.data.tokenizers.special_tokens import CLS, MASK, PAD, SEP, UNK

WORDS = ["river", "sea", "bank", "boat", "water", "stone", "bridge", "mill", "field", "road", "tree", "house", "rain"]
END = "<|endoftext|>"
MODEL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
EXPERTS = {"layers": [1], "grid": [2, 2], "width": MODEL["hidden_size"], "hidden": 24}


def write_text(folder: Path) -> list[str]:
    """The folder `corpus` and two tokenizers, `masked` and `causal`, as tasks of these kinds need them; the texts."""
    generator = np.random.default_rng(0)
    texts = [
        ".\n".join(" ".join(generator.choice(WORDS, size=6)) for _ in range(generator.integers(1, 12)))
        for _ in range(160)
    ]
    (folder / "corpus").mkdir()
    for split, part in (("train", texts[:120]), ("test", texts[120:])):
        parquet.write_table(pyarrow.table({"text": part}), folder / f"corpus/{split}-00000-of-00001.parquet")
    edges = processors.TemplateProcessing(single=f"{CLS} $A {SEP}", special_tokens=[(CLS, 2), (SEP, 3)])
    masked = _trained(texts, [PAD, UNK, CLS, SEP, MASK], pre_tokenizers.Metaspace(), decoders.Metaspace())
    masked.post_processor = edges
    names = {"pad_token": PAD, "unk_token": UNK, "cls_token": CLS, "sep_token": SEP, "mask_token": MASK}
    PreTrainedTokenizerFast(tokenizer_object=masked, **names).save_pretrained(folder / "masked")
    causal = _trained(texts, [END], pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())
    PreTrainedTokenizerFast(tokenizer_object=causal, bos_token=END, eos_token=END).save_pretrained(folder / "causal")
    return texts


def _trained(texts: list[str], special: list[str], pieces: Any, decoder: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pieces, decoder
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=330, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    return tokenizer


def text_run(
    folder: Path, name: str, evaluation: bool = True, model: dict[str, Any] | None = None, **task: Any
) -> RunConfig:
    """A run of the task `name` on what `write_text` wrote."""
    source = {"dataset": str(folder / "corpus")}
    data: dict[str, Any] = {"train": [source]}
    if evaluation:
        data["evaluation"] = {**source, "split": "test"}
    tokenizer = folder / ("causal" if name == "causal" else "masked")
    options = {"tokenizer": str(tokenizer), "sequence_length": 32, "evaluation_samples": 20, **task}
    return parse_run(
        {
            "name": "tiny",
            "global_batch": 16,
            "task": {"name": name, "model": {**MODEL, **(model or {})}, **options},
            "data": data,
            "optimizer": {"warmup_steps": 1, "total_steps": 10},
        }
    )


def mixed(run: RunConfig, **experts: Any) -> RunConfig:
    """The same with experts in its second layer."""
    exact = run.model_copy(update={"averaging": run.averaging.model_copy(update={"overlap": False})})
    return parse_run({**exact.model_dump(mode="json"), "experts": {**EXPERTS, **experts}})
