"""How long does a step of LAMB take, and how near is that to what the memory allows?

On parameters of ALBERT-large's shapes, with as many threads as `--threads` says. `torch_optimizer` is the LAMB that
the original runs used (needs `pip install torch_optimizer`; left out otherwise). `fused AdamW` is no LAMB: it moves
seven numbers for each parameter (reads gradient, both moments and weight, writes all but the first). LAMB must know
the norm of the whole update before it can apply it, which makes ten (the update written and read again, the weight read
twice): AdamW's time times 10/7 is the limit. The optimizers take turns, so that a busy moment hits all of them.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.task import shapes
from dedloc_kit.training.lamb import Lamb

_ROW = "{:18}{:>10}{:>18}{:>16}{:>12}"
LAMB_TRAFFIC, ADAM_TRAFFIC = 10, 7
"""Numbers that a step moves between memory and processor for each parameter, at least."""


def main() -> int:
    options = _parse()
    torch.set_num_threads(options.threads)
    steps = {name: _prepared(make, int(options.parameters)) for name, make in _optimizers().items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()  # the first one also makes the state
    for _ in range(options.repeats):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - began)

    median = {name: statistics.median(found) for name, found in times.items()}
    limit = median["fused AdamW"] * LAMB_TRAFFIC / ADAM_TRAFFIC
    baseline = median.get("torch_optimizer")
    print(f"{options.parameters:.0f} parameters, {options.threads} thread(s), {options.repeats} steps each")
    print(_ROW.format("", "ms", "(each)", "torch_optimizer", "over limit"))
    for name, found in times.items():
        row = _ROW.format(
            name,
            f"{1e3 * median[name]:.1f}",
            f"{1e3 * min(found):.1f}..{1e3 * max(found):.1f}",
            f"{baseline / median[name]:.2f} x" if baseline else "n/a",
            f"{median[name] / limit:.2f}",
        )
        print(row)
    if options.json:
        ratios = {"ratio": baseline / median["ours"] if baseline else None, "over_limit": median["ours"] / limit}
        options.json.write_text(json.dumps({**ratios, "limit": limit, "seconds": times}, indent=2) + "\n")
    return 0


def _optimizers() -> dict[str, Callable[[Any], torch.optim.Optimizer]]:
    found: dict[str, Callable[[Any], torch.optim.Optimizer]] = {}
    try:
        import torch_optimizer
    except ImportError:
        pass
    else:
        found["torch_optimizer"] = lambda groups: torch_optimizer.Lamb(groups, lr=1e-3, eps=1e-6, clamp_value=10_000)
    found["ours"] = lambda groups: Lamb(groups, lr=1e-3)
    found["fused AdamW"] = lambda groups: torch.optim.AdamW(groups, lr=1e-3, fused=True)
    return found


def _prepared(make: Callable[[Any], torch.optim.Optimizer], parameters: int) -> Callable[[], Any]:
    """A step with gradients that stay the same."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(shape, generator=generator) * 0.02) for shape in shapes(parameters)]
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator) * 1e-3
    groups = [
        {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": 0.01},
        {"params": [weight for weight in weights if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    return make(groups).step


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--parameters", type=float, default=18e6)
    add("--threads", type=int, default=1)
    add("--repeats", type=int, default=30)
    add("--json", type=Path, help="a file for the results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
