"""What hostile members do to a training: progress lost under each attack, with each defence.

    python -m benchmarks.attacks --text FOLDER --json FILE
    python -m benchmarks.attacks --quick

Sixteen peers with two samples each train a tiny ALBERT, seven of them (or `--hostile 1`) are hostile from some step on.
Everything but the network is the package's: records, weights, codec, error feedback, reducers, optimizer, pledges,
proofs, audits.
Defences: `mean` is `trust.aggregator` as it is by default, `clip` is that of the same name; `checks` is `clip` with
`trust.checks`, `mean and checks` the mean with them; `centered` and `median` are other aggregators, with the weights of
`clip`.
Whoever is convicted after a step takes part in one more, for a kick takes that long.

*Progress lost* is (attacked - clean) / (a uniform guess - clean) in held-out loss, where *clean* are the honest peers
alone, with the mean. 100 %: as if nothing had been learned. Without --text it takes the demo's text.
"""

import argparse
import contextlib
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.convergence import prepare
from benchmarks.lib.aggregators import CenteredClip, Median
from benchmarks.lib.hostile_peers import ATTACKS
from benchmarks.lib.played import HOSTILE, MICROBATCH, PEERS, Defence, Found, Training
from dedloc_kit.config.loading import local, parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import Source
from dedloc_kit.learning.data.sources.stream import in_order, texts
from dedloc_kit.learning.task import Task, create_task
from dedloc_kit.resources import small_text
from dedloc_kit.swarm.allreduce.reduction.reducer import ClipReducer, MeanReducer
from dedloc_kit.swarm.trust.weight import allowed, claimed

DEFENCES = {
    "mean": Defence(MeanReducer, claimed),
    "clip": Defence(ClipReducer, allowed),
    "checks": Defence(ClipReducer, allowed, checks=True),
    "mean and checks": Defence(MeanReducer, claimed, checks=True),
    "centered": Defence(CenteredClip, allowed),
    "median": Defence(Median, allowed),
}
USUAL_DEFENCES, QUICK_DEFENCES = ("mean", "clip", "checks"), ("mean", "checks")
QUICK_ATTACKS = ("none", "sign", "sign x1000", "ALIE 1.5", "claims")


@dataclass
class Row:
    """One training."""

    attack: str
    defence: str
    start: int
    seed: int
    progress_lost: float
    loss: float
    found: Found

    def values(self) -> dict[str, Any]:
        """For a file."""
        values = asdict(self)
        found: dict[str, Any] = values.pop("found")
        return values | found


class Measured:
    """What trainings of one seed lead to, beside a clean one."""

    def __init__(self, run: RunConfig, seed: int, hostile: int) -> None:
        self._seed, task = seed, create_task(run)
        self._training = Training(run, task, seed, hostile)
        self.uniform = math.log(vocabulary_of(task)) + math.log(2)
        clean, _ = self._training.play(ATTACKS["none"], DEFENCES["mean"], 0, self._training.honest)
        self.clean = task.evaluate(clean.model).loss

    def under(self, attack: str, defence: str, start: int) -> Row:
        learner, found = self._training.play(ATTACKS[attack], DEFENCES[defence], start)
        loss = learner.task.evaluate(learner.model).loss
        lost = (loss - self.clean) / (self.uniform - self.clean) if math.isfinite(loss) else 1.0
        return Row(attack, defence, start, self._seed, lost, loss, found)


def vocabulary_of(task: Task) -> int:
    """How many tokens there are."""
    return len(task.tokenizer)  # type: ignore[attr-defined]


def run_of(steps: int, rate: float, seed: int) -> RunConfig:
    size = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2}
    return parse_run(
        {
            "name": "attacks",
            "global_batch": PEERS * MICROBATCH,
            "seed": seed,
            "task": {
                "name": "albert",
                "tokenizer": "./tokenizer",
                "sequence_length": 64,
                "evaluation_samples": 512,
                "model": {**size, "max_position_embeddings": 64, "classifier_dropout_prob": 0.0},
            },
            "data": {
                "train": [{"dataset": "./train.parquet"}],
                "evaluation": {"dataset": "./test.parquet"},
            },
            "optimizer": {"learning_rate": rate, "warmup_steps": steps // 10, "total_steps": steps},
            "trust": {"checks": "on"},  # so that data come in blocks, whatever the defence
        }
    ).renamed(lambda name: local(name, Path()))


def measure(arguments: argparse.Namespace) -> list[Row]:
    rows = []
    for seed in range(arguments.seeds):
        measured = Measured(run_of(arguments.steps, arguments.rate, seed), seed, arguments.hostile)
        print(f"seed {seed}: clean {measured.clean:.3f}, a uniform guess {measured.uniform:.3f}", flush=True)
        for attack, defence, start in product(arguments.attack, arguments.defence, arguments.start):
            rows.append(measured.under(attack, defence, start))
            print(told(rows[-1]), flush=True)
    return rows


def told(row: Row) -> str:
    found, parts = row.found, [f"{row.progress_lost:8.1%} of the progress lost, loss {row.loss:.3f}"]
    if found.failed:
        parts.append(f"{found.failed} rounds failed")
    if DEFENCES[row.defence].checks:
        gone = " ".join("-" if steps is None else str(steps) for steps in found.suspended_after)
        parts += [f"gone after {gone}", f"{found.honest_suspended} honest", f"{found.check_share:.1%} checks"]
        parts += [f"{count} x {reason!r}" for reason, count in found.reasons.items()]
    return f"from step {row.start}  {row.attack:16} {row.defence:15} {', '.join(parts)}"


def with_text(arguments: argparse.Namespace) -> list[Row]:
    sources = [Source(dataset=str(folder.resolve())) for folder in arguments.text]
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(arguments.folder or temporary):
        if not Path("tokenizer").exists():
            prepare([text for source in sources for text in in_order(source, texts, warn=print)])
        return measure(arguments)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What hostile members do to a training")
    parser.add_argument("--attack", nargs="+", choices=list(ATTACKS), metavar="NAME", help=", ".join(ATTACKS))
    parser.add_argument("--defence", nargs="+", choices=list(DEFENCES), metavar="NAME", help=", ".join(DEFENCES))
    parser.add_argument("--start", type=int, nargs="+", metavar="STEP", help="a fifth of the steps by default")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rate", type=float, default=0.005, help="LAMB's learning rate (default: 0.005)")
    parser.add_argument("--seeds", type=int, default=1, help="how many, for weights and order of the text")
    parser.add_argument("--hostile", type=int, choices=range(1, PEERS), default=HOSTILE, metavar="PEERS", help="of 16")
    parser.add_argument("--text", type=Path, nargs="+", default=(small_text(),), help="folders (default: the demo's)")
    parser.add_argument("--folder", type=Path, help="keep the prepared text and the tokenizer here, or find them here")
    parser.add_argument("--quick", action="store_true", help="half the steps, a few attacks, two defences")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    chosen = parser.parse_args(arguments)
    chosen.steps = chosen.steps // 2 if chosen.quick else chosen.steps
    chosen.start = chosen.start or [chosen.steps // 5]
    chosen.defence = chosen.defence or (QUICK_DEFENCES if chosen.quick else USUAL_DEFENCES)
    chosen.attack = chosen.attack or (QUICK_ATTACKS if chosen.quick else tuple(ATTACKS))
    return chosen


def main() -> None:
    arguments = parse()
    rows = with_text(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": [row.values() for row in rows]}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
