"""Text that comes token by token is the text of all of them."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dedloc_kit.api.text import Detokenizer, Stops
from tests.api.serving import BENGALI, tokenizer

TEXTS = [BENGALI, "river sea", "a 👩‍👩‍👧 b", " two  spaces\n", "\ufffd stands there", "é" * 5]


def words() -> PreTrainedTokenizerFast:
    """Its words begin with a space, and it makes up unknown letters of bytes, as Llama's."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made)


def pieces(tokenizer: PreTrainedTokenizerFast, prompt: list[int], tokens: list[int]) -> list[str]:
    text = Detokenizer(tokenizer, prompt)
    return [*(text.add(token) for token in tokens), text.end()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("make", [tokenizer, words])
def test_pieces_are_whole_characters_and_make_up_the_text(make: type, text: str) -> None:
    made = make()
    prompt = made("river")["input_ids"]
    tokens = made(text, add_special_tokens=False)["input_ids"]
    if make is words:  # a text of its own begins with a space, which is no part of it
        text = made.decode(prompt + tokens).removeprefix("river")
    told = pieces(made, prompt, tokens)
    assert "".join(told) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in told)


@pytest.mark.parametrize("seed", range(10))
def test_any_tokens_make_up_the_text_that_they_have_together(seed: int) -> None:
    made = tokenizer()
    prompt = made("river")["input_ids"]
    tokens = torch.randint(1, len(made), (40,), generator=torch.Generator().manual_seed(seed)).tolist()
    whole = made.decode(prompt + tokens, skip_special_tokens=True)
    assert "".join(pieces(made, prompt, tokens)) == whole.removeprefix("river")


def test_a_word_after_the_prompt_keeps_its_space() -> None:
    made = words()
    sea = made("river sea")["input_ids"][len(made("river")["input_ids"]) :]
    assert "".join(pieces(made, made("river")["input_ids"], sea)) == " sea"


@pytest.mark.parametrize(
    ("texts", "told", "before"),
    [
        (["bank"], ["the ba", "nk of"], "the "),
        (["bank"], ["the ba", "y"], "the bay"),
        (["abab", "x"], ["a", "b", "a", "b"], ""),
        (["aab"], ["a", "a", "a", "b"], "a"),
        (["long end", "end"], ["a long", " end"], "a "),
        (["\n\n"], ["a\n", "b\n", "\n"], "a\nb"),
        ([], ["a", "b"], "ab"),
        (["bank"], ["the ban"], "the ban"),
    ],
)
def test_text_ends_before_what_ends_it_however_it_is_cut(texts: list[str], told: list[str], before: str) -> None:
    stops, certain = Stops(texts), ""
    for piece in told:
        certain += stops.add(piece)
        assert before.startswith(certain)
    assert certain + stops.end() == before
