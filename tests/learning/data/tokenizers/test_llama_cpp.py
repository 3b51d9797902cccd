"""llama.cpp makes the same tokens of every text."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unicodedata import ucd_3_2_0

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dedloc_kit.export.gguf import write_gguf
from dedloc_kit.learning.data.tokenizers import qwen35
from dedloc_kit.learning.data.tokenizers.known import llama_cpp_name
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL, END_OF_TEXT
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer
from tests.export.gguf.small import save_model
from tests.learning.data.tokenizers.test_known import QWEN2, QWEN35, split
from tests.learning.data.tokenizers.test_lossless import ODD
from tests.learning.data.tokenizers.test_qwen35 import PIECES
from tests.learning.data.tokenizers.test_tokenizer import LANGUAGES, TEXTS
from tests.llama_cpp import LlamaCpp, needs_llama_cpp

pytestmark = [pytest.mark.soak, needs_llama_cpp]

CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
ASSIGNED = [each for each in CHARACTERS if ord(each) < 0x33480 or 0xE0000 <= ord(each) < 0xE01F0]
"""All that has a meaning in Unicode, and more."""
NEIGHBOURS = "a{0}b {0}1'{0}a!{0}!\n{0} ব{0}া  {0}\u200d{0}{0}\n"
SPELLED = "".join(PIECES["ordinary text"]) + " <|endoftext|> <tool> <|padding|><|endoftext|>"


def of_pieces(pre_tokenizer: Any, ignore_merges: bool = False) -> Any:
    """A tokenizer whose tokens tell where its pieces end: it merges a character's end with the next one's begin."""
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    some = [*CHARACTERS[:0x800], *CHARACTERS[0x800::61]]
    written = [bytes_.pre_tokenize_str(each)[0][0] for each in some]
    ends, begins = sorted({each[-1] for each in written}), sorted({each[0] for each in written})
    merges = [(end, begin) for end in ends for begin in begins]
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=ignore_merges))
    backend.pre_tokenizer, backend.decoder = pre_tokenizer, decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END_OF_TEXT)


def in_llama_cpp(tokenizer: Any, folder: Path) -> LlamaCpp:
    """The tokenizer of transformers in a GGUF file."""
    tokenizer.save_pretrained(folder)
    save_model(folder, "llama", {"num_hidden_layers": 1}, len(tokenizer))
    write_gguf(folder, folder / "model.gguf", "f16")
    return LlamaCpp(folder / "model.gguf", vocabulary_only=True)


def ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Without special tokens, whatever the texts spell."""
    backend = tokenizer.backend_tokenizer
    backend.encode_special_tokens = True
    return [each.ids for each in backend.encode_batch_fast(texts, add_special_tokens=False)]


def chunks(characters: list[str], size: int = 2000) -> Iterator[list[str]]:
    for start in range(0, len(characters), size):
        yield characters[start : start + size]


def assert_equal(found: list[list[int]], expected: list[list[int]], texts: list[str]) -> None:
    unlike = [ascii(text[:80]) for text, a, b in zip(texts, found, expected, strict=True) if a != b]
    assert not unlike, f"{len(unlike)} of {len(texts)} texts, such as {unlike[:5]}"


@pytest.mark.timeout(600)
def test_every_character_is_split_from_its_neighbours_as_llama_cpp_does(tmp_path: Path) -> None:
    texts = ["".join(some) for some in chunks(CHARACTERS)]
    texts += ["".join(map(NEIGHBOURS.format, some)) for some in chunks(ASSIGNED)]
    tokenizer = of_pieces(qwen35.byte_level())
    assert_equal(in_llama_cpp(tokenizer, tmp_path).tokenize(texts), ids(tokenizer, texts), texts)


def mixed(count: int) -> list[str]:
    generator = random.Random(0)
    rare = [*generator.sample(CHARACTERS, 3000), *(chr(code) for code in range(0x10D40, 0x10D90))]
    common = [*" \n\r\t\u00a0\u3000asStTéব\u09beก1১'!\u017f", "\u200d", "\u200c", "👍", "🏽", *ODD]
    words = [word for text in [*LANGUAGES, *TEXTS[:2]] for word in text.split(" ")]
    return [
        "".join(generator.choice(generator.choice((rare, common, words))) for _ in range(generator.randint(1, 40)))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer such as `dedloc prepare tokenizer` makes, whose tokens go across all borders that a text may have."""
    folder = tmp_path_factory.mktemp("made") / "tokenizer"
    train_tokenizer(iter([*TEXTS, *LANGUAGES * 3, *mixed(3000)]), 6000, folder, "bpe", CAUSAL)
    tokenizer = load_tokenizer(str(folder))
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def test_texts_of_many_languages_have_the_same_tokens_and_come_back(made: Any, tmp_path: Path) -> None:
    texts = [*LANGUAGES, *TEXTS[:2], *("".join(pieces) for pieces in PIECES.values()), *ODD, SPELLED, *mixed(4000)]
    texts += [
        text.strip() + " " * spaces + end for text in texts[:30] for spaces in range(4) for end in ("", "\n", ".")
    ]
    llama_cpp, expected = in_llama_cpp(made, tmp_path), ids(made, texts)
    found, back = llama_cpp.ask(
        {"kind": "tokenize", "texts": texts}, {"kind": "detokenize", "tokens": expected, "special": True}
    )
    assert_equal(found, expected, texts)
    assert back == texts


def test_special_tokens_are_found_where_they_are_meant(made: Any, tmp_path: Path) -> None:
    llama_cpp = in_llama_cpp(made, tmp_path)
    meant = made(SPELLED, add_special_tokens=False, split_special_tokens=False)["input_ids"]
    typed = made(SPELLED, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert llama_cpp.tokenize([SPELLED], special=True) == [meant]
    assert llama_cpp.tokenize([SPELLED]) == [typed]
    assert {*made.all_special_ids} <= {*meant}
    assert not {*made.all_special_ids} & {*typed}


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
PUBLISHED: dict[str, tuple[Any, bool]] = {
    "gpt-2": (GPT2, False),
    "smollm": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]), False),
    "qwen2": (split(QWEN2), False),
    "qwen35": (split(QWEN35), False),
    "llama-bpe": (split(QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")), True),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_splittings_are_those_of_llama_cpp_for_characters_that_both_know(name: str, tmp_path: Path) -> None:
    tokenizer = of_pieces(*PUBLISHED[name])
    assert llama_cpp_name(json.loads(tokenizer.backend_tokenizer.to_str())) == name
    known = [each for each in CHARACTERS[:0x3400] if ucd_3_2_0.category(each) != "Cn" and each != "\u017f"]
    texts = [*LANGUAGES, *("".join(pieces) for pieces in list(PIECES.values())[:6])]
    texts += ["".join(map(NEIGHBOURS.format, some)) for some in chunks(known)]
    assert_equal(in_llama_cpp(tokenizer, tmp_path).tokenize(texts), ids(tokenizer, texts), texts)
