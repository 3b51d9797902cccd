"""A model whose layers are elsewhere answers as the whole one does."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from transformers import DynamicCache, GenerationConfig

from dedloc_kit.blocks.ends import GUESSED, DistantCache, Through, ends
from dedloc_kit.blocks.past import Past
from dedloc_kit.blocks.span import CachedSpan, Span
from dedloc_kit.errors import UserError
from tests.blocks import tiny

Tensors = torch.Tensor | None
TEXT = torch.tensor([[5, 9, 7, 5, 9, 7, 5, 9], [11, 4, 8, 3, 11, 4, 8, 3]])
PADDED = torch.tensor([[0, 0, 0, 7, 5, 9, 7, 5], [11, 4, 8, 3, 11, 4, 8, 3]])
Pair = tuple[Any, Any, "Near"]
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "temperature": 1.5, "top_k": 0},
    "several samples": {"do_sample": True, "num_return_sequences": 3},
    "beams": {"num_beams": 3},
    "prompt lookup": {"text": TEXT[:1], "prompt_lookup_num_tokens": 3},
    "padded": {"text": PADDED},
    "padded beams": {"text": PADDED, "num_beams": 3},
}


class Near:
    """Two spans in this process, and what they were asked to remember."""

    def __init__(self, whole: Any) -> None:
        self.spans = [Span.of(whole, 0, 1), Span.of(whole, 1, tiny.LAYERS)]
        self.pasts: list[Past | None] = []
        self.lengths: list[int] = []
        self.closed = 0

    def begin(self, length: int) -> Through:
        self.lengths.append(length)
        return Session(self)


class Session:
    def __init__(self, near: Near) -> None:
        self._near = near
        self._remembering = [CachedSpan(span) for span in near.spans]

    def __call__(
        self, hidden: torch.Tensor, attention_mask: Tensors, position_ids: Tensors, past: Past | None
    ) -> torch.Tensor:
        self._near.pasts.append(past)
        for span, remembering in zip(self._near.spans, self._remembering, strict=True):
            given = hidden, attention_mask, position_ids
            hidden = span.forward(*given) if past is None else remembering(*given, past)
        return hidden

    def close(self) -> None:
        self._near.closed += 1


def divided(whole: Any) -> tuple[Any, Near]:
    near, tensors = Near(whole), whole.state_dict()
    outside = Span(whole.config, 0, 1).layout.outside(tensors)
    return ends(whole.config, {name: tensors[name] for name in outside}, near.begin), near


def written(model: Any, text: torch.Tensor = TEXT, **how: Any) -> torch.Tensor:
    torch.manual_seed(3)
    how = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": 96, **how}
    out: torch.Tensor = model.generate(text, attention_mask=(text != 0).long(), **how)
    return out


@pytest.fixture(scope="module", params=["Llama", "Gemma3Text"])
def pair(request: pytest.FixtureRequest) -> Pair:
    whole = tiny.model(request.param)
    return whole, *divided(whole)


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_generate_writes_the_same(pair: Pair, way: str) -> None:
    whole, model, _ = pair
    local = written(whole, **WAYS[way])
    assert torch.equal(written(model, **WAYS[way]), local)
    assert local[:, 8:].unique().numel() > 3


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_continues_a_padded_batch_as_the_whole_model_does(family: str) -> None:
    whole = tiny.model(family)
    model, near = divided(whole)
    assert torch.equal(written(model, PADDED, max_new_tokens=7), written(whole, PADDED, max_new_tokens=7))
    assert [past and past.tokens for past in near.pasts] == [0, *range(8, 14)]


def test_several_calls_go_on_where_the_last_one_ended(pair: Pair) -> None:
    whole, model, near = pair
    past = DistantCache(near.begin(32))
    first = written(model, past_key_values=past)
    local = written(whole, max_new_tokens=20)
    near.pasts.clear()
    assert torch.equal(first, local[:, :20])
    assert torch.equal(written(model, first, max_new_tokens=8, past_key_values=past), local)
    assert near.pasts[0] == Past(19)


def test_within_a_session_only_what_is_new_travels(pair: Pair) -> None:
    whole, model, near = pair
    local = written(whole, max_new_tokens=20)
    with model.session(40):
        first = written(model)
        near.pasts.clear()
        assert torch.equal(written(model, first, max_new_tokens=8), local)
        assert near.pasts[0] == Past(19)
    assert near.lengths[-1] == 40
    near.pasts.clear()
    written(model, first, max_new_tokens=1)
    assert near.pasts[0] == Past(0)


def test_each_answer_says_how_long_it_may_be_and_ends_its_session(pair: Pair) -> None:
    _, model, near = pair
    for how, length in (({"max_new_tokens": 5}, 13), ({"max_new_tokens": None, "max_length": 10}, 10)):
        closed = near.closed
        written(model, **how)
        assert length <= near.lengths[-1] < length + 64
        assert near.closed == closed + 1


def test_sessions_of_several_threads_do_not_meet(pair: Pair) -> None:
    whole, model, _ = pair
    texts = [torch.tensor([[n, 9, n + 2, 7, n]]) for n in range(3, 9)]
    how = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": 96}
    with ThreadPoolExecutor(len(texts)) as threads:
        answers = list(threads.map(lambda text: model.generate(text, **how), texts))
    assert all(torch.equal(answer, whole.generate(text, **how)) for text, answer in zip(texts, answers, strict=True))


def test_without_a_past_gradients_go_through_the_layers(pair: Pair) -> None:
    whole, model, near = pair
    near.pasts.clear()
    gradients = []
    for each in (whole, model):
        given = each.get_input_embeddings()(PADDED).detach().requires_grad_()
        each(inputs_embeds=given, attention_mask=(PADDED != 0).long(), labels=TEXT, use_cache=False).loss.backward()
        gradients.append(given.grad)
    assert near.pasts == [None]
    assert torch.equal(*gradients)
    assert gradients[0].abs().sum() > 0


def test_a_past_that_the_layers_do_not_have_is_refused(pair: Pair) -> None:
    _, model, _ = pair
    with pytest.raises(ValueError, match="DistantCache alone"):
        model(TEXT, past_key_values=DynamicCache())


class Told:
    """Layers that change nothing."""

    def __init__(self) -> None:
        self.pasts: list[Past | None] = []

    def __call__(
        self, hidden: torch.Tensor, attention_mask: Tensors, position_ids: Tensors, past: Past | None
    ) -> torch.Tensor:
        self.pasts.append(past)
        return hidden

    def close(self) -> None:
        pass


def test_of_both_meanings_of_crop_it_is_told_what_stays() -> None:
    told = Told()
    for given in (-3, 0, 5, -20):
        past = DistantCache(told)
        past.step(torch.zeros(2, 8, 1), None, None)
        past.crop(given)
        past.step(torch.zeros(2, 1, 1), None, None)
    assert [each and each.tokens for each in told.pasts[1::2]] == [5, 8, 5, 0]


def test_of_rows_that_are_moved_twice_it_is_told_once_where_they_were() -> None:
    told = Told()
    past = DistantCache(told)
    past.reorder_cache(torch.tensor([1, 0]))  # of nothing
    past.step(torch.zeros(2, 8, 1), None, None)
    past.batch_repeat_interleave(2)
    past.batch_select_indices(torch.tensor([3, 0, 1]))
    past.step(torch.zeros(3, 1, 1), None, None)
    past.reorder_cache(torch.tensor([2, 2, 0]))
    past.step(torch.zeros(3, 1, 1), None, None)
    assert told.pasts == [Past(0), Past(8, (1, 0, 0)), Past(9, (2, 2, 0))]


def test_a_model_whose_final_norm_is_not_known_is_refused() -> None:
    whole = tiny.model("OPT", do_layer_norm_before=False)
    with pytest.raises(UserError, match="opt has no final norm"):
        divided(whole)


def test_a_text_that_outgrows_its_session_is_refused_with_the_length_that_is_needed() -> None:
    model, near = divided(tiny.model("Llama"))
    with model.session(max_length=9):
        first = written(model, TEXT[:1], max_new_tokens=2)
        near.pasts.clear()
        with pytest.raises(UserError, match=r"would have 10 tokens, and its session is for 9; .*max_length=10\)"):
            written(model, first, max_new_tokens=3)
        assert near.pasts == [], "nobody was asked"
    with pytest.raises(UserError, match="max_length=1 or more"), model.session(max_length=0):
        pass


@pytest.mark.parametrize("shape", [(1, 0), (0, 3), (4097, 1)], ids=["no tokens", "no rows", "too many rows"])
def test_what_no_server_takes_is_refused_before_it_is_sent(shape: tuple[int, int]) -> None:
    model, near = divided(tiny.model("Llama"))
    text = torch.ones(shape, dtype=torch.long)
    with pytest.raises(UserError, match="give "):
        model.generate(text, max_new_tokens=1)
    with pytest.raises(UserError, match="give "):
        model(text)
    assert near.pasts == []


def test_settings_in_the_second_place_say_how_long_a_text_becomes() -> None:
    model, near = divided(tiny.model("Llama"))
    model.generate(TEXT, GenerationConfig(max_new_tokens=3, pad_token_id=0))
    assert near.lengths == [8 + 3 + GUESSED]
    model.generate(None, GenerationConfig(max_new_tokens=3, pad_token_id=0, bos_token_id=1))
    assert near.lengths[1:] == [1 + 3 + GUESSED]


def test_a_token_that_the_model_does_not_have_is_named(pair: Pair) -> None:
    _, apart, near = pair
    begun = len(near.lengths)
    for odd in (97, -1):
        with pytest.raises(UserError, match=rf"the token {odd}, and the model has 97 tokens; use its own tokenizer$"):
            apart.generate(torch.tensor([[5, odd]]), max_new_tokens=1)
    assert len(near.lengths) == begun
