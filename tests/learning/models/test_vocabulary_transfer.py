"""A model gets another vocabulary and keeps what it knows."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    BertConfig,
    BertForMaskedLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL, MASKED
from dedloc_kit.learning.data.tokenizers.spelling import spellings
from dedloc_kit.learning.data.tokenizers.tokenizer import Tokenization, load_tokenizer, train_tokenizer
from dedloc_kit.learning.models.vocabulary_transfer import Origins, origins, transplant
from tests.learning.data.tokenizers.test_tokenizer import LANGUAGES, TEXTS

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
}


def tokenizer_of(
    folder: Path, kind: Tokenization, special: dict[str, str], texts: list[str], vocabulary: int = 500
) -> Any:
    train_tokenizer(iter(texts), vocabulary, folder, kind, special)
    return load_tokenizer(str(folder))


def llama(vocabulary: int) -> Any:
    return LlamaForCausalLM(LlamaConfig(**SMALL, vocab_size=vocabulary, tie_word_embeddings=True))


def neox(vocabulary: int) -> Any:
    return GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL, vocab_size=vocabulary, tie_word_embeddings=False))


def bert(vocabulary: int) -> Any:
    return BertForMaskedLM(BertConfig(**SMALL, vocab_size=vocabulary))


def albert(vocabulary: int) -> Any:
    return AlbertForPreTraining(AlbertConfig(**SMALL, embedding_size=8, vocab_size=vocabulary))


@pytest.mark.parametrize("make", [llama, neox, bert, albert])
def test_the_embeddings_and_what_is_told_of_each_token_are_the_mean_of_the_old_ones(make: Any) -> None:
    torch.manual_seed(0)
    old, new = make(6).eval(), make(4).eval()
    for parameter in old.parameters():  # biases too
        parameter.data.add_(torch.randn(parameter.shape) / 10)
    before = {name: each.clone() for name, each in old.named_parameters()}
    transplant(old, new, Origins([[3], [0, 1], [2, 4, 5], [5]]), seed=1)
    parts = torch.tensor(
        [[0, 0, 0, 1, 0, 0], [0.5, 0.5, 0, 0, 0, 0], [0, 0, 1 / 3, 0, 1 / 3, 1 / 3], [0, 0, 0, 0, 0, 1]]
    )
    embeddings = new.get_input_embeddings().weight
    torch.testing.assert_close(embeddings, parts @ old.get_input_embeddings().weight)
    assert torch.equal(embeddings[0], old.get_input_embeddings().weight[3])
    ids = torch.tensor([[0, 3, 0, 0, 3]])
    there, here = old(input_ids=torch.tensor([[3, 5, 3, 3, 5]])), new(input_ids=ids)
    named = "prediction_logits" if make is albert else "logits"
    torch.testing.assert_close(here[named], there[named] @ parts.T)
    assert all(torch.equal(before[name], each) for name, each in old.named_parameters())


def test_tokens_that_none_spell_are_drawn_from_the_seed_with_the_spread_of_the_old_ones() -> None:
    old = llama(2000)
    old.get_input_embeddings().weight.data.mul_(torch.linspace(1, 3, 16)).add_(1.0)
    first, again, other = llama(3000), llama(3000), llama(3000)
    for model, seed in ((first, 1), (again, 1), (other, 2)):
        transplant(old, model, Origins([[7]] + [[]] * 2000), seed)
    rows, before = first.get_input_embeddings().weight, old.get_input_embeddings().weight
    assert torch.equal(rows[0], before[7])
    assert torch.equal(rows, again.get_input_embeddings().weight)
    assert not torch.equal(rows[1:], other.get_input_embeddings().weight[1:])
    torch.testing.assert_close(rows[1:].mean(0), before.mean(0), atol=0.01, rtol=0.01)
    torch.testing.assert_close(rows[1:].std(0), before.std(0), atol=0.0, rtol=0.1)


def test_models_that_differ_in_more_are_refused() -> None:
    for old, new in ((llama(6), neox(6)), (neox(6), neox(6).gpt_neox)):
        with pytest.raises(UserError, match=r"^task\.init_from has another shape than the run's model"):
            transplant(old, new, Origins([[0]]), 0)


def test_a_tokenizers_own_tokens_are_all_copied(tmp_path: Path) -> None:
    for kind, special in (("unigram", MASKED), ("bpe", CAUSAL), ("unigram-bytes", CAUSAL)):
        tokenizer = tokenizer_of(tmp_path / kind, kind, special, TEXTS)  # type: ignore[arg-type]
        made = origins(tokenizer, tokenizer)
        assert [list(each) for each in made.parts] == [[number] for number in range(len(tokenizer))]
        assert (made.copied, made.averaged, made.drawn) == (len(tokenizer), 0, 0)


@pytest.mark.parametrize("old_kind", ["bpe", "unigram-bytes"])
@pytest.mark.parametrize("new_kind", ["bpe", "unigram-bytes"])
def test_between_exact_tokenizers_every_text_is_spelled_exactly(
    tmp_path: Path, old_kind: Tokenization, new_kind: Tokenization
) -> None:
    old = tokenizer_of(tmp_path / "old", old_kind, CAUSAL, TEXTS)
    new = tokenizer_of(tmp_path / "new", new_kind, CAUSAL, LANGUAGES * 3, 600)
    made, spelled, old_spelled = origins(new, old), spellings(new), spellings(old)
    for parts, text in zip(made.parts, spelled, strict=True):
        if text is not None:
            assert b"".join(old_spelled[each] or b"" for each in parts) == text
    assert made.drawn == 0
    assert made.averaged > 100
    assert made.copied > 100
    assert [made.parts[new.eos_token_id], made.parts[new.pad_token_id]] == [[old.eos_token_id], [old.pad_token_id]]


def test_a_text_is_taken_apart_as_the_old_tokenizer_would(tmp_path: Path) -> None:
    old = tokenizer_of(tmp_path / "old", "bpe", CAUSAL, TEXTS)
    new = tokenizer_of(tmp_path / "new", "bpe", CAUSAL, ["the riverside owners"] * 20, 300)
    made = origins(new, old)
    for number, text in enumerate(spellings(new)):
        if text is not None and text.isascii():
            assert list(made.parts[number]) == old(text.decode(), add_special_tokens=False)["input_ids"]
    merges = [("b", "c"), ("a", "b"), ("c", "d")]
    old, new = byte_pairs(merges), byte_pairs([*merges, ("ab", "cd")])
    assert old.tokenize("abcd") == ["a", "bc", "d"]
    found = origins(new, old).parts[new.convert_tokens_to_ids("abcd")]
    assert old.convert_ids_to_tokens(list(found)) == ["a", "bc", "d"], "although ab and cd are fewer"


def byte_pairs(merges: list[tuple[str, str]]) -> Any:
    """A tokenizer of bytes that joins these pairs, the first ones first."""
    tokens = ["[UNK]", *"abcd", *map("".join, merges)]
    made = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges, unk_token="[UNK]"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")


def written(kind: str, vocabulary: list[str]) -> Any:
    """A tokenizer with these tokens beside the special ones."""
    numbers = {token: number for number, token in enumerate(["[UNK]", "[MASK]", *vocabulary])}
    if kind == "word pieces":
        made = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        made = Tokenizer(models.Unigram([(token, -1.0) for token in numbers], 0))
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", mask_token="[MASK]")


def test_words_and_their_parts_find_each_other_in_other_ways_of_writing(tmp_path: Path) -> None:
    spaced = written("pieces", ["▁river", "side", "▁the", "r", "▁", "é"])
    pieces = written("word pieces", ["river", "##side", "the", "##r", "zz"])

    def told(new: Any, old: Any) -> dict[str, list[str]]:
        return {
            token: old.convert_ids_to_tokens(list(parts))
            for token, parts in zip(new.convert_ids_to_tokens(range(len(new))), origins(new, old).parts, strict=True)
        }

    assert told(spaced, pieces) == {
        "[UNK]": ["[UNK]"],
        "[MASK]": ["[MASK]"],
        "▁river": ["river"],
        "side": ["##side"],
        "▁the": ["the"],
        "r": ["##r"],
        "▁": [],
        "é": [],
    }
    assert told(pieces, spaced) == {
        "[UNK]": ["[UNK]"],
        "[MASK]": ["[MASK]"],
        "river": ["▁river"],
        "##side": ["side"],
        "the": ["▁the"],
        "##r": ["r"],
        "zz": [],
    }
    cased = tokenizer_of(tmp_path / "cased", "bpe", MASKED, ["The RIVER river side"] * 9, 300)
    lower = tokenizer_of(tmp_path / "lower", "unigram", MASKED, TEXTS, 200)
    found = told(cased, lower)
    assert found["The"] == found["Ġthe"] if "Ġthe" in found else lower.tokenize("the")
    assert found["[CLS]"] == ["[CLS]"]
