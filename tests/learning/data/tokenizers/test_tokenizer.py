import itertools
import random
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.text.plain import PlainTokenizer
from dedloc_kit.learning.data.tokenizers.special_tokens import MASK, SEP
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer, training_text
from tests.loopback_hub import loopback_hub

TEXTS = [
    "আমার সোনার বাংলা, আমি তোমায় ভালোবাসি। চিরদিন তোমার আকাশ, তোমার বাতাস, আমার প্রাণে বাজায় বাঁশি।",
    "The river runs to the sea, 12 miles from here. Café owners know it well.",
] * 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "tokenizer"
    assert 60 < train_tokenizer(iter(TEXTS), 200, folder) <= 200
    return folder


@pytest.mark.parametrize(
    "text", ["আমি তোমায় ভালোবাসি। চিরদিন তোমার আকাশ, তোমার বাতাস।", "the river runs to the café, 21 miles."]
)
def test_text_comes_back_from_its_tokens(folder: Path, text: str) -> None:
    tokenizer = load_tokenizer(str(folder))
    # য় has a composed and a decomposed form; NFKC picks one of them.
    expected = tokenizer.backend_tokenizer.normalizer.normalize_str(text)
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == expected


LANGUAGES = [
    "আমার সোনার বাংলা, আমি তোমায় ভালোবাসি। র\u200d্যাব ক্\u200dষ এতদ্\u200cদ্বারা ১২৩৪৫৬৭৮৯০",
    "Ще не вмерла України і слава, і воля. М'яч, об’єкт, пʼять, ґанок, їжак.",
    "بسم الله الرحمن الرحيم، قُلْ هُوَ ٱللَّهُ أَحَدٌ؟ می\u200cخواهم لآلئ ٣٤٥",
    "สวัสดีชาวโลก นี่คือน้ำใจของผู้คน กตัญญู ๑๒๓ ฯลฯ",
    "👍🏽 👩\u200d👩\u200d👧\u200d👦 🇺🇦 ❤\ufe0f 1\ufe0f\u20e3 🏴\U000e0067\U000e0062\U000e007f",
    'Zoë über naïve façade, Ångström; ½ ﬁ № Ⅻ ㎏ ＡＢＣ İı ẞ «quoted» (a-b) "c" d_e f/g 100% <0x41> @# a\u00a0b\u3000c',
    "e\u0301 v\u0323\u0302o\u0308\u0304 q\u0303 \u0915\u093c \u1100\u1161\u11a8 \u05d0\u05b7\u05bc \u064a\u0654",
]
ALPHABET = sorted({*"".join(LANGUAGES), *"\t\n\r\x00\x07\x85\u200b\u200e\ufeff\ufffd▁[]"})


@pytest.fixture(scope="module")
def many_languages(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer that knows every language above, and every letter of theirs with every mark of theirs."""
    folder = tmp_path_factory.mktemp("made") / "tokenizer"
    marks = [mark for mark in ALPHABET if unicodedata.category(mark)[0] == "M"]
    pairs = [" ".join(letter + mark for letter in ALPHABET) for mark in marks]
    train_tokenizer(iter([*LANGUAGES * 5, " ".join(ALPHABET), *pairs]), 1500, folder)
    return load_tokenizer(str(folder))


@given(
    text=st.lists(
        st.sampled_from(" ".join(LANGUAGES).split(" "))
        | st.text(ALPHABET, max_size=8)
        | st.sampled_from([" ", MASK, SEP])
        | st.text(max_size=2)
    ).map("".join)
)
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
def test_every_text_of_known_characters_comes_back_normalized_from_its_tokens(many_languages: Any, text: str) -> None:
    backend = many_languages.backend_tokenizer
    expected = backend.normalizer.normalize_str(text)
    assume(set(expected) - {" "} <= many_languages.get_vocab().keys())
    assert many_languages.decode(PlainTokenizer(many_languages).ids(text)) == expected.removeprefix(" ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\u1e9eTRA\u1e9eE  \tİ", "ßtraße i\u0307"),  # accents stay, also where lower case has one more
        ("ক্\u200dষ 👩\u200d👧 a\u200bb\ufeffc\ufffdd▁e", "ক্ ষ 👩 👧 a b c d e"),  # NMT takes joiners for spaces
        ("a\x01b\x07c\x7f d\u0085e", "abc d e"),
        ("½ ﬁ Ⅻ ＡＢＣ e\u0301 \u064a\u0654", "1⁄2 fi xii abc é ئ"),
        (" , a - b . ' c ' 1 000 n't  ", ", a - b . ' c ' 1 000 n't "),  # no clean-up of spaces
        ("<0x41> ##a", "<0x41> ##a"),
    ],
)
def test_what_normalization_changes(many_languages: Any, text: str, expected: str) -> None:
    assert many_languages.decode(many_languages(text, add_special_tokens=False)["input_ids"]) == expected


def test_a_character_that_training_did_not_see_is_unknown(many_languages: Any) -> None:
    ids = many_languages("слава 𓀀 воля", add_special_tokens=False)["input_ids"]
    assert many_languages.decode(ids) == "слава [UNK] воля"


@pytest.mark.child
def test_the_same_texts_give_the_same_files_in_every_process(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; "
        "from dedloc_kit.learning.data.tokenizers.tokenizer import train_tokenizer; "
        "train_tokenizer(iter(sys.argv[2:]), 200, Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "again", *TEXTS], check=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def repeated(*documents: str) -> Iterator[str]:
    return itertools.cycle(documents)


def new_words(documents: int) -> Iterator[str]:
    for number in range(documents):
        yield " ".join(f"{number}w{word}" for word in range(100))


def test_training_text_ends_at_its_limit() -> None:
    common = " ".join(["the river runs to the sea"] * 10)
    texts = (f"{common} {number}" for number in itertools.count())
    assert 100_000 <= sum(map(len, training_text(texts, 100_000, seed=0))) < 101_000


def test_training_text_ends_early_where_every_word_is_new() -> None:
    read = list(training_text(new_words(1000), 1_000_000, seed=0))
    assert 40_000 <= sum(len(word) for piece in read for word in piece.split()) < 41_000


def test_training_text_ends_once_a_small_corpus_repeats() -> None:
    assert list(training_text(repeated("one two", "three"), 10_000, seed=0)) == ["one two", "three"] * 2


def test_a_long_document_gives_an_excerpt_and_a_long_word_is_cut() -> None:
    generator = random.Random(0)
    long = "".join(generator.choices("กขคงจ", k=500_000))
    pieces = list(training_text(repeated(long, "สั้น"), 1_000_000, seed=0))
    excerpts = ["".join(piece.split()) for piece in pieces if piece != "สั้น"]
    assert {len(excerpt) for excerpt in excerpts} == {10_000}
    assert all(excerpt in long for excerpt in excerpts)
    assert len(set(excerpts)) == len(excerpts) == 4  # a 25th of the limit: every one has new words only
    assert max(len(word) for piece in pieces for word in piece.split()) == 1000
    assert pieces == list(training_text(repeated(long, "สั้น"), 1_000_000, seed=0))


def test_case_is_folded_accents_stay_digits_and_punctuation_stand_alone(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    tokens = [token.strip("▁") for token in tokenizer.tokenize("CAFÉ 12, here.")]
    assert "".join(tokens) == "café12,here."
    assert {"1", "2", ",", "."} <= set(tokens)


def test_a_pair_has_the_form_of_albert(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    encoded = tokenizer("the river", "the sea")
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    middle = tokens.index("[SEP]")
    assert tokens[0] == "[CLS]"
    assert tokens[-1] == "[SEP]"
    assert encoded["token_type_ids"] == [0] * (middle + 1) + [1] * (len(tokens) - middle - 1)
    assert tokenizer.pad_token_id == 0
    assert tokenizer.mask_token == "[MASK]"


def test_an_existing_tokenizer_is_not_overwritten_and_nothing_is_left_behind(folder: Path) -> None:
    with pytest.raises(UserError, match="exists already"):
        train_tokenizer(iter(TEXTS), 150, folder)
    assert [path.name for path in folder.parent.iterdir()] == ["tokenizer"]


def test_a_missing_tokenizer_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not exist; make one with: dedloc prepare tokenizer RUN\.toml"):
        load_tokenizer(str(tmp_path / "none"))
    with pytest.raises(UserError, match="cannot be loaded"):
        load_tokenizer(str(tmp_path))
    with pytest.raises(UserError, match="does not exist"):
        load_tokenizer("./none")


def test_a_tokenizer_on_the_hub_may_be_pinned_to_a_revision(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with loopback_hub(monkeypatch, tmp_path / "cache") as hub:
        hub.commits["us/words"] = [first, {"README.md": b"all is gone"}]
        assert len(load_tokenizer(f"us/words@{hub.revision('us/words', 0)}")) == len(load_tokenizer(str(folder)))
        with pytest.raises(UserError, match="the tokenizer us/words does not exist"):
            load_tokenizer("us/words")


def test_more_characters_than_tokens_are_refused(tmp_path: Path) -> None:
    texts = ["".join(chr(0x4E00 + i) for i in range(500))]
    with pytest.raises(UserError, match="vocab_size"):
        train_tokenizer(iter(texts), 50, tmp_path / "tokenizer")
    with pytest.raises(UserError, match="no text"):
        train_tokenizer(iter([]), 50, tmp_path / "tokenizer")
    assert not list(tmp_path.iterdir())
