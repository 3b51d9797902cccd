"""What does a mixture of experts learn, and are its experts used alike?

    python -m benchmarks.experts                     # smoke.toml, with the demo's text where its own is not
    python -m benchmarks.experts --run RUN.toml --overrides FILE.toml --seeds 0 1 2

All in one process, by the plain loop (`lib/mixture.py`), every way on the same batches in the same order:

- the mixture as the run has it;
- `dense`: the same run without `[experts]`, whose feed-forward networks have as many channels as the experts that a
  token goes to have together, so that a token costs as many operations (the gates aside);
- `without the term`: the mixture with `experts.balance = 0`.

Balance is how many tokens the most used expert of a layer gets, over the mean, in the last steps together.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.lib.mixture import PlainLoop
from dedloc_kit.experts.bank import Bank
from dedloc_kit.experts.calls import Answers, Cell, Ticket
from dedloc_kit.experts.mixture import connect
from dedloc_kit.machine.home import home
from dedloc_kit.organizer.prepare import prepare_demo
from dedloc_kit.run import RunConfig, load_run, parse_run, seed_of
from dedloc_kit.tasks import Batch, create_task

MICROBATCH = 16
LAST = 100
"""Steps over which balance is measured."""
MIXTURE, DENSE, WITHOUT = "mixture", "dense", "without the term"
_ROW = "{:>6}{:>20}{:>16}{:>24}{:>10}"


class Counted:
    """The experts of a bank, and how many tokens each is asked for."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self.tokens: dict[int, Tensor] = {}

    def alive(self, layer: int) -> Tensor:
        return self._bank.alive(layer)

    def forward(self, layer: int, inputs: Mapping[Cell, Tensor], keep: bool) -> Answers:
        if keep:
            counted = self.tokens.setdefault(layer, torch.zeros(self._bank.alive(layer).shape))
            for cell, given in inputs.items():
                counted[cell] += len(given)
        return self._bank.forward(layer, inputs, keep)

    def backward(self, layer: int, ticket: Ticket, gradients: Mapping[Cell, Tensor]) -> Mapping[Cell, Tensor]:
        return self._bank.backward(layer, ticket, gradients)

    def most_over_mean(self) -> float:
        """Of the layer where it is largest; counts anew from here."""
        counts, self.tokens = self.tokens.values(), {}
        return max(float(each.max() / each.mean()) for each in counts)


@dataclass(frozen=True)
class Learned:
    """What one way came to with one seed."""

    seed: int
    way: str
    held_out: float
    """Loss after the last step."""
    most_used_over_mean: float | None
    seconds: float


def ways(run: RunConfig) -> dict[str, RunConfig]:
    """The run as it is, and as it is compared."""
    assert run.experts is not None
    values = run.model_dump(mode="json")
    model = {**run.task.options.get("model", {}), "intermediate_size": run.experts.chosen * run.experts.hidden}
    dense: dict[str, Any] = {**values, "experts": None, "task": {**values["task"], "model": model}}
    without = {**values, "experts": {**values["experts"], "balance": 0.0}}
    return {MIXTURE: run, DENSE: parse_run(dense), WITHOUT: parse_run(without)}


def learn(run: RunConfig, way: str, steps: int) -> Learned:
    """Train for so many steps."""
    task = create_task(run)
    loop = PlainLoop(run, task)
    counted = None
    if loop.bank is not None:
        connect(loop.model, counted := Counted(loop.bank))
    # One seed for all ways, whatever the runs are called.
    batches = task.batches(MICROBATCH, seed_of("benchmark", run.seed), print)
    began = time.process_time()
    for step in range(steps):
        if counted is not None and step == steps - LAST:
            counted.tokens.clear()
        loop.take(_global_batch(batches, run.global_batch))
    seconds = time.process_time() - began
    balance = counted.most_over_mean() if counted is not None else None
    return Learned(run.seed, way, task.evaluate(loop.model).loss, balance, round(seconds, 1))


def _global_batch(batches: Iterator[Batch], samples: int) -> list[Batch]:
    return list(islice(batches, samples // MICROBATCH))


def main() -> int:
    options = _parse()
    torch.set_num_threads(options.threads)
    given = options.run is not None
    base = load_run(options.run, options.overrides) if given else prepare_demo("experts", home() / "demo" / "experts")
    if base.global_batch % MICROBATCH:
        sys.exit(f"the run's global_batch must be a multiple of {MICROBATCH}")
    steps, found = options.steps or base.optimizer.total_steps, []
    print(_ROW.format("seed", "", "held-out loss", "most used over mean", "CPU s"))
    for seed in options.seeds:
        for way, run in ways(base.model_copy(update={"seed": seed})).items():
            if way not in options.ways:
                continue
            found.append(each := learn(run, way, steps))
            balance = "" if each.most_used_over_mean is None else f"{each.most_used_over_mean:.2f}"
            print(_ROW.format(seed, way, f"{each.held_out:.4f}", balance, each.seconds), flush=True)
            if options.json:
                options.json.write_text(json.dumps(summary(found, steps), indent=1) + "\n")
    return 0


def summary(found: list[Learned], steps: int) -> dict[str, Any]:
    """What a file keeps: medians over the seeds, and all of it."""

    def median(way: str, field: str) -> float | None:
        values = [getattr(each, field) for each in found if each.way == way]
        return statistics.median(values) if values else None

    return {
        "steps": steps,
        "most_used_over_mean": median(MIXTURE, "most_used_over_mean"),
        "most_used_over_mean_without": median(WITHOUT, "most_used_over_mean"),
        "held_out": median(MIXTURE, "held_out"),
        "held_out_dense": median(DENSE, "held_out"),
        "learned": [asdict(each) for each in found],
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, metavar="RUN.toml", help="with [experts]; default: the recipe's small form")
    parser.add_argument("--overrides", type=Path, metavar="FILE.toml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="train once with each")
    parser.add_argument("--steps", type=int, help="global steps; default: the run's")
    parser.add_argument("--ways", nargs="+", choices=[MIXTURE, DENSE, WITHOUT], default=[MIXTURE, DENSE, WITHOUT])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
