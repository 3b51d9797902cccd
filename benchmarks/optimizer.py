"""How long does a step of LAMB take, and how near is that to what the memory allows?

On parameters of ALBERT-large's shapes, with as many threads as `--threads` says. `torch_optimizer` is the LAMB that
the original runs used (needs `pip install torch_optimizer`; left out otherwise). LAMB must know the norm of the whole
update before it can apply it, so it moves at least ten numbers for each parameter: it reads gradient, both moments and
weight and writes moments and update, then reads weight and update and writes the weight. Two limits follow, by what is
taken for the memory's speed: that of a plain copy (two numbers, as STREAM counts), and that of `fused AdamW`, which is
no LAMB and moves seven. The second is stricter: AdamW writes only where it has just read, which spares the memory the
reading of what is to be overwritten. All take turns, so that a busy moment hits all of them.

`8 bits` is LAMB with optimizer.state_dtype = "8bit", which has far more to compute than to move. `bitsandbytes` is its
LAMB8bit (needs `pip install bitsandbytes`; said where it is left out).
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

from benchmarks.lib.task import shapes
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.optim.lamb8bit import Lamb8Bit

_ROW = "{:18}{:>10}{:>18}{:>16}{:>14}{:>14}{:>10}{:>14}"
LAMB_TRAFFIC, COPY_TRAFFIC, ADAM_TRAFFIC = 10, 2, 7
"""Numbers that a step moves between memory and processor for each parameter, at least."""


def main() -> int:
    options = _parse()
    torch.set_num_threads(options.threads)
    parameters = int(options.parameters)
    optimizers = {name: _prepared(make, parameters) for name, make in _optimizers().items()}
    steps: dict[str, Callable[[], Any]] = {name: optimizer.step for name, optimizer in optimizers.items()}
    steps["copy"] = _copy(parameters)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()  # the first one also makes the state
    for _ in range(options.repeats):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - began)

    median = {name: statistics.median(found) for name, found in times.items()}
    limit = median["copy"] * LAMB_TRAFFIC / COPY_TRAFFIC
    strict_limit = median["fused AdamW"] * LAMB_TRAFFIC / ADAM_TRAFFIC
    baseline = median.get("torch_optimizer")
    print(f"{options.parameters:.0f} parameters, {options.threads} thread(s), {options.repeats} steps each")
    states = {name: _state_bytes(optimizer) for name, optimizer in optimizers.items()}
    titles = ("ms", "(each)", "torch_optimizer", "over copying", "over AdamW", "over ours", "MB of state")
    print(_ROW.format("", *titles))
    for name, each in times.items():
        row = _ROW.format(
            name,
            f"{1e3 * median[name]:.1f}",
            f"{1e3 * min(each):.1f}..{1e3 * max(each):.1f}",
            f"{baseline / median[name]:.2f} x" if baseline else "n/a",
            f"{median[name] / limit:.2f}",
            f"{median[name] / strict_limit:.2f}",
            f"{median[name] / median['ours']:.2f}",
            f"{states[name] / 1e6:.1f}" if name in states else "",
        )
        print(row)
    share, ratio = states["8 bits"] / states["ours"], median["8 bits"] / median["ours"]
    print(f"8 bits: {share:.4f} of the state, {ratio:.2f} x the time")
    if "bitsandbytes" in median:
        print(f"        {median['8 bits'] / median['bitsandbytes']:.2f} x the time of bitsandbytes")
    else:
        print("        bitsandbytes is not installed")
    if options.json:
        found = {
            "ratio": baseline / median["ours"] if baseline else None,
            "over_limit": median["ours"] / limit,
            "over_strict_limit": median["ours"] / strict_limit,
            "limit": limit,
            "strict_limit": strict_limit,
            "seconds": times,
            "state_bytes": states,
        }
        options.json.write_text(json.dumps(found, indent=2) + "\n")
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
    found["8 bits"] = lambda groups: Lamb8Bit(groups, lr=1e-3)
    try:
        import bitsandbytes  # type: ignore[import-not-found]
    except ImportError:
        pass
    else:
        found["bitsandbytes"] = lambda groups: bitsandbytes.optim.LAMB8bit(groups, lr=1e-3, eps=1e-6)
    found["fused AdamW"] = lambda groups: torch.optim.AdamW(groups, lr=1e-3, fused=True)
    return found


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """After the first step."""
    tensors = (value for state in optimizer.state.values() for value in state.values())
    return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor))


def _prepared(make: Callable[[Any], torch.optim.Optimizer], parameters: int) -> torch.optim.Optimizer:
    """An optimizer whose gradients stay the same."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(shape, generator=generator) * 0.02) for shape in shapes(parameters)]
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator) * 1e-3
    groups = [
        {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": 0.01},
        {"params": [weight for weight in weights if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    return make(groups)


def _copy(parameters: int) -> Callable[[], Any]:
    sources = [torch.randn(shape) for shape in shapes(parameters)]
    pairs = [(torch.empty_like(source), source) for source in sources]
    return lambda: [target.copy_(source) for target, source in pairs]


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
