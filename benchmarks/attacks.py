"""What hostile members do to a training: progress lost under each attack, with each defence.

    python -m benchmarks.attacks --text FOLDER --json FILE
    python -m benchmarks.attacks --quick

Sixteen peers with two samples each train a tiny ALBERT, seven of them are hostile from some step on. Everything but the
network is the package's: records, weights, codec, error feedback, reducers, optimizer. Defences: `mean` is
`trust.aggregate` as it is by default, `clip` is that of the same name; `centered` and `median` are other aggregators,
with the weights of `clip`.

*Progress lost* is (attacked - clean) / (a uniform guess - clean) in held-out loss, where *clean* are the nine honest
peers alone, with the mean. 100 %: as if nothing had been learned. Without --text it takes the demo's text, the
documentation strings of this Python.
"""

import argparse
import asyncio
import contextlib
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice, product
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.convergence import Learner, prepare
from benchmarks.lib.aggregators import CenteredClip, Median
from benchmarks.lib.attacked import Swarm
from benchmarks.lib.hostile_peers import ATTACKS, DELAY, Sight
from dedloc_kit.data.docstrings import collect_documents
from dedloc_kit.data.stream import in_order, texts
from dedloc_kit.run import RunConfig, Source, parse_run, seed_of
from dedloc_kit.swarm.averaging.compression import codec_of
from dedloc_kit.swarm.averaging.reducer import ClipReducer, MakeReducer, MeanReducer
from dedloc_kit.swarm.trust.weight import Weigh, allowed, claimed
from dedloc_kit.tasks import Batch, Task, create_task

PEERS, HOSTILE, MICROBATCH = 16, 7, 2
DEFENCES: dict[str, tuple[MakeReducer, Weigh]] = {
    "mean": (MeanReducer, claimed),
    "clip": (ClipReducer, allowed),
    "centered": (CenteredClip, allowed),
    "median": (Median, allowed),
}
QUICK_ATTACKS = ("none", "sign", "sign x1000", "ALIE 1.5", "claims")


@dataclass
class Row:
    """One training.

    :ivar failed: rounds that moved nothing
    """

    attack: str
    defence: str
    start: int
    seed: int
    progress_lost: float
    loss: float
    failed: int


class Training:
    """Of one seed: the same first weights and the same batches whoever is hostile."""

    def __init__(self, run: RunConfig, seed: int) -> None:
        self.run, self.seed, self.task = run, seed, create_task(run)
        streams = [self.task.batches(MICROBATCH, seed_of(run.run_id, "peer", peer), print) for peer in range(PEERS)]
        self._steps: list[tuple[Batch, ...]] = list(islice(zip(*streams, strict=True), run.optimizer.total_steps))
        self.uniform = math.log(vocabulary_of(self.task)) + math.log(2)
        self.clean = self._loss(Learner(run, self.task), "none", "mean", 0, PEERS - HOSTILE)[0]

    def under(self, attack: str, defence: str, start: int) -> Row:
        loss, failed = self._loss(Learner(self.run, self.task), attack, defence, start, PEERS)
        lost = (loss - self.clean) / (self.uniform - self.clean) if math.isfinite(loss) else 1.0
        return Row(attack, defence, start, self.seed, lost, loss, failed)

    def _loss(self, learner: Learner, attack: str, defence: str, start: int, peers: int) -> tuple[float, int]:
        failed = asyncio.run(self._train(learner, attack, defence, start, peers))
        return self.task.evaluate(learner.model).loss, failed

    async def _train(self, learner: Learner, attack: str, defence: str, start: int, peers: int) -> int:
        """The first so many peers train, the last seven of sixteen are hostile; returns how many rounds failed."""
        how, (make_reducer, weigh) = ATTACKS[attack], DEFENCES[defence]
        layout, failed = learner.layout, 0
        swarm = Swarm(layout, codec_of("4bit"), peers, PEERS * MICROBATCH, make_reducer, weigh)
        last, before = torch.zeros(layout.size), list[list[Tensor]]()
        generator, honest = torch.Generator().manual_seed(self.seed), PEERS - HOSTILE
        for number, batches in enumerate(self._steps):
            active = number >= start and (number - start) % how.every == 0
            own = list(batches[:peers])
            if active and how.same_data:
                own[honest:] = self._steps[0][honest:]
            elif active and how.data is not None:
                own[honest:] = map(how.data, own[honest:])
            vectors = [learner.gradient(batch) for batch in own]
            claims = [MICROBATCH] * peers
            if peers > honest:
                before = [*before, vectors[honest:]][-DELAY - 1 :]
            if active:
                good = torch.stack(vectors[:honest])
                moments, chunk = (good.mean(0), good.std(0)), swarm.chunks[0][1:]
                sight = Sight(vectors[honest:], moments, before[:-1], last, chunk, generator)
                vectors[honest:] = how.send(sight)
                claims[honest:] = [how.claims * MICROBATCH] * HOSTILE
            average = swarm.average(number + 1, vectors, claims)
            if average is None:
                failed += 1
                continue
            last = average.clone()
            learner.set_gradient(average)
            learner.update()
        return failed


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
                "shuffle_buffer": 500,
            },
            "optimizer": {"learning_rate": rate, "warmup_steps": steps // 10, "total_steps": steps},
        }
    )


def measure(arguments: argparse.Namespace) -> list[Row]:
    rows = []
    for seed in range(arguments.seeds):
        training = Training(run_of(arguments.steps, arguments.rate, seed), seed)
        print(f"seed {seed}: clean {training.clean:.3f}, a uniform guess {training.uniform:.3f}", flush=True)
        for attack, defence, start in product(arguments.attack, arguments.defence, arguments.start):
            rows.append(training.under(attack, defence, start))
            print(told(rows[-1]), flush=True)
    return rows


def told(row: Row) -> str:
    failed = f", {row.failed} rounds failed" if row.failed else ""
    who = f"from step {row.start}  {row.attack:16} {row.defence:9}"
    return f"{who} {row.progress_lost:8.1%} of the progress lost, loss {row.loss:.3f}{failed}"


def with_text(arguments: argparse.Namespace) -> list[Row]:
    sources = [Source(dataset=str(folder.resolve())) for folder in arguments.text]
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(arguments.folder or temporary):
        if not Path("tokenizer").exists():
            found = [text for source in sources for text in in_order(source, texts, warn=print)]
            prepare(found or collect_documents())
        return measure(arguments)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What hostile members do to a training")
    parser.add_argument("--attack", nargs="+", choices=list(ATTACKS), metavar="NAME", help=", ".join(ATTACKS))
    parser.add_argument("--defence", nargs="+", choices=list(DEFENCES), default=["mean", "clip"])
    parser.add_argument("--start", type=int, nargs="+", metavar="STEP", help="a fifth of the steps by default")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rate", type=float, default=0.005, help="LAMB's learning rate (default: 0.005)")
    parser.add_argument("--seeds", type=int, default=1, help="how many, for weights and order of the text")
    parser.add_argument("--text", type=Path, nargs="+", default=(), help="folders of text (default: the demo's text)")
    parser.add_argument("--folder", type=Path, help="keep the prepared text and the tokenizer here, or find them here")
    parser.add_argument("--quick", action="store_true", help="half the steps and a few attacks")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    chosen = parser.parse_args(arguments)
    chosen.steps = chosen.steps // 2 if chosen.quick else chosen.steps
    chosen.start = chosen.start or [chosen.steps // 5]
    chosen.attack = chosen.attack or (QUICK_ATTACKS if chosen.quick else tuple(ATTACKS))
    return chosen


def main() -> None:
    arguments = parse()
    rows = with_text(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
