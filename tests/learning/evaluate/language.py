"""A made-up language in which a word's tag, and a text's class, follow from the words; and a tiny model of it."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from pyarrow import parquet
from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordLevel, WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

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


SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def write_model(folder: Path) -> Path:
    """An ALBERT of a few thousand random weights, with a tokenizer of the language."""
    tokenizer = _tokenizer(WordLevel, [*PEOPLE, *PLACES, *KINDS, *OTHERS])
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
    save(AlbertForPreTraining, config, tokenizer, folder)
    tokenizer.save_pretrained(folder.with_name("tokenizer"))
    return folder


def write_masked(folder: Path, pieces: list[str], uniform: bool = False) -> Path:
    """A BERT whose words are made of these pieces, in the manner of WordPiece; `uniform` as with `write_causal`."""
    tokenizer = _tokenizer(partial(WordPiece, max_input_chars_per_word=100), pieces)
    tokenizer.backend_tokenizer.decoder = WordPieceDecoder()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    save(BertForMaskedLM, config, tokenizer, folder, uniform)
    return folder


def write_causal(folder: Path, words: list[str], uniform: bool = False) -> Path:
    """A Llama whose tokens are these words; `uniform`: to which all tokens are equally likely."""
    tokenizer = _tokenizer(WordLevel, words)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    tokenizer.bos_token = "[CLS]"
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.5,
        tie_word_embeddings=False,
    )
    save(LlamaForCausalLM, config, tokenizer, folder, uniform)
    return folder


def save(kind: Any, config: Any, tokenizer: Any, folder: Path, uniform: bool = False) -> None:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = kind(config)
        for parameter in model.parameters() if uniform else ():
            parameter.zero_()
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(kind: Any, pieces: list[str]) -> Any:
    vocabulary = {word: number for number, word in enumerate([*SPECIAL.values(), *pieces])}
    core = Tokenizer(kind(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = Whitespace()
    core.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return PreTrainedTokenizerFast(tokenizer_object=core, **{f"{name}_token": token for name, token in SPECIAL.items()})
