"""Whether single tokens of several sessions are worth one call: rows computed together and one after the other.

`python -m benchmarks.lib.serving_rows` prints a table, of random weights and one core.
"""

import statistics
import time
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor
from transformers import LlamaConfig

from dedloc_kit.blocks.past import Past
from dedloc_kit.blocks.span import CachedSpan, Span
from dedloc_kit.blocks.weights.quantized import quantize

WIDTHS = {
    "576 wide, 15 layers": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 15,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "2048 wide, 4 layers": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 4,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
    },
}
PAST, ROWS, ROUNDS = 64, (1, 2, 4, 8), 7


Form = Literal["float32", "int8"]


def _span(width: str, form: Form) -> Span:
    config = LlamaConfig(vocab_size=16, **WIDTHS[width])
    span = Span(config, 0, config.num_hidden_layers)
    tensors = {name: torch.randn(values.shape) * 0.02 for name, values in span.state_dict().items()}
    span.load_state_dict(tensors, assign=True)
    span.requires_grad_(False)
    if form == "int8":
        quantize(span, form)
    return span


def _sessions(span: Span, count: int, rows: int) -> list[Callable[[], Tensor]]:
    """What computes the next token of so many sessions, each with so many rows."""
    size = span.config.hidden_size

    def session() -> Callable[[], Tensor]:
        cached = CachedSpan(span)
        cached(torch.randn(rows, PAST, size), None, torch.arange(PAST).expand(rows, -1), Past(0))
        place = torch.full((rows, 1), PAST)
        return lambda: cached(torch.randn(rows, 1, size), None, place, Past(PAST))

    return [session() for _ in range(count)]


def main() -> None:
    torch.set_num_threads(1)
    for width in WIDTHS:
        for form in get_args(Form):
            span = _span(width, form)
            for rows in ROWS:
                alone, together = _sessions(span, rows, 1), _sessions(span, 1, rows)
                took: tuple[list[float], list[float]] = ([], [])
                for _ in range(ROUNDS):  # in turn, for other work on the machine comes and goes
                    for calls, seconds in zip((alone, together), took, strict=True):
                        began = time.process_time()
                        for call in calls:
                            call()
                        seconds.append(time.process_time() - began)
                one_by_one, at_once = (1e3 * statistics.median(seconds) for seconds in took)
                ratio = one_by_one / at_once
                print(f"| {width} | {form} | {rows} | {one_by_one:.1f} | {at_once:.1f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
