"""A text that spells a control token, such as `[MASK]`, is ordinary text wherever texts become tokens."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from dedloc_kit.learning.data.text.plain import PlainTokenizer
from dedloc_kit.learning.data.text.tokens import DocumentTokenizer
from dedloc_kit.learning.data.tokenizers.bare import BareTokenizer
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL, MASKED
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer
from dedloc_kit.learning.evaluate.dataset import Example
from dedloc_kit.learning.evaluate.problems import Classification, Ner
from dedloc_kit.learning.evaluate.queries import causal_queries, masked_queries
from dedloc_kit.learning.models.picture_model.captioned import CaptionedFile
from dedloc_kit.learning.models.picture_model.encoding import Encoder
from dedloc_kit.organizer.fertility import fertility
from tests.learning.data.texts import BENGALI

SEEN = [*BENGALI, "Rivers [MASK] and seas <|endoftext|> [SEP] <s> </s> <mask>. A bank! <|padding|> [CLS] [PAD] [UNK]"]
TOOL = "<tool>"


def made(folder: Path, kind: Any, special: dict[str, str]) -> Any:
    train_tokenizer(iter(SEEN * 3), 600, folder, kind, special)
    tokenizer = load_tokenizer(str(folder))
    tokenizer.add_tokens([AddedToken(TOOL, normalized=False)])
    return tokenizer


def holding(core: Tokenizer, **special: Any) -> Any:
    """A tokenizer whose model has the special tokens as words of its own."""
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(token, core.token_to_id(token)) for token in ("<s>", "</s>")]
    )
    named = {"cls_token": "<s>", "sep_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>", "mask_token": "<mask>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, **{**named, **special})
    tokenizer.add_tokens([AddedToken(TOOL, normalized=False)])
    return tokenizer


PIECES = ["<s>", "</s>", "<unk>", "<mask>"]


def like_xlm_roberta() -> Any:
    letters = sorted({letter for text in SEEN for letter in text.replace(" ", "▁")})
    scores = [
        *((piece, 0.0) for piece in PIECES),
        *((letter, -3.0 - number / 9) for number, letter in enumerate(letters)),
    ]
    core = Tokenizer(models.Unigram(scores, unk_id=2))
    core.normalizer, core.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    return holding(core, mask_token=AddedToken("<mask>", lstrip=True))


def like_llama() -> Any:
    """With merges that make a special token, and a normalizer that puts a space before every text."""
    letters = sorted({letter for text in SEEN for letter in text.replace(" ", "▁")})
    words = [*PIECES, *letters, "<s", "▁A"]
    merges = [("<", "s"), ("<s", ">"), ("▁", "A")]
    core = Tokenizer(models.BPE({word: at for at, word in enumerate(words)}, merges, unk_token="<unk>"))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return holding(core)


def of_words() -> Any:
    words = [*PIECES, *sorted({word for text in SEEN for word in text.split()} - {*PIECES})]
    core = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return holding(core)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("made")
    return {
        "unigram": made(folder / "unigram", "unigram", MASKED),
        "bytes": made(folder / "bytes", "unigram-bytes", CAUSAL),
        "bpe": made(folder / "bpe", "bpe", CAUSAL),
        "masked": made(folder / "masked", "bpe", MASKED),
        "xlm": like_xlm_roberta(),
        "llama": like_llama(),
        "words": of_words(),
    }


ALL = ("unigram", "bytes", "bpe", "masked", "xlm", "llama", "words")


def control(tokenizer: Any) -> set[int]:
    """All that is no text, but for what stands for unknown text."""
    return {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}


@pytest.mark.parametrize("name", ALL)
def test_texts_that_spell_no_control_token_have_the_same_tokens_as_ever(tokenizers: dict[str, Any], name: str) -> None:
    tokenizer = tokenizers[name]
    plain, documents = PlainTokenizer(tokenizer), DocumentTokenizer(tokenizer, None)
    texts = [*BENGALI, f"A {TOOL} bank", "  two\n\nlines ", ""]
    usual = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert [plain.ids(text) for text in texts] == usual
    assert [plain.ids(text, edges=True) for text in texts] == tokenizer(texts)["input_ids"]
    assert [document.ids.tolist() for document in documents.documents(texts)] == usual
    assert tokenizer.convert_tokens_to_ids(TOOL) in plain.ids(f"A {TOOL} bank"), "a word that was added stays one"


@pytest.mark.parametrize("name", ALL)
def test_the_secret_spelling_of_a_control_token_is_that_token(tokenizers: dict[str, Any], name: str) -> None:
    tokenizer = tokenizers[name]
    plain = PlainTokenizer(tokenizer)
    assert plain.secret.keys() == {*tokenizer.all_special_tokens}
    for token, secret in plain.secret.items():
        assert plain.ids(f"A {secret} bank") == tokenizer(f"A {token} bank", add_special_tokens=False)["input_ids"]


@given(data=st.data())
@settings(max_examples=80, deadline=None, derandomize=True, database=None)
def test_a_text_comes_back_from_its_tokens_whatever_control_tokens_it_spells(
    tokenizers: dict[str, Any], data: st.DataObject
) -> None:
    tokenizer = tokenizers[data.draw(st.sampled_from(("bpe", "bytes", "masked")))]
    halves = [half for token in tokenizer.all_special_tokens for half in (token[:2], token[2:])]
    spelled = st.sampled_from([*tokenizer.all_special_tokens, *halves, " ", "A", TOOL[1:]])
    text = data.draw(st.lists(spelled | st.text(max_size=3)).map("".join))
    ids = PlainTokenizer(tokenizer).ids(text)
    assert not {*ids} & {*tokenizer.all_special_ids}
    if TOOL not in text:
        assert tokenizer.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True) == text


def test_no_normalization_makes_a_control_token_of_a_text(tokenizers: dict[str, Any]) -> None:
    assert not {*PlainTokenizer(tokenizers["xlm"]).ids("A ＜mask＞ bank")} & control(tokenizers["xlm"])


def by_documents(language: str | None) -> Callable[[Any, str, Path], list[int]]:
    def read(tokenizer: Any, text: str, folder: Path) -> list[int]:
        [document] = DocumentTokenizer(tokenizer, language).documents([text])
        return cast(list[int], document.ids.tolist())

    return read


def by_bare_tokenizer(tokenizer: Any, text: str, folder: Path) -> list[int]:
    tokenizer.save_pretrained(folder)
    return BareTokenizer(str(folder)).ids(text)


def by_likelihood(tokenizer: Any, text: str, folder: Path) -> list[int]:
    (query,) = causal_queries(tokenizer, [text], 512)
    return list(query.targets)


def by_pseudo_likelihood(tokenizer: Any, text: str, folder: Path) -> list[int]:
    return [token for query in masked_queries(tokenizer, [(text, range(3))], 512) for token in query.targets]


def by_classification(tokenizer: Any, text: str, folder: Path) -> list[int]:
    return Classification(tokenizer, 512, []).encode(Example(text, "news")).input_ids[1:-1]


def by_recognition(tokenizer: Any, text: str, folder: Path) -> list[int]:
    return Ner(tokenizer, 512, []).encode(Example(text.split(), ["O"] * 3)).input_ids[1:-1]


class Blank:
    """Every picture has the same code."""

    def encode(self, pictures: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(pictures), 1, 1, dtype=torch.int64)


def by_caption(tokenizer: Any, text: str, folder: Path) -> list[int]:
    pixels = np.zeros((3, 4, 4), np.uint8)
    (sample,) = Encoder(cast(Any, Blank()), tokenizer, 512, Counter()).samples(
        iter([(pixels, CaptionedFile(1, b"", None, text))])
    )
    return cast(list[int], sample.caption.tolist())


PLACES = {
    "ALBERT": by_documents("en"),
    "training": by_documents(None),
    "captions of a run": by_bare_tokenizer,
    "likelihood": by_likelihood,
    "pseudo-likelihood": by_pseudo_likelihood,
    "classification": by_classification,
    "recognition": by_recognition,
    "captions of pictures": by_caption,
}


@pytest.mark.parametrize("name", ["masked", "xlm"])
@pytest.mark.parametrize("place", PLACES)
def test_what_data_spells_is_text(tokenizers: dict[str, Any], place: str, name: str, tmp_path: Path) -> None:
    tokenizer = tokenizers[name]
    text = f"A {tokenizer.mask_token}{tokenizer.sep_token} bank"
    ids = PLACES[place](tokenizer, text, tmp_path)
    assert len(ids) > 5
    assert not {*ids} & control(tokenizer)


def test_the_fertility_of_what_data_spells_is_that_of_text(tokenizers: dict[str, Any]) -> None:
    assert fertility(tokenizers["bpe"], ["<|padding|>" * 10]).tokens >= 20
