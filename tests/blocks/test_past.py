"""What stays of a past is checked against what there is of it."""

import pytest
import torch

from dedloc_kit.blocks.past import MAX_ROWS, Past
from dedloc_kit.blocks.span import CachedSpan, Span
from tests.blocks import tiny


@pytest.mark.parametrize(
    "numbers",
    [(-1,), (0, (0,)), (1, ()), (1, (-1,)), (1, (0,) * (MAX_ROWS + 1))],
    ids=lambda numbers: str(numbers)[:20],
)
def test_a_past_that_cannot_be_is_none(numbers: tuple[int, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="no past has"):
        Past(*numbers)


def step(span: CachedSpan, past: Past, rows: int = 2, tokens: int = 1) -> torch.Tensor:
    hidden = torch.randn(rows, tokens, 32, generator=torch.Generator().manual_seed(tokens))
    positions = torch.arange(past.tokens, past.tokens + tokens)[None]
    return span(hidden, None, positions, past)


@pytest.mark.parametrize(
    ("past", "rows", "line"),
    [
        (Past(9), 2, "a past of 8 tokens and 2 rows, not of 9"),
        (Past(8, (0, 2)), 2, "a past of 8 tokens and 2 rows, not of 8, "),
        (Past(8, (0, 1, 1)), 2, "2 rows follow a past of 3"),
        (Past(8), 3, "3 rows follow a past of 2"),
    ],
)
def test_a_step_that_follows_another_past_is_refused(past: Past, rows: int, line: str) -> None:
    span = CachedSpan(Span.of(tiny.model("Llama"), 0, 2))
    step(span, Past(0), tokens=8)
    with pytest.raises(ValueError, match=line):
        step(span, past, rows)


@pytest.mark.parametrize("family", ["Llama", "Mistral"])  # all of the past, and a window of 6 tokens
def test_tokens_are_taken_back_as_if_they_had_never_been(family: str) -> None:
    undone, plain = (CachedSpan(Span.of(tiny.model(family), 1, 3)) for _ in range(2))
    for span in (undone, plain):
        step(span, Past(0), tokens=9)
    step(undone, Past(9, undoable=True), tokens=4)
    assert torch.equal(step(undone, Past(9), tokens=2), step(plain, Past(9), tokens=2))


@pytest.mark.parametrize("undoable", [False, True])
def test_what_has_slid_out_of_a_window_does_not_come_back(undoable: bool) -> None:
    span = CachedSpan(Span.of(tiny.model("Mistral"), 0, 1))
    step(span, Past(0), tokens=9)
    step(span, Past(9, undoable=undoable), tokens=2)
    with pytest.raises(ValueError, match="have slid out of a window"):
        step(span, Past(8))
