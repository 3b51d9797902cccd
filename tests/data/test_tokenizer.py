from pathlib import Path

import pytest

from dedloc_kit.data.tokenizer import load_tokenizer, train_tokenizer
from dedloc_kit.errors import UserError

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
    with pytest.raises(UserError, match=r"does not exist; make one with: dedloc tokenizer RUN\.toml"):
        load_tokenizer(str(tmp_path / "none"))
    with pytest.raises(UserError, match="cannot be loaded"):
        load_tokenizer(str(tmp_path))


def test_more_characters_than_tokens_are_refused(tmp_path: Path) -> None:
    texts = ["".join(chr(0x4E00 + i) for i in range(500))]
    with pytest.raises(UserError, match="vocabulary"):
        train_tokenizer(iter(texts), 50, tmp_path / "tokenizer")
    with pytest.raises(UserError, match="no text"):
        train_tokenizer(iter([]), 50, tmp_path / "tokenizer")
    assert not list(tmp_path.iterdir())
