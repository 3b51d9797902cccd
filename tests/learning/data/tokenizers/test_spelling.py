"""What tokens spell, in all the ways that vocabularies are written down."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dedloc_kit.learning.data.tokenizers.special_tokens import MASKED
from dedloc_kit.learning.data.tokenizers.spelling import spellings
from dedloc_kit.learning.data.tokenizers.tokenizer import Tokenization, load_tokenizer, train_tokenizer
from tests.learning.data.tokenizers.test_tokenizer import TEXTS


@pytest.mark.parametrize("kind", ["unigram", "bpe", "unigram-bytes"])
def test_the_tokens_of_a_text_spell_it_one_after_the_other(kind: Tokenization, tmp_path: Path) -> None:
    train_tokenizer(iter(TEXTS), 400, tmp_path / "t", kind, MASKED)
    tokenizer = load_tokenizer(str(tmp_path / "t"))
    spelled, text = spellings(tokenizer), " the river runs, 12 miles ভালোবাসি 中\ufe0f"
    if kind == "unigram":
        text = text.removesuffix(" 中\ufe0f")
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert b"".join(spelled[each] or b"" for each in ids).decode() == text
    assert {number for number, each in enumerate(spelled) if each is None} == set(tokenizer.all_special_ids)


def test_word_pieces_begin_with_a_space_unless_they_go_on() -> None:
    pieces = Tokenizer(models.WordPiece({"[UNK]": 0, "river": 1, "##s": 2}, unk_token="[UNK]"))
    assert spellings(PreTrainedTokenizerFast(tokenizer_object=pieces, unk_token="[UNK]")) == [None, b" river", b"s"]


def test_a_letter_that_other_vocabularies_write_a_space_with_is_a_letter() -> None:
    maltese = Tokenizer(models.Unigram([("Ġ", -1.0), (" Ġa", -1.0)], 0))
    assert spellings(PreTrainedTokenizerFast(tokenizer_object=maltese)) == ["Ġ".encode(), " Ġa".encode()]
    bpe = Tokenizer(models.BPE({"Ġ": 0, "Ġa": 1, "à¦": 2, "a": 3}, [("Ġ", "a")]))
    bpe.decoder, bpe.pre_tokenizer = decoders.ByteLevel(), pre_tokenizers.ByteLevel()
    assert spellings(PreTrainedTokenizerFast(tokenizer_object=bpe)) == [b" ", b" a", b"\xe0\xa6", b"a"]
