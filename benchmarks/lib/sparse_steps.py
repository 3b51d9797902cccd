"""What sparse steps cost in loss: workers take local steps alone, and now and then send few of what these changed.

One global batch of the same text for all, dealt to so many workers; so all see the same tokens, and AdamW alone takes
one step with the whole batch where the workers take one each with their part. Nobody reaches the workers, as behind
most routers: the coordinator alone reduces, has no samples, and nothing of a worker's gets there but what it sends.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.lib.learner import Learner
from dedloc_kit.config.loading import local, parse_run
from dedloc_kit.config.optimizer import OptimizerConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.learning.task import Batch, create_task
from dedloc_kit.learning.tasks.batches import batches_of
from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.learning.train.optim.outer import NesterovSGD
from dedloc_kit.swarm.allreduce.encoding.codec import Codec, codec_of
from dedloc_kit.swarm.allreduce.encoding.compression import Blockwise8Bit, ChunkCompression, Float16
from dedloc_kit.swarm.allreduce.encoding.feedback import Feedback
from dedloc_kit.swarm.allreduce.encoding.sparse import Sparse


@dataclass(frozen=True)
class Settings:
    """Of all ways to train.

    :ivar samples: of a global batch
    :ivar inner: local steps between two exchanges
    """

    steps: int
    samples: int
    inner: int
    rate: float
    seed: int

    def run(self, optimizer: str) -> RunConfig:
        """A small decoder. The first weights depend on all of this, but not on the optimizer."""
        size = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4}
        run = parse_run(
            {
                "name": "sparse",
                "global_batch": self.samples,
                "seed": self.seed,
                "task": {
                    "name": "causal",
                    "tokenizer": "./tokenizer",
                    "sequence_length": 64,
                    "evaluation_samples": 512,
                    "model": size,
                },
                "data": {"train": [{"dataset": "./train.parquet"}], "evaluation": {"dataset": "./test.parquet"}},
                "optimizer": {
                    "name": "adamw",
                    "learning_rate": self.rate,
                    "warmup_steps": self.steps // 10,
                    "total_steps": self.steps,
                },
                "averaging": {"mode": "local-steps"},
            }
        )
        run = run.renamed(lambda name: local(name, Path()))
        said = {**run.optimizer.model_dump(exclude_unset=True), "name": optimizer}
        return run.model_copy(update={"optimizer": OptimizerConfig.model_validate(said)})


class TwoBits(ChunkCompression):
    """Two levels of either sign for each block of 128: what a reducer could send, and the package does not."""

    tag = "two bits"
    block = 128

    def byte_count(self, numel: int) -> int:
        return -(-numel // self.block) * (4 + self.block // 4)

    def _pack(self, values: Tensor) -> bytes:
        rows = torch.nn.functional.pad(values, (0, -values.numel() % self.block)).view(-1, self.block).numpy()
        sizes = np.abs(rows)
        high = sizes > sizes.mean(1, keepdims=True)
        large = np.where(high, sizes, 0).sum(1) / np.maximum(high.sum(1), 1)
        small = np.where(high, 0, sizes).sum(1) / np.maximum((~high).sum(1), 1)
        levels = (np.stack([small, large], 1).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return levels.tobytes() + np.packbits(np.stack([high, rows < 0], 2).reshape(len(rows), -1)).tobytes()

    def _check(self, buffer: bytes, numel: int) -> None:
        """All that comes is this process's own."""

    def _unpack(self, buffer: bytes, chunk: Tensor) -> None:
        blocks = -(-chunk.numel() // self.block)
        levels = (np.frombuffer(buffer, np.uint16, 2 * blocks).astype(np.uint32) << 16).view(np.float32)
        bits = np.unpackbits(np.frombuffer(buffer, np.uint8, offset=4 * blocks)).reshape(blocks, self.block, 2)
        sizes = np.take_along_axis(levels.reshape(blocks, 2), bits[:, :, 0].astype(np.int64), 1)
        values = np.where(bits[:, :, 1] == 1, -sizes, sizes).ravel()
        chunk.copy_(torch.from_numpy(values[: chunk.numel()]))


class Denser(Sparse):
    """Twice as many numbers of a block."""

    kept = 128


class Densest(Sparse):
    """Eight times as many."""

    kept = 512


@dataclass(frozen=True)
class Local:
    """A way to take local steps."""

    codec: Codec
    feedback: bool = True
    decay: float = 1.0
    """Of what is still to be sent, from round to round (SparseLoCo: 0.95)."""
    outer_rate: float = 1.0
    outer_momentum: float = 0.0
    optimizer: str = "adamw"


def _codec(up: ChunkCompression, down: ChunkCompression) -> Codec:
    return Codec(up, down, Float16(), Blockwise8Bit())


_NONE, _SPARSE, _4BIT = codec_of("none"), codec_of("sparse"), codec_of("4bit")
LOCAL: Mapping[str, Local] = {
    "dense": Local(_NONE, outer_rate=0.7, outer_momentum=0.9),
    "dense, 4bit": Local(_4BIT, outer_rate=0.7, outer_momentum=0.9),
    "dense, plain mean": Local(_NONE),
    "sparse": Local(_SPARSE),
    "sparse up, exact down": Local(_codec(Sparse(), _NONE.averages)),
    "sparse up, sparse down": Local(_codec(Sparse(), Sparse())),
    "sparse up, 2bit down": Local(_codec(Sparse(), TwoBits())),
    "sparse, decay 0.95": Local(_SPARSE, decay=0.95),
    "sparse, twice as dense": Local(_codec(Denser(), _4BIT.averages)),
    "sparse, 8 times as dense": Local(_codec(Densest(), _4BIT.averages)),
    "sparse, outer 0.7 and 0.9": Local(_SPARSE, outer_rate=0.7, outer_momentum=0.9),
    "sparse, outer 0.9 and 0.5": Local(_SPARSE, outer_rate=0.9, outer_momentum=0.5),
    "sparse without feedback": Local(_SPARSE, feedback=False),
    "dense, Muon": Local(_NONE, outer_rate=0.7, outer_momentum=0.9, optimizer="muon"),
    "sparse, Muon": Local(_SPARSE, optimizer="muon"),
}

EXACT = Local(_4BIT)
"""Of gradients, in place of local steps."""
GRADIENTS = "4bit gradients"


class Star:
    """The all-reduce of workers whom nobody reaches and a coordinator who has nothing of its own, without a network."""

    def __init__(self, layout: FlatLayout, local: Local, workers: int) -> None:
        self._local, self._workers = local, workers
        self._layout = layout
        (self._pieces,) = layout.chunks([layout.size])
        self._sent = [Feedback(layout.size) for _ in range(workers)]
        self._averaged = Feedback(layout.size)
        self.exchanges = self.up_bytes = self.down_bytes = 0
        """How many there were, and the bytes of one worker in all of them."""

    def average(self, vectors: Sequence[Tensor]) -> Tensor:
        """The mean of the workers' vectors, as all of them decode it."""
        both = (*self._sent, self._averaged)
        self.exchanges += 1
        for feedback in both:
            feedback.begin(1.0)
        average = torch.empty(self._layout.size)
        for begin, end in self._pieces:
            codec, small = self._local.codec, begin >= self._layout.large
            up, down = (codec.small,) * 2 if small else (codec.gradients, codec.averages)
            total = torch.zeros(end - begin)
            for sent, vector in zip(self._sent, vectors, strict=True):
                message = sent.encode(up, vector[begin:end], begin)
                total += up.extract(message)
            self.up_bytes += message.ByteSize()
            self.down_bytes += self._averaged.encode(down, total / self._workers, begin, average[begin:end]).ByteSize()
        if self._local.feedback:
            for feedback in both:
                feedback.commit()
                if feedback.residual is not None:
                    feedback.residual.mul_(self._local.decay)
        return average


@dataclass
class Result:
    """What came of one way to train, with the bytes of one worker for each parameter and exchange."""

    variant: str
    workers: int
    loss: float
    up: float = 0.0
    down: float = 0.0


def measure(settings: Settings, names: Sequence[str], workers: Sequence[int]) -> list[Result]:
    """Train in every way from the same weights on the same batches: AdamW alone first, then as many workers as each."""
    run = settings.run("adamw")
    task = create_task(run)
    steps = list(islice(batches_of(run, task, settings.samples, seed_of(run.run_id, "text"), print), settings.steps))
    results = []
    for name, count in [("AdamW alone", 1), *product(names, workers)]:
        local = LOCAL.get(name, EXACT)
        learner = Learner(settings.run(local.optimizer), task)
        star = Star(learner.layout, local, count)
        if name in LOCAL:
            train(learner, local, star, steps, count, settings.inner)
        else:
            together(learner, star if name == GRADIENTS else None, steps, count)
        exchanges = learner.layout.size * max(1, star.exchanges)
        results.append(
            Result(
                name, count, task.evaluate(learner.model).loss, star.up_bytes / exchanges, star.down_bytes / exchanges
            )
        )
        found = results[-1]
        print(f"{name:32} {count:2} workers  {found.loss:.4f} {found.up:7.4f} {found.down:7.4f}", flush=True)
    return results


def table(results: Sequence[Result]) -> str:
    """The losses, over AdamW alone and over dense local steps of as many workers."""
    alone = results[0].loss
    dense = {result.workers: result.loss for result in results if result.variant == "dense"}
    lines = [f"{'variant':32} {'workers':>7} {'loss':>7} {'to AdamW':>9} {'to dense':>9} {'up':>7} {'down':>7}"]
    for each in results:
        to_dense = f"{each.loss / dense[each.workers]:9.4f}" if each.workers in dense else " " * 9
        lines.append(
            f"{each.variant:32} {each.workers:7} {each.loss:7.4f} {each.loss / alone:9.4f} {to_dense} "
            f"{each.up:7.4f} {each.down:7.4f}"
        )
    return "\n".join([*lines, "up and down: bytes of a worker for each parameter and exchange"])


def together(learner: Learner, star: Star | None, steps: Sequence[Batch], workers: int) -> None:
    """One step with the whole of each batch; with a star, on the mean of the workers' gradients as they travel."""
    for batch in steps:
        if star is None:
            learner.task.loss(learner.model, learner.task.prepare(batch), learner.step).mean.backward()
        else:
            gradients = [learner.gradient(part_of(batch, number, workers)) for number in range(workers)]
            learner.set_gradient(star.average(gradients))
        learner.update()


def train(learner: Learner, local: Local, star: Star, steps: Sequence[Batch], workers: int, inner: int) -> None:
    """Every worker takes `inner` steps on its part of each batch, then all take one along the mean of their changes."""
    peers = [copy.deepcopy(learner) for _ in range(workers)]
    outer = NesterovSGD(learner.parameters, local.outer_rate, local.outer_momentum)
    for first in range(0, len(steps), inner):
        common = learner.weights()
        for number, peer in enumerate(peers):
            peer.set_weights(common)
            for batch in steps[first : first + inner]:
                peer.task.loss(
                    peer.model, peer.task.prepare(part_of(batch, number, workers)), peer.step
                ).mean.backward()
                peer.update()
        learner.set_gradient(star.average([common - peer.weights() for peer in peers]))
        outer.step()


def part_of(batch: Batch, number: int, count: int) -> Batch:
    """One of so many equal parts of a batch."""
    return {name: tensor.chunk(count)[number] for name, tensor in batch.items()}
