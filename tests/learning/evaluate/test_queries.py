from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer
from dedloc_kit.learning.evaluate.queries import (
    causal_queries,
    drawn,
    excerpts,
    masked_queries,
    negative_log_likelihood,
    words,
)
from tests.learning.evaluate.language import KINDS, OTHERS, PEOPLE, PLACES, write_causal, write_masked

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = [*PEOPLE, *PLACES, *KINDS, *OTHERS]
TEXTS = ["mirna sees harvost bay .", "osgar", "tolve walks near quellin hill with mirna today . often"]
PIECES = ["mir", "##na", "sees", "har", "##vo", "##st", "bay"]


def ignore(count: int) -> None:
    pass


def log_probabilities(model: Any, ids: list[int]) -> torch.Tensor:
    """In a row of its own, without any padding: [tokens, vocabulary]."""
    with torch.inference_mode():
        scores: torch.Tensor = model.eval()(input_ids=torch.tensor([ids])).logits[0]
        return scores.log_softmax(-1)


def test_the_sum_of_a_text_is_what_the_model_says_of_it_alone_whatever_stands_beside_it(tmp_path: Path) -> None:
    folder = write_causal(tmp_path / "causal", WORDS)
    tokenizer, model = load_tokenizer(str(folder)), AutoModelForCausalLM.from_pretrained(folder)
    sums = negative_log_likelihood(model, causal_queries(tokenizer, TEXTS, 64), len(TEXTS), 0, ignore)
    for text, found in zip(TEXTS, sums, strict=True):
        ids = [tokenizer.bos_token_id, *tokenizer(text)["input_ids"]]
        told = log_probabilities(model, ids)
        assert found == pytest.approx(-sum(told[place, ids[place + 1]].item() for place in range(len(ids) - 1)), 1e-5)


class Drifting(torch.nn.Module):
    """A model whose answers depend on where in a batch a row stands, as they do in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        rows = torch.arange(len(input_ids))[:, None, None]
        return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 64).index_fill(2, torch.tensor([7]), 1.0) * rows)


def test_equal_texts_have_the_same_sum_whatever_stands_beside_them(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(write_causal(tmp_path / "causal", WORDS)))
    done: list[int] = []
    texts = [*TEXTS, *TEXTS, "bay", "unheard", "hill", "unseen"]
    queries = list(causal_queries(tokenizer, texts, 64))
    sums = negative_log_likelihood(Drifting(), queries, len(texts), 0, done.append)
    assert sums[:3] == sums[3:6]
    assert sums[7] == sums[9], "to the tokenizer they are the same"
    assert len(set(sums)) > 4
    assert sum(done) == len(queries)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_is_near_float32(tmp_path: Path, half: torch.dtype) -> None:
    folder = write_causal(tmp_path / "causal", WORDS)
    tokenizer, model = load_tokenizer(str(folder)), AutoModelForCausalLM.from_pretrained(folder)
    whole, halved = (
        negative_log_likelihood(model, causal_queries(tokenizer, TEXTS, 64), len(TEXTS), 0, ignore, each)
        for each in (None, half)
    )
    assert halved == pytest.approx(whole, rel=0.02)
    assert halved != whole


def test_scores_that_float16_cannot_hold_are_those_of_float32(tmp_path: Path) -> None:
    folder = write_causal(tmp_path / "causal", WORDS)
    tokenizer, model = load_tokenizer(str(folder)), AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.lm_head.weight.mul_(1e6)
    whole, halved = (
        negative_log_likelihood(model, causal_queries(tokenizer, TEXTS, 64), len(TEXTS), 0, ignore, each)
        for each in (None, torch.float16)
    )
    assert halved == whole


def test_in_a_long_text_every_token_is_predicted_once_with_half_a_window_before_it(tmp_path: Path) -> None:
    folder = write_causal(tmp_path / "causal", WORDS)
    tokenizer, model = load_tokenizer(str(folder)), AutoModelForCausalLM.from_pretrained(folder)
    text = " ".join(TEXTS * 4)
    ids = [tokenizer.bos_token_id, *tokenizer(text)["input_ids"]]
    queries = list(causal_queries(tokenizer, [text], 16))
    assert [target for query in queries for target in query.targets] == ids[1:]
    assert all(len(query.input_ids) <= 16 for query in queries)
    assert all(query.start >= 7 for query in queries[1:])
    expected = 0.0
    for place in range(1, len(ids)):
        start = 0 if place < 16 else 8 * ((place - 16) // 8) + 8
        expected -= log_probabilities(model, ids[start:place])[-1, ids[place]].item()
    assert negative_log_likelihood(model, queries, 1, 0, ignore)[0] == pytest.approx(expected, 1e-5)


def test_the_pieces_of_a_hidden_word_are_predicted_while_those_after_them_are_hidden_too(tmp_path: Path) -> None:
    folder = write_masked(tmp_path / "masked", PIECES)
    tokenizer, model = load_tokenizer(str(folder)), AutoModelForMaskedLM.from_pretrained(folder)
    asked = [("mirna sees harvost bay", [2, 0]), ("bay sees", [0])]
    ids = tokenizer(asked[0][0])["input_ids"]
    mask = tokenizer.mask_token_id

    def hidden(source: list[int], *places: int) -> torch.Tensor:
        return log_probabilities(model, [mask if place in places else token for place, token in enumerate(source)])

    har, vo, st = 4, 5, 6
    expected = [
        -hidden(ids, har, vo, st)[har, ids[har]] - hidden(ids, vo, st)[vo, ids[vo]] - hidden(ids, st)[st, ids[st]],
        -hidden(ids, 1, 2)[1, ids[1]] - hidden(ids, 2)[2, ids[2]],
        -hidden(short := tokenizer("bay sees")["input_ids"], 1)[1, short[1]],
    ]
    found = negative_log_likelihood(model, masked_queries(tokenizer, asked, 64), 3, tokenizer.pad_token_id, ignore)
    assert found == pytest.approx([value.item() for value in expected], 1e-5)


def test_a_tokenizer_without_what_is_needed_and_a_text_that_is_too_long_name_the_fix(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(write_masked(tmp_path / "masked", PIECES)))
    with pytest.raises(UserError, match=r"has 9 tokens, .* takes 8; leave it out"):
        list(masked_queries(tokenizer, [("bay " * 7, [0])], 8))
    tokenizer.mask_token = tokenizer.sep_token = None
    with pytest.raises(UserError, match="no mask token"):
        list(masked_queries(tokenizer, [("bay", [0])], 8))
    (query,) = causal_queries(tokenizer, ["bay"], 8)
    assert query.input_ids[0] == tokenizer.cls_token_id, "the tokenizer itself begins a text so"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    with pytest.raises(UserError, match=r"neither a token that begins .* \(bos_token\)"):
        list(causal_queries(tokenizer, ["bay"], 8))


def test_words_are_the_same_for_all_vocabularies_and_fill_excerpts_of_so_many_bytes() -> None:
    text = "  মিরনা sees\nquellin " + "ก" * 20
    assert [text[slice(*span)] for span in words(text)] == ["মিরনা", "sees", "quellin", "ก" * 16, "ก" * 4]
    assert list(excerpts(text, 28)) == ["মিরনা sees\nquellin", "ก" * 16, "ก" * 4]
    assert list(excerpts(text, 27)) == ["মিরনা sees", "quellin", "ก" * 16, "ก" * 4]
    assert list(excerpts(" \n", 27)) == []


def test_the_drawn_words_are_spread_over_the_excerpts_and_the_same_each_time() -> None:
    counts = [3, 0, 50, 1]
    found = drawn(counts, 20)
    assert found == drawn(counts, 20)
    assert sum(map(len, found)) == 20
    assert all(0 <= number < count for count, numbers in zip(counts, found, strict=True) for number in numbers)
    assert all(len(set(numbers)) == len(numbers) for numbers in found)
    assert drawn(counts, 1000) == [list(range(count)) for count in counts]
