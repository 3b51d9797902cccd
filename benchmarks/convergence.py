"""What compression, overlapping and local steps cost in loss: the same samples of real text, the same number of steps.

    python benchmarks/convergence.py --text FOLDER --json FILE
    python benchmarks/convergence.py --run RUN.toml --overrides FILE.toml      # a recipe's task, data and optimizer
    python benchmarks/convergence.py --decoder --variants plain "10 local steps" "10 local steps, overlapped"
    python benchmarks/convergence.py --pipeline     # the activations and gradients of stages, see lib/pipelined.py
    python benchmarks/convergence.py --sparse --text FOLDER     # sparse local steps, see lib/sparse_steps.py

Four peers are played one after another in this process, on the same batches in the same order for every variant, so
that nothing depends on timing: what differs is the algorithm alone. The all-reduce is the swarm's without its network:
each peer adds up a quarter of the flat vector, and messages, chunks and error feedback are the package's own. That
real peers compute the same as one loop is proven elsewhere (tests/swarm/test_equivalence.py).

The held-out loss is compared with that of a plain loop over the whole batch. `none` differs from it by the order of
sums alone: so much is chance. Without --text it takes the demo's text.
"""

import argparse
import contextlib
import copy
import json
import math
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import chain, islice, pairwise, product
from pathlib import Path

import pyarrow
import torch
from pyarrow import parquet
from torch import Tensor

from benchmarks.lib import pipelined, sparse_steps
from benchmarks.lib.learner import Learner
from benchmarks.lib.pipelined import PIPELINED
from dedloc_kit.config.loading import load_run, local, parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.config.task import Source
from dedloc_kit.learning.data.sources.stream import in_order, texts
from dedloc_kit.learning.data.tokenizers.tokenizer import train_tokenizer
from dedloc_kit.learning.task import Batch, create_task
from dedloc_kit.learning.tasks.batches import batches_of
from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.learning.train.optim.outer import NesterovSGD
from dedloc_kit.organizer.prepare import prepare_tokenizer
from dedloc_kit.resources import small_text
from dedloc_kit.swarm.allreduce.encoding.codec import Codec, codec_of, decode
from dedloc_kit.swarm.allreduce.encoding.compression import Blockwise4Bit, Blockwise8Bit, Float16
from dedloc_kit.swarm.allreduce.encoding.feedback import Feedback

PEERS, MICROBATCH = 4, 16
HELD_OUT = 12  # one document in so many is kept for the evaluation


@dataclass(frozen=True)
class Variant:
    """A way to train."""

    codec: Codec | None = None
    """None: a plain loop, without any code of the swarm."""
    feedback: bool = True
    overlap: bool = False
    """A gradient is applied when the next one has been computed: it is one global step old. With local steps: an
    average comes when the next ones have been taken, so an exchange takes as long as these."""
    local_steps: int = 0
    """DiLoCo: so many steps of each peer alone, then one on the mean of what they changed."""
    local_rate: float = 1.0
    """The learning rate of local steps relative to that of global steps, whose batch is larger."""
    outer: tuple[float, float] | None = None
    """Learning rate and momentum of the step on the mean; none: as the run says."""


_MIXED = Codec(Blockwise4Bit(), Blockwise8Bit(), Float16(), Blockwise8Bit())
VARIANTS = {
    "plain": Variant(),
    "none": Variant(codec_of("none")),
    "float16": Variant(codec_of("float16")),
    "8bit": Variant(codec_of("8bit")),
    "4bit": Variant(codec_of("4bit")),
    "4bit up, 8bit down": Variant(_MIXED),
    "4bit without feedback": Variant(codec_of("4bit"), feedback=False),
    "none, overlapped": Variant(codec_of("none"), overlap=True),
    "8bit, overlapped": Variant(codec_of("8bit"), overlap=True),
    "4bit, overlapped": Variant(codec_of("4bit"), overlap=True),
    "4bit up, 8bit down, overlapped": Variant(_MIXED, overlap=True),
    "10 local steps": Variant(codec_of("none"), local_steps=10),
    "10 local steps, half the rate": Variant(codec_of("none"), local_steps=10, local_rate=0.5),
    "10 local steps, overlapped": Variant(codec_of("none"), local_steps=10, overlap=True),
    "10 local steps, 4bit": Variant(codec_of("4bit"), local_steps=10),
    "10 local steps, 4bit, overlapped": Variant(codec_of("4bit"), local_steps=10, overlap=True),
    "10 local steps, sparse": Variant(codec_of("sparse"), local_steps=10, outer=(1.0, 0.0)),
    "10 local steps, sparse, overlapped": Variant(codec_of("sparse"), local_steps=10, outer=(1.0, 0.0), overlap=True),
}


@dataclass
class Result:
    """The held-out loss at the end, with one seed, and what each peer sent for each global batch."""

    variant: str
    seed: int
    loss: float
    bytes_per_step: float


class AllReduce:
    """The swarm's all-reduce of one flat vector among peers of equal weight; each reduces an equal share."""

    def __init__(self, layout: FlatLayout, codec: Codec, feedback: bool) -> None:
        self._layout, self._codec, self._feedback = layout, codec, feedback
        self._sent = [Feedback(layout.size) for _ in range(PEERS)]
        self._averaged = [Feedback(layout.size) for _ in range(PEERS)]
        cuts = [layout.size * peer // PEERS for peer in range(PEERS + 1)]
        self._pieces = layout.chunks([end - begin for begin, end in pairwise(cuts)])
        self.sent_bytes = 0
        """Of all peers together."""

    def average(self, vectors: Sequence[Tensor]) -> Tensor:
        """The mean of the peers' vectors, as all of them decode it."""
        for sent, averaged in zip(self._sent, self._averaged, strict=True):
            sent.begin(MICROBATCH)
            averaged.begin(MICROBATCH * PEERS)
        average = torch.empty(self._layout.size)
        for reducer, pieces in enumerate(self._pieces):
            for begin, end in pieces:
                average[begin:end] = self._reduce(vectors, reducer, begin, end)
        if self._feedback:
            for feedback in (*self._sent, *self._averaged):
                feedback.commit()
        return average

    def _reduce(self, vectors: Sequence[Tensor], reducer: int, begin: int, end: int) -> Tensor:
        small = begin >= self._layout.large
        up, down = (self._codec.small,) * 2 if small else (self._codec.gradients, self._codec.averages)
        total = torch.zeros(end - begin)
        for peer, vector in enumerate(vectors):
            if peer == reducer:
                part = self._sent[peer].exact(vector[begin:end], begin)
            else:
                message = self._sent[peer].encode(up, vector[begin:end], begin)
                self.sent_bytes += message.ByteSize()
                part = decode(message, end - begin)
            total.add_(part, alpha=MICROBATCH)
        average = torch.empty(end - begin)
        message = self._averaged[reducer].encode(down, total.div_(MICROBATCH * PEERS), begin, average)
        self.sent_bytes += message.ByteSize() * (PEERS - 1)
        return average


def train(learner: Learner, variant: Variant, steps: Sequence[Sequence[Batch]]) -> int:
    """Train on each step's batches, one for each peer; returns the bytes that all peers sent."""
    if variant.codec is None:
        for batches in steps:
            for batch in batches:
                (learner.task.loss(learner.model, learner.task.prepare(batch), learner.step).mean / PEERS).backward()
            learner.update()
        return 0
    all_reduce = AllReduce(learner.layout, variant.codec, variant.feedback)
    if variant.local_steps:
        train_locally(learner, variant, steps, all_reduce)
        return all_reduce.sent_bytes
    averages: list[Tensor] = []
    for batches in steps:
        averages.append(all_reduce.average([learner.gradient(batch) for batch in batches]))
        if len(averages) > variant.overlap:
            learner.set_gradient(averages.pop(0))
            learner.update()
    for average in averages:
        learner.set_gradient(average)
        learner.update()
    return all_reduce.sent_bytes


def train_locally(learner: Learner, variant: Variant, steps: Sequence[Sequence[Batch]], all_reduce: AllReduce) -> None:
    """DiLoCo: every peer takes its steps alone, then all take one Nesterov step along the mean of their changes.

    Overlapped, each goes on from there by what it has changed while that mean was on its way.
    """
    peers = [copy.deepcopy(learner) for _ in range(PEERS)]
    settings = learner.run.averaging
    outer = NesterovSGD(learner.parameters, *(variant.outer or (settings.outer_learning_rate, settings.outer_momentum)))
    averages: list[Tensor] = []
    for first in range(0, len(steps), variant.local_steps):
        ways = []
        for number, peer in enumerate(peers):
            begin = peer.weights()
            for batches in steps[first : first + variant.local_steps]:
                peer.task.loss(peer.model, peer.task.prepare(batches[number]), peer.step).mean.backward()
                peer.update(variant.local_rate)
            ways.append(peer.weights() - begin)
        averages.append(all_reduce.average([-way for way in ways]))
        if len(averages) > variant.overlap:
            learner.set_gradient(averages.pop(0))
            outer.step()
        for peer, way in zip(peers, ways, strict=True):
            peer.set_weights(learner.weights() + way if variant.overlap else learner.weights())
    for average in averages:
        learner.set_gradient(average)
        outer.step()


def measure(run: RunConfig, names: Sequence[str], seed: int, state: str = "float32") -> list[Result]:
    """Train every variant from the same weights on the same batches.

    :param state: `8bit` for all of them once more, with such an optimizer state
    """
    task = create_task(run)
    streams = [batches_of(run, task, MICROBATCH, seed_of(run.run_id, "peer", peer), print) for peer in range(PEERS)]
    steps = list(islice(zip(*streams, strict=True), run.optimizer.total_steps))
    results = []
    for kept, name in product(dict.fromkeys(("float32", state)), names):
        learner = Learner(run, task, kept)
        sent_bytes = train(learner, VARIANTS[name], steps) / PEERS / len(steps)
        told = name if kept == "float32" else f"{name}, {kept} state"
        results.append(Result(told, seed, task.evaluate(learner.model).loss, sent_bytes))
        print(f"seed {seed}  {told:32} {results[-1].loss:.4f}", flush=True)
    return results


def measure_all(runs: Mapping[int, RunConfig], arguments: argparse.Namespace) -> list[Result]:
    """The same for the run of each seed."""
    each = (measure(run, arguments.variants, seed, arguments.optimizer_state) for seed, run in runs.items())
    return list(chain.from_iterable(each))


def measure_pipelined(run: RunConfig, names: Sequence[str], seed: int) -> list[Result]:
    """Train every variant in stages from the same weights on the same batches."""
    task = create_task(run)
    batches = batches_of(run, task, pipelined.MICROBATCH, seed_of(run.run_id, "peer", 0), print)
    steps = [list(islice(batches, pipelined.MICROBATCHES)) for _ in range(run.optimizer.total_steps)]
    results = []
    for name in names:
        stages = pipelined.Stages(run, task)
        sent = pipelined.train(stages, PIPELINED[name], steps) / len(steps)
        results.append(Result(name, seed, task.evaluate(stages.whole).loss, sent))
        print(f"seed {seed}  {name:32} {results[-1].loss:.4f}", flush=True)
    return results


def prepare(texts: Sequence[str]) -> None:
    """Write what the run reads, in the working folder: text to train on, text to evaluate on, a tokenizer."""
    parts: dict[str, list[str]] = {"train": [], "test": []}
    for text in texts:
        held_out = sha256(text.encode("utf-8", "replace")).digest()[0] % HELD_OUT == 0
        parts["test" if held_out else "train"].append(text)
    for split, part in parts.items():
        parquet.write_table(pyarrow.table({"text": part}), f"{split}.parquet")
    train_tokenizer(iter(parts["train"][::4]), 2000, Path("tokenizer"))


def decoder_run(steps: int, rate: float, seed: int) -> RunConfig:
    """The small decoder of `--pipeline`, in one piece."""
    run = pipelined.pipelined_run(steps, rate, seed)
    return run.model_copy(update={"pipeline": None, "global_batch": PEERS * MICROBATCH})


def run_of(steps: int, rate: float, seed: int) -> RunConfig:
    """A quarter of the small sahajbert's parameters. The first weights depend on all of this."""
    size = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 2}
    return parse_run(
        {
            "name": "convergence",
            "global_batch": PEERS * MICROBATCH,
            "seed": seed,
            "task": {
                "name": "albert",
                "tokenizer": "./tokenizer",
                "sequence_length": 64,
                "evaluation_samples": 2048,
                "model": {**size, "max_position_embeddings": 64, "classifier_dropout_prob": 0.0},
            },
            "data": {"train": [{"dataset": "./train.parquet"}], "evaluation": {"dataset": "./test.parquet"}},
            "optimizer": {"learning_rate": rate, "warmup_steps": steps // 10, "total_steps": steps},
        }
    ).renamed(lambda name: local(name, Path()))


@contextlib.contextmanager
def prepared(arguments: argparse.Namespace) -> Iterator[None]:
    """In a folder with a tokenizer and what is to be read, of `--text` or the demo's text."""
    sources = [Source(dataset=str(folder.resolve())) for folder in arguments.text]
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(arguments.folder or temporary):
        if not Path("tokenizer").exists():
            prepare([text for source in sources for text in in_order(source, texts, warn=print)])
        yield


def with_small_model(arguments: argparse.Namespace) -> list[Result]:
    """Measure with a small ALBERT, or a small decoder, in one piece or in stages."""
    with prepared(arguments):
        if arguments.pipeline:
            steps, rate = arguments.steps or 300, arguments.rate or 0.003
            cut = {seed: pipelined.pipelined_run(steps, rate, seed) for seed in arguments.seeds}
            return [each for seed in cut for each in measure_pipelined(cut[seed], arguments.variants, seed)]
        run, usual = (decoder_run, (300, 0.003)) if arguments.decoder else (run_of, (400, 0.005))
        steps, rate = arguments.steps or usual[0], arguments.rate or usual[1]
        runs = {seed: run(steps, rate, seed) for seed in arguments.seeds}
        return measure_all(runs, arguments)


def with_sparse_steps(arguments: argparse.Namespace) -> list[sparse_steps.Result]:
    """Measure with a small decoder in local steps."""
    steps, rate, seed = arguments.steps or 1200, arguments.rate or 0.006, arguments.seeds[0]
    settings = sparse_steps.Settings(steps, arguments.samples, arguments.local_steps, rate, seed)
    with prepared(arguments):
        return sparse_steps.measure(settings, arguments.variants, arguments.workers)


def table(results: Sequence[Result]) -> str:
    """Means over the seeds: the loss, its ratio to the plain loop's, how far the ratios lie apart, the bytes."""
    plain = {result.seed: result.loss for result in results if result.variant == "plain"}
    lines = [f"{'variant':32} {'loss':>7} {'to plain':>9} {'lowest':>7} {'highest':>8} {'MB a step':>10}"]
    for name in dict.fromkeys(result.variant for result in results):
        own = [result for result in results if result.variant == name]
        ratios = [result.loss / plain.get(result.seed, math.nan) for result in own]
        loss, ratio = statistics.fmean(result.loss for result in own), statistics.fmean(ratios)
        numbers = f"{loss:7.4f} {ratio:9.4f} {min(ratios):7.4f} {max(ratios):8.4f} {own[0].bytes_per_step / 1e6:10.3f}"
        lines.append(f"{name:32} {numbers}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Held-out loss after the same samples, for each way to train")
    parser.add_argument("--run", type=Path, metavar="RUN.toml", help="a recipe instead of a small ALBERT on --text")
    parser.add_argument("--overrides", type=Path, metavar="FILE.toml", help="with --run")
    parser.add_argument("--text", type=Path, nargs="+", default=(small_text(),), help="folders (default: the demo's)")
    parser.add_argument("--pipeline", action="store_true", help="a small decoder in three stages")
    parser.add_argument("--decoder", action="store_true", help="a small decoder and AdamW instead of ALBERT and LAMB")
    parser.add_argument("--sparse", action="store_true", help="a small decoder in local steps that go up sparse")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8], help="with --sparse, powers of two")
    parser.add_argument("--samples", type=int, default=64, help="with --sparse, of a global batch")
    parser.add_argument("--local-steps", type=int, default=15, help="with --sparse, between two exchanges")
    parser.add_argument(
        "--steps", type=int, help="global batches without --run (400; --decoder, --pipeline: 300; --sparse: 1200)"
    )
    parser.add_argument(
        "--rate", type=float, help="LAMB's (0.005), or AdamW's (--decoder, --pipeline: 0.003; --sparse: 0.006)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="for weights and order of the text")
    parser.add_argument("--variants", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument(
        "--optimizer-state", choices=["float32", "8bit"], default="float32", help="try this one beside float32"
    )
    parser.add_argument("--folder", type=Path, help="keep the prepared text and the tokenizer here, or find them here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    arguments = parser.parse_args()
    known: Sequence[str] = list(PIPELINED if arguments.pipeline else VARIANTS)
    if arguments.sparse:
        known = [*sparse_steps.LOCAL, sparse_steps.GRADIENTS]
    arguments.variants = arguments.variants or known
    if unknown := set(arguments.variants).difference(known):
        parser.error(f"no variant {min(unknown)!r}; choose from: {', '.join(known)}")
    if arguments.run and (arguments.pipeline or arguments.sparse):
        parser.error("--pipeline and --sparse have a run of their own; leave --run out")
    results: Sequence[Result | sparse_steps.Result]
    if arguments.sparse:
        results = found = with_sparse_steps(arguments)
        print(sparse_steps.table(found))
    elif arguments.run:
        recipe = load_run(arguments.run, arguments.overrides)
        if not Path(str(recipe.task.options["tokenizer"])).exists():
            prepare_tokenizer(recipe)
        runs = {seed: recipe.model_copy(update={"seed": seed}) for seed in arguments.seeds}
        results = trained = measure_all(runs, arguments)
        print(table(trained))
    else:
        results = trained = with_small_model(arguments)
        print(table(trained))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
