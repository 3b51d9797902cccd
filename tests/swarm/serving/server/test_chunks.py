"""What is computed in chunks is what one call gives, and attention's memory is bounded."""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from dedloc_kit.blocks.adapters import adapted
from dedloc_kit.blocks.span import CachedSpan, Span
from dedloc_kit.swarm.serving.protocol import Backward, Pass, Refusal, call
from dedloc_kit.swarm.serving.server import chunks
from dedloc_kit.swarm.serving.server.computing import Computing, Priority
from tests.blocks import tiny
from tests.blocks.adapters.test_adapted import everything

BEGIN, END, TOKENS = 1, 4, 9
HIDDEN, GRADIENT = torch.randn(2, 3, TOKENS, 32, generator=torch.Generator().manual_seed(0))
MASK = torch.ones(3, TOKENS, dtype=torch.long)
MASK[1, :2] = 0
FIELDS: dict[str, Any] = call(HIDDEN, MASK, (MASK.cumsum(1) - 1).clamp(min=0))
GIVEN = HIDDEN, MASK, Pass(**FIELDS).position_ids()


class Counted(Computing):
    calls = 0

    async def run(self, priority: int, function: Any) -> Any:
        self.calls += 1
        return await super().run(priority, function)


@pytest.fixture(params=[4, 9, 18, 1000])
def computing(request: pytest.FixtureRequest) -> Iterator[Counted]:
    computing = Counted(chunk=request.param)
    try:
        yield computing
    finally:
        computing.close()


def near(found: torch.Tensor, right: torch.Tensor) -> None:
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Bloom", "GptOss"])
def test_a_call_in_chunks_gives_what_it_gives_at_once_both_ways(computing: Counted, family: str) -> None:
    model = tiny.model(family)
    span, adapter = Span.of(model, BEGIN, END), everything(model).part(BEGIN, END)

    through = partial(adapted.forward, span, adapter=adapter)

    async def both() -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        past, asked = CachedSpan(span, through), Pass(**FIELDS)
        output = await chunks.forward(computing, Priority.TRAINING, past, span, asked, HIDDEN, "float32")
        back = Backward(**FIELDS)
        return output, *await chunks.backward(computing, span, adapter, back, HIDDEN, GRADIENT, "float32")

    output, back, of_adapter = asyncio.run(both())
    right, theirs = adapted.backward(span, *GIVEN, adapter, GRADIENT)
    near(output[MASK > 0], through(*GIVEN, cache=None)[MASK > 0])
    near(back, right)
    assert of_adapter.keys() == theirs.keys()
    for name, values in theirs.items():
        near(of_adapter[name], values)
    assert (computing.calls == 2) == (computing.chunk == 1000)


@pytest.mark.parametrize(("kind", "tokens"), [(Pass, 2**20), (Backward, 2**15)])
def test_a_call_whose_attention_takes_too_much_memory_is_refused(kind: type[Pass | Backward], tokens: int) -> None:
    span, backward = Span.of(tiny.model("Llama"), 0, 1), kind is Backward
    rows = 1 if backward else 2**12
    with pytest.raises(Refusal, match="too much memory"):
        chunks.check(kind(rows=rows, tokens=tokens), span, backward=backward)
    chunks.check(kind(rows=1, tokens=2**13), span, backward=backward)
