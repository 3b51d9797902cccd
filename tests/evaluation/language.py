"""A made-up language in which a word's tag, and a text's class, follow from the words; and a tiny model of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from pyarrow import parquet
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import AlbertConfig, AlbertForPreTraining, PreTrainedTokenizerFast

PEOPLE = ["mirna", "tolve", "osgar"]
PLACES = ["quellin", "harvost", "debrun"]
KINDS = ["bay", "hill"]
OTHERS = ["walks", "sees", "with", "near", "often", "never", "today", "."]
TAGS = ["O", "B-PER", "B-LOC", "I-LOC"]


def sentence(generator: np.random.Generator) -> tuple[list[str], list[int]]:
    """Some words, a person and a place of two words."""
    words = [str(word) for word in generator.choice(OTHERS, size=5)]
    person, place, kind = (str(generator.choice(names)) for names in (PEOPLE, PLACES, KINDS))
    return [words[0], person, *words[1:4], place, kind, words[4]], [0, 1, 0, 0, 0, 2, 3, 0]


def write(folder: Path, split: str, columns: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), folder / f"{split}-00000-of-00001.parquet")


def write_ner(folder: Path, sizes: dict[str, int], labels_file: bool = True) -> Path:
    """A local dataset whose tags are numbers, in the form of one on the Hub."""
    for number, (split, size) in enumerate(sizes.items()):
        generator = np.random.default_rng(number)
        sentences = [sentence(generator) for _ in range(size)]
        write(folder, split, {"tokens": [words for words, _ in sentences], "ner_tags": [tags for _, tags in sentences]})
    if labels_file:
        (folder / "labels.json").write_text(json.dumps({"ner_tags": TAGS}), encoding="utf-8")
    return folder


def write_news(folder: Path, sizes: dict[str, int]) -> Path:
    """A local dataset of texts about a person or a place, whose classes are names."""
    for number, (split, size) in enumerate(sizes.items()):
        generator = np.random.default_rng(number)
        classes = ["people" if number else "places" for number in generator.integers(2, size=size)]
        texts = [" ".join(generator.choice(PEOPLE if name == "people" else PLACES, 6)) for name in classes]
        write(folder, split, {"text": texts, "label": classes})
    return folder


def write_model(folder: Path) -> Path:
    """An ALBERT of a few thousand random weights, with a tokenizer of the language."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PEOPLE, *PLACES, *KINDS, *OTHERS]
    core = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    core.pre_tokenizer = Whitespace()
    special = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, **{f"{name}_token": token for name, token in special.items()}
    )
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    config = AlbertConfig(
        vocab_size=len(tokenizer),
        embedding_size=32,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AlbertForPreTraining(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tokenizer.save_pretrained(folder.with_name("tokenizer"))
    return folder
