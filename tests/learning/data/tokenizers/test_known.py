"""Which tokenizers llama.cpp has too."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from dedloc_kit.learning.data.tokenizers.known import llama_cpp_name
from dedloc_kit.learning.data.tokenizers.lossless import byte_level_bpe, unigram_with_bytes
from dedloc_kit.learning.data.tokenizers.unigram import lower_case_unigram
from tests.learning.data.tokenizers.test_tokenizer import TEXTS

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def name(tokenizer: Tokenizer) -> str | None:
    return llama_cpp_name(json.loads(tokenizer.to_str()))


def published(pre_tokenizer: Any, ignore_merges: bool = False, **model: Any) -> Tokenizer:
    """A byte-level tokenizer with another splitting."""
    vocabulary = {letter: number for number, letter in enumerate(LETTERS)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], ignore_merges=ignore_merges, **model))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return tokenizer


def lacking(letter: str, **model: Any) -> Tokenizer:
    """A byte-level tokenizer that does not know a byte."""
    vocabulary = {each: number for number, each in enumerate(LETTERS) if each != letter}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], **model))
    tokenizer.pre_tokenizer, tokenizer.decoder = split(QWEN2), decoders.ByteLevel()
    return tokenizer


def split(pattern: str, behavior: str = "isolated", use_regex: bool = False) -> Any:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior), byte_level])


def test_a_new_tokenizer_is_known_whatever_tokens_a_chat_adds() -> None:
    tokenizer = byte_level_bpe(TEXTS, 400, ["<|endoftext|>", "<|padding|>"])
    assert name(tokenizer) == "qwen35"
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    assert name(tokenizer) == "qwen35"


def test_published_tokenizers_are_known_by_how_they_split() -> None:
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert name(published(gpt2)) == "gpt-2"
    assert name(published(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2]))) == "smollm"
    assert name(published(split(QWEN2))) == "qwen2"
    assert name(published(split(QWEN35))) == "qwen35"
    assert name(published(split(QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")), ignore_merges=True)) == "llama-bpe"
    assert name(lacking(LETTERS[-1])) == "qwen2"
    composed = published(split(QWEN2))
    composed.normalizer = normalizers.NFC()
    assert name(composed) == "qwen2"  # as llama.cpp's own files of Qwen


def changed(change: Callable[[Tokenizer], Any]) -> Tokenizer:
    tokenizer = byte_level_bpe(TEXTS, 400, ["<|endoftext|>"])
    change(tokenizer)
    return tokenizer


OTHERS: dict[str, Callable[[], Tokenizer]] = {
    "sahajBERT's": lambda: lower_case_unigram(TEXTS, 200),
    "Unigram with bytes": lambda: unigram_with_bytes(TEXTS, 400, ["<|endoftext|>"]),
    "older runs'": lambda: published(split(r" ?[\p{L}\p{M}\u200c\u200d]{1,128}|\p{N}|[^\s\p{L}\p{M}\p{N}]{1,16}|\s")),
    "split otherwise": lambda: published(split(QWEN35, "removed")),
    "split twice": lambda: published(split(QWEN35, use_regex=True)),
    "Llama 3 with merges": lambda: published(split(QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|"))),
    "Qwen without merges": lambda: published(split(QWEN2), ignore_merges=True),
    "with dropout": lambda: published(split(QWEN2), dropout=0.1),
    "with a space before a text": lambda: published(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "normalized": lambda: changed(lambda it: setattr(it, "normalizer", normalizers.NFC())),
    "decoded otherwise": lambda: changed(lambda it: setattr(it, "decoder", decoders.Fuse())),
    "with a token that takes the space before it": lambda: changed(
        lambda it: it.add_special_tokens([AddedToken("[MASK]", lstrip=True)])
    ),
    "with a token for unknown bytes": lambda: lacking(LETTERS[-1], unk_token="a"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_others_are_not(other: str) -> None:
    assert name(OTHERS[other]()) is None


KNOWN = json.loads(byte_level_bpe(TEXTS[:2], 300, []).to_str())
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.sampled_from(["BPE", "ByteLevel", "Sequence", "Split", "Isolated", QWEN35]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["type", "vocab", "pretokenizers", "pattern", "Regex", "content"]), inner)
    ),
)


@given(parts=st.dictionaries(st.sampled_from(["model", "pre_tokenizer", "decoder", "added_tokens"]), ANYTHING))
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_a_file_that_is_no_tokenizer_is_not_known_either(parts: dict[str, Any]) -> None:
    assert llama_cpp_name(parts) is None
    assert llama_cpp_name({**KNOWN, **parts}) in (None, "qwen35")
