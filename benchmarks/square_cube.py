"""From which width on does a stage of a pipeline compute for longer than its line is busy?

What travels from stage to stage grows with the width, the computation of a layer with its square (for all tokens of a
sequence with square and cube; Ryabinin et al. 2023). For each width: the seconds of one decoder layer's forward and
backward pass, by the processor's time of one thread (or the time of a GPU, in bfloat16), and the seconds in which a
line carries its activations and their gradients at one byte a value, two tensors in each direction. The quickest of
several turns counts, which the widths take one after the other: what else the machine does makes none quicker.

Beside it what a pipeline really does: the layer is computed once more before the backward pass and gets its input a
second time, so there are four passes' worth of computing in place of three, and three tensors in the busier direction
in place of two.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from dedloc_kit.organizer.prediction import read_line

WIDTHS = (256, 512, 1024, 2048)
POWER = 0.8
"""With which compute over line ought to rise with the width at least."""
_ROW = "{:>6}{:>12}{:>12}{:>12}{:>16}{:>16}"


@dataclass(frozen=True)
class Width:
    """
    :ivar forward, both: seconds of a layer's forward pass, and of forward and backward pass
    :ivar line: seconds of two tensors in one direction
    :ivar ratio: compute over line
    :ivar pipeline: the same with what a pipeline repeats
    """

    width: int
    forward: float
    both: float
    line: float
    ratio: float
    pipeline: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="multiples of 64")
    parser.add_argument("--tokens", type=int, default=256, help="in a sequence")
    parser.add_argument("--rows", type=int, default=1, help="sequences at once")
    parser.add_argument("--line", default="100mbit")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    line = read_line(options.line)
    print(f"{options.rows} x {options.tokens} tokens, {options.device}, a line of {options.line}")
    layers = {width: Layer(width, options.rows, options.tokens, options.device) for width in options.widths}
    times = [{width: layer.seconds() for width, layer in layers.items()} for _ in range(options.repeats)]
    print(_ROW.format("width", "forward s", "both s", "line s", "compute/line", "in a pipeline"))
    found = []
    for width in layers:
        forward, both = (min(turn[width][i] for turn in times) for i in (0, 1))
        seconds = 2 * options.rows * options.tokens * width / line
        each = Width(width, forward, both, seconds, both / seconds, (forward + both) / (1.5 * seconds))
        shown = f"{forward:.4f}", f"{both:.4f}", f"{seconds:.4f}", f"{each.ratio:.1f}", f"{each.pipeline:.1f}"
        print(_ROW.format(width, *shown))
        found.append(each)
    power = rise([each.width for each in found], [each.ratio for each in found])
    print(f"compute over line rises with the width to the power of {power:.2f} (at least {POWER} is asked for)")
    if options.json:
        rows = [asdict(each) for each in found]
        options.json.write_text(json.dumps({"rows": rows, "power": power}, indent=2) + "\n")
    return 0


class Layer:
    """A decoder layer with one input; the first call, which is slower, is over."""

    def __init__(self, width: int, rows: int, tokens: int, device: str) -> None:
        config = LlamaConfig(
            vocab_size=8,
            hidden_size=width,
            intermediate_size=int(width * 8 / 3) // 64 * 64,
            num_hidden_layers=1,
            num_attention_heads=width // 64,
            num_key_value_heads=width // 64,
        )
        self._gpu = device.startswith("cuda")
        kind = torch.bfloat16 if self._gpu else torch.float32
        with torch.device(device):  # one thread of the processor would draw the widest layers for minutes
            self._layer = LlamaModel(config).to(kind)
        self._hidden = torch.randn(rows, tokens, width, device=device, dtype=kind, requires_grad=True)
        self._gradient = torch.randn_like(self._hidden)
        self._both()

    def seconds(self) -> tuple[float, float]:
        """Of a forward pass, and of a forward and backward pass."""
        with torch.no_grad():
            alone = self._timed(self._forward)
        return alone, self._timed(self._both)

    def _forward(self) -> Tensor:
        after: Tensor = self._layer(inputs_embeds=self._hidden, use_cache=False).last_hidden_state
        return after

    def _both(self) -> None:
        self._forward().backward(self._gradient)

    def _timed(self, run: Callable[[], object]) -> float:
        if not self._gpu:
            began = time.process_time()
            run()
            return time.process_time() - began
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        return time.perf_counter() - began


def rise(widths: Sequence[int], ratios: Sequence[float]) -> float:
    """The power with which a ratio rises: the slope of the best line through the logarithms; nan of a single one."""
    if len(set(widths)) < 2:
        return math.nan
    slope, _ = statistics.linear_regression([math.log(x) for x in widths], [math.log(y) for y in ratios])
    return slope


if __name__ == "__main__":
    sys.exit(main())
