import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dedloc_kit.learning.data.text import tokens
from dedloc_kit.learning.data.text.sentences import sentences
from dedloc_kit.learning.data.text.tokens import MAX_TOKENS, Document, DocumentTokenizer, cut, vocabulary_hash
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer

TEXTS = ["River and sea. A bank! Is the boat here? Yes", "আমি ভাত খাই। তুমি ৩.৫ টাকা খাও?", "One sentence", "", "Sea. River."]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("made") / "tokenizer"
    train_tokenizer(iter(TEXTS * 10), 120, folder)
    return load_tokenizer(str(folder))


def test_a_document_has_the_tokens_of_each_of_its_sentences_by_itself(tokenizer: Any) -> None:
    made = list(DocumentTokenizer(tokenizer, "bn").documents(TEXTS))
    assert len(made) == len(TEXTS)
    for text, document in zip(TEXTS, made, strict=True):
        alone = [tokenizer.encode(s, add_special_tokens=False) for s in sentences(text, "bn")]
        assert document.ids.tolist() == [token for ids in alone for token in ids]
        bounds = [0, *document.ends.tolist()]
        assert [document.ids[a:b].tolist() for a, b in pairwise(bounds)] == alone
        assert document.ids.dtype == np.uint16


def test_without_a_language_a_text_is_tokenized_as_it_is() -> None:
    """As GPT-2's, which keeps every space and takes one together with the word behind it."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    odd = [*TEXTS, "  two   spaces \n\n and  lines\n", " front", "end ", "\u00a0 \u00a0x", "   ", "tabs\t\t and 12  34"]
    trainer = trainers.BpeTrainer(
        vocab_size=340, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(odd * 3, trainer)
    documents = DocumentTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), None)
    for text, document in zip(odd, documents.documents(odd), strict=True):
        assert document.ids.tolist() == backend.encode(text).ids
        assert document.ends.tolist() == [len(document.ids)] * bool(text)
        assert backend.decode(document.ids.tolist()) == text


def test_a_tokenizer_that_is_set_to_truncate_truncates_nothing(tokenizer: Any) -> None:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer("River", truncation=True, max_length=4, padding="max_length")
    [document] = DocumentTokenizer(tokenizer, "en").documents(["River and sea and bank. " * 10])
    assert len(document.ids) > 40
    assert tokenizer.pad_token_id not in document.ids


def test_a_separator_that_a_text_spells_is_text_and_ends_no_sentence(tokenizer: Any) -> None:
    [document] = DocumentTokenizer(tokenizer, "en").documents(["River [SEP] sea. A[SEP]bank [MASK]!"])
    assert not {*document.ids.tolist()} & ({*tokenizer.all_special_ids} - {tokenizer.unk_token_id})
    assert len(document.ends) == 2
    assert tokenizer.decode(document.ids[: document.ends[0]]).replace("[UNK]", "?") == "river ?se?? sea."


def test_tokenized_documents_pass_through_in_their_place(tokenizer: Any) -> None:
    ready = Document(np.array([7, 8], dtype=np.uint16), np.array([2], dtype=np.uint32))
    made = list(DocumentTokenizer(tokenizer, "en").documents(["River. Sea.", ready, "One sentence"]))
    assert made[1] is ready
    assert [len(document.ends) for document in made] == [2, 1, 1]


def test_one_huge_text_is_tokenized_in_pieces_of_bounded_length_and_loses_no_word(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_MAX_PIECE", 1000)
    text = "River and sea. " * 700
    made = list(DocumentTokenizer(tokenizer, "en").documents([text, "Sea"]))
    assert len(made) > 10
    assert max(len(document.ids) for document in made) <= 1000
    words = " ".join(tokenizer.decode(document.ids) for document in made).replace(".", " ").split()
    assert words == ["river", "and", "sea"] * 700 + ["sea"]
    unbroken = list(DocumentTokenizer(tokenizer, "en").documents(["river" * 1000]))
    assert len(unbroken) == 5


@pytest.mark.parametrize("sentence", ["River and sea by the bank. ", "River and sea\n", "河と海。", "নদী ও সাগর। "])
def test_a_huge_text_is_cut_between_sentences(tokenizer: Any, sentence: str) -> None:
    length = 60_000 // len(sentence)
    made = list(DocumentTokenizer(tokenizer, "bn").documents([sentence * length]))
    assert len(made) == 2
    once = tokenizer.encode(sentence.strip(), add_special_tokens=False)
    assert all(document.ids.tolist() == once * (len(document.ids) // len(once)) for document in made)
    assert sum(len(document.ids) for document in made) == len(once) * length


def test_a_text_without_spaces_has_documents_of_a_bounded_length(tokenizer: Any) -> None:
    for language in ("th", None):
        made = list(DocumentTokenizer(tokenizer, language).documents(["การเดินทางของแม่น้ำ" * 20_000]))
        assert len(made) == 8
        assert max(len(document.ids) for document in made) <= MAX_TOKENS


def test_a_long_document_is_cut_at_the_ends_of_sentences() -> None:
    document = Document(np.arange(30, dtype=np.uint16), np.array([3, 9, 11, 12, 30], dtype=np.uint32))
    parts = list(cut(document, 10))
    assert np.array_equal(np.concatenate([part.ids for part in parts]), document.ids)
    assert [part.ends.tolist() for part in parts] == [[3, 9], [2, 3, 10], [10], [1]]
    assert all(part.ids.dtype == np.uint16 and part.ends[-1] == len(part.ids) for part in parts)
    assert list(cut(document, 30)) == [document]


def test_a_vocabulary_is_named_by_its_tokens_and_their_order(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path / "copy")
    assert vocabulary_hash(load_tokenizer(str(tmp_path / "copy"))) == vocabulary_hash(tokenizer)
    train_tokenizer(iter(["quite other words than those"] * 10), 60, tmp_path / "other")
    assert vocabulary_hash(load_tokenizer(str(tmp_path / "other"))) != vocabulary_hash(tokenizer)
