"""Tokenizers from whose tokens every text comes back as it was."""

import itertools
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from dedloc_kit.config.task import TaskConfig
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.text.tokens import DocumentTokenizer
from dedloc_kit.learning.data.tokenizers.lossless import BYTES, MAX_LETTERS
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL, MASKED, require
from dedloc_kit.learning.data.tokenizers.tokenizer import (
    Tokenization,
    load_tokenizer,
    tokenization_of,
    train_tokenizer,
    training_text,
)
from dedloc_kit.learning.task import task_class
from tests.learning.data.tokenizers.test_tokenizer import LANGUAGES, TEXTS

KINDS: list[tuple[Tokenization, str]] = [("bpe", "causal"), ("unigram-bytes", "causal"), ("bpe", "masked")]
SPECIAL = {"causal": CAUSAL, "masked": MASKED}
VOCABULARY = 600
SOME = [*TEXTS, *LANGUAGES * 3, "  def f(x):\n\n\treturn 12 * x  \r\n"]


@pytest.fixture(scope="module", params=KINDS, ids=" ".join)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    kind, special = request.param
    folder = tmp_path_factory.mktemp("made") / "tokenizer"
    assert VOCABULARY // 2 < train_tokenizer(iter(SOME), VOCABULARY, folder, kind, SPECIAL[special]) <= VOCABULARY
    return load_tokenizer(str(folder))


ODD = ["<0x41>", "<0x0", "▁", "Ġ", "##a", "\x00", "\x07", "\u200b", "\ufffd", "\ufeff", "\u0301", "𓀀", "\U0010ffff"]


@given(
    text=st.lists(
        st.sampled_from([*ODD, *" ".join(LANGUAGES).split(" ")])
        | st.text(st.sampled_from(" \t\n\r\u00a0\u3000\x85\x1c0١১½"), max_size=40)
        | st.text(max_size=6)
    ).map("".join)
)
@settings(max_examples=120, deadline=None, derandomize=True, database=None)
def test_every_text_comes_back_exactly_from_its_tokens(tokenizer: Any, text: str) -> None:
    assume(not any(token in text for token in tokenizer.all_special_tokens))  # hypothesis knows the kit's own constants
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    assert not {*ids} & {*tokenizer.all_special_ids}
    assert tokenizer.unk_token is None


def test_characters_from_all_of_unicode_come_back(tokenizer: Any) -> None:
    codes = [*range(0x3000), *range(0x3001, 0x110000, 37)]
    text = "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_digits_stand_alone_and_a_word_has_the_space_before_it(tokenizer: Any) -> None:
    ids = tokenizer("Es sind 1234 Café, und ১৯৯৫ kg", add_special_tokens=False)["input_ids"]
    spelled = [tokenizer.decode([each]) for each in ids]
    assert {"1", "2", "3", "4"} <= set(spelled)
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("the rivers'  sea\n\n 1x ভালোবাসি")
    spans = [("the rivers'  sea\n\n 1x ভালোবাসি")[a:b] for _, (a, b) in pieces]
    assert spans == ["the", " rivers", "'", " ", " sea", "\n\n", " ", "1", "x", " ভালোবাসি"]


def test_text_without_spaces_comes_back_and_has_no_endless_tokens(tokenizer: Any) -> None:
    generator = random.Random(0)
    for alphabet in ("กขคงจะาิ", "的一是不了人我在", "?!", " ", "\n", "é"):
        text = "".join(generator.choices(alphabet, k=20_000))
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text
        assert max(len(tokenizer.decode([each])) for each in {*ids}) <= MAX_LETTERS + 1


def test_training_on_one_long_line_gives_no_endless_tokens(tmp_path: Path) -> None:
    for kind, text in itertools.product(
        get_args(Tokenization)[1:], ("กขคงจะาิ" * 2000, "=" * 20_000, " " * 20_000 + "a")
    ):
        train_tokenizer(iter([text] * 3), 600, tmp_path / f"{kind} {len(list(tmp_path.iterdir()))}", kind, CAUSAL)
    made = [load_tokenizer(str(folder)) for folder in tmp_path.iterdir()]
    assert max(len(each.decode([number])) for each in made for number in range(2, len(each))) <= MAX_LETTERS + 1


def test_each_kind_of_task_has_the_special_tokens_that_it_needs(tokenizer: Any) -> None:
    causal = tokenizer.cls_token is None
    require(tokenizer, CAUSAL if causal else MASKED)
    with pytest.raises(UserError, match="the tokenizer has no mask_token" if causal else "has no bos_token"):
        require(tokenizer, ["mask_token"] if causal else CAUSAL)
    ids = tokenizer("the river", "the sea")["input_ids"]
    around = [tokenizer.decode([each]) for each in ids if each in tokenizer.all_special_ids]
    assert around == (["<|endoftext|>"] if causal else ["[CLS]", "[SEP]", "[SEP]"])
    assert tokenizer.pad_token_id not in (tokenizer.eos_token_id, tokenizer.sep_token_id)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama", "mistral", "gemma3_text", "modernbert"])
def test_beside_any_model_a_tokenizer_is_that_of_its_file(tmp_path: Path, architecture: str) -> None:
    train_tokenizer(iter(SOME), VOCABULARY, tmp_path / "t", "bpe", CAUSAL)
    alone = load_tokenizer(str(tmp_path / "t"))
    AutoConfig.for_model(architecture).save_pretrained(tmp_path / "t")
    beside = load_tokenizer(str(tmp_path / "t"))
    assert beside.backend_tokenizer.to_str() == alone.backend_tokenizer.to_str()
    assert beside.special_tokens_map == alone.special_tokens_map


@pytest.mark.child
def test_the_same_texts_give_the_same_files_in_every_process(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL
from dedloc_kit.learning.data.tokenizers.tokenizer import train_tokenizer
for kind in ("bpe", "unigram-bytes"):
    train_tokenizer(iter(sys.argv[2:]), 500, Path(sys.argv[1]) / kind, kind, CAUSAL)
"""
    texts = [*TEXTS, *LANGUAGES[:4] * 2]
    subprocess.run([sys.executable, "-c", code, tmp_path / "there", *texts], check=True)
    for kind in ("bpe", "unigram-bytes"):
        train_tokenizer(iter(texts), 500, tmp_path / "here" / kind, kind, CAUSAL)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            assert (tmp_path / "here" / kind / name).read_bytes() == (tmp_path / "there" / kind / name).read_bytes()


def test_a_rare_character_gets_no_token_and_is_spelled_by_its_bytes(tmp_path: Path) -> None:
    train_tokenizer(
        iter(["the river runs to the sea " * 20] * 40 + ["中"]), 400, tmp_path / "t", "unigram-bytes", CAUSAL
    )
    tokenizer = load_tokenizer(str(tmp_path / "t"))
    assert tokenizer.tokenize("中") == [BYTES[byte] for byte in "中".encode()]
    assert "中" not in tokenizer.get_vocab()


def test_training_text_of_the_exact_kinds_keeps_how_it_is_laid_out() -> None:
    text = "def f():\n\n\treturn  1\n" * 3
    assert "".join(training_text(iter([text]), 10_000, 0, "bpe")) == text.rstrip()
    assert "".join(training_text(iter([text]), 10_000, 0)) == " ".join(text.split())


def test_long_lines_without_spaces_give_a_bounded_sample_whatever_the_kind() -> None:
    long = "".join(random.Random(0).choices("กขคงจะาิ", k=500_000))
    for kind in get_args(Tokenization):
        read = list(training_text(iter([long] * 100), 500_000, 0, kind))
        assert sum(map(len, read)) <= 30_000
        assert max(map(len, read)) <= 10_000


def test_documents_keep_their_spaces(tmp_path: Path) -> None:
    train_tokenizer(iter(TEXTS), 400, tmp_path / "t", "bpe", MASKED)
    tokenizer = load_tokenizer(str(tmp_path / "t"))
    [document] = DocumentTokenizer(tokenizer, "en").documents(["The river  runs. To the sea."])
    assert tokenizer.decode(document.ids[: document.ends[0]]) == "The river  runs."


def test_vocabularies_and_kinds_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"task\.vocab_size must be more than 258"):
        train_tokenizer(iter(TEXTS), 200, tmp_path / "t", "unigram-bytes", CAUSAL)
    with pytest.raises(UserError, match='choose "bpe"'):
        train_tokenizer(iter(TEXTS), 400, tmp_path / "t", "unigram", CAUSAL)
    with pytest.raises(UserError, match="no text"):
        train_tokenizer(iter([]), 400, tmp_path / "t", "bpe", CAUSAL)
    with pytest.raises(UserError, match="no text"):
        train_tokenizer(iter([]), 400, tmp_path / "t", "unigram-bytes", CAUSAL)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match=r"task\.tokenization is 'word'; choose one of: unigram, bpe, unigram-bytes"):
        tokenization_of(TaskConfig.model_validate({"name": "causal", "tokenization": "word"}), "bpe")
    assert tokenization_of(TaskConfig(name="causal"), task_class("causal").tokenization) == "bpe"
    assert tokenization_of(TaskConfig(name="albert"), task_class("albert").tokenization) == "unigram"
