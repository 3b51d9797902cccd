"""What sending activations in few bits, and gradients that are a step old, cost a model that is cut into stages.

All stages are in this process and take turns, so nothing depends on timing; what travels is packed and unpacked by the
codec that peers use. One process computes the same loss with the same parameters: they are shared. In both the norm of
the gradient is bounded for each stage by itself, as peers of a stage do it, who do not know the others' gradients.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dedloc_kit.config.loading import local, parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.task import Batch, StageTask, Task
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.schedule import learning_rate
from dedloc_kit.swarm.remote import activations

LAYERS, STAGES = 6, 3
MICROBATCH, MICROBATCHES = 8, 4
"""Samples, and how many of these there are in a step."""


@dataclass(frozen=True)
class Travel:
    """How hidden states and their gradients travel."""

    arrived: Callable[[Tensor], Tensor]
    """What they are then."""
    size: Callable[[Sequence[int]], int]
    """The bytes of a tensor of this shape."""


@dataclass(frozen=True)
class Pipelined:
    """A way to train."""

    travel: Travel | None = None
    """None: one process that holds the whole model."""
    overlap: bool = False
    """A gradient is applied when the next one has been computed: it is one global step old."""
    one_norm: bool = False
    """The norm of the whole gradient is bounded, as where a model is not cut."""


def in_4_bits(values: Tensor) -> Tensor:
    """With one scale for a token's channels, which the package does not do."""
    scales = values.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / 7
    return values.div(scales).round_().mul_(scales)


FLOAT32 = Travel(lambda values: values, lambda shape: 4 * math.prod(shape))
FLOAT16 = Travel(lambda values: values.half().float(), lambda shape: 2 * math.prod(shape))
EIGHT_BITS = Travel(lambda values: activations.unpack(activations.pack(values), values.shape), activations.size)
FOUR_BITS = Travel(in_4_bits, lambda shape: math.prod(shape) // 2 + 2 * math.prod(shape[:-1]))
PIPELINED = {
    "plain": Pipelined(),
    "plain, one norm": Pipelined(one_norm=True),
    "plain, overlapped": Pipelined(overlap=True),
    "exact": Pipelined(FLOAT32),
    "exact, overlapped": Pipelined(FLOAT32, overlap=True),
    "float16": Pipelined(FLOAT16),
    "8bit": Pipelined(EIGHT_BITS),
    "8bit, overlapped": Pipelined(EIGHT_BITS, overlap=True),
    "4bit": Pipelined(FOUR_BITS),
}


class Stages:
    """The stages of a run's model with an optimizer each, and the whole of them."""

    def __init__(self, run: RunConfig, task: Task) -> None:
        assert run.pipeline is not None
        self.run, self.task, self.step = run, task, 0
        self.stages: list[StageTask] = [task.stage(number) for number in range(run.pipeline.count)]
        self.parts = [stage.model() for stage in self.stages]
        self.whole = task.whole(self.parts)
        self.optimizers: list[Any] = [
            build_optimizer(run.optimizer, stage.groups(part))
            for stage, part in zip(self.stages, self.parts, strict=True)
        ]

    def add_gradients(self, batch: Batch, scale: float, travel: Travel) -> int:
        """Of a microbatch, as peers compute them; returns the bytes that travelled from stage to stage."""
        inputs: list[Tensor | None] = [None]
        with torch.no_grad():
            for stage, part in zip(self.stages[:-1], self.parts, strict=False):
                inputs.append(travel.arrived(stage.forward(part, inputs[-1], _taken(stage, batch))))
        gradient, sent = torch.tensor(scale), 0
        for stage, part, hidden in reversed(list(zip(self.stages, self.parts, inputs, strict=True))):
            if hidden is not None:
                hidden.requires_grad_()
            stage.forward(part, hidden, _taken(stage, batch)).backward(gradient)
            if hidden is not None:
                assert hidden.grad is not None
                gradient, sent = travel.arrived(hidden.grad), sent + 2 * travel.size(hidden.shape)
        return sent

    def take_gradients(self) -> list[list[Tensor | None]]:
        """What has been added, of each stage; there is nothing afterwards."""
        taken = [[parameter.grad for parameter in part.parameters()] for part in self.parts]
        self.whole.zero_grad()
        return taken

    def update(self, gradients: Sequence[Sequence[Tensor | None]], one_norm: bool) -> None:
        """Take a step."""
        for part, own in zip(self.parts, gradients, strict=True):
            for parameter, gradient in zip(part.parameters(), own, strict=True):
                parameter.grad = gradient
        for bounded in [self.whole] if one_norm else self.parts:
            nn.utils.clip_grad_norm_(bounded.parameters(), self.run.optimizer.max_grad_norm)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(self.run.optimizer, self.step)
            optimizer.step()
        self.whole.zero_grad()
        self.step += 1


def train(stages: Stages, variant: Pipelined, steps: Sequence[Sequence[Batch]]) -> int:
    """Train on each step's microbatches; returns the bytes that travelled."""
    sent = 0
    waiting: list[list[list[Tensor | None]]] = []
    for batches in steps:
        for batch in batches:
            if variant.travel is None:
                (stages.task.loss(stages.whole, stages.task.prepare(batch), stages.step).mean / len(batches)).backward()
            else:
                sent += stages.add_gradients(batch, 1 / len(batches), variant.travel)
        waiting.append(stages.take_gradients())
        if len(waiting) > variant.overlap:
            stages.update(waiting.pop(0), variant.one_norm)
    for gradients in waiting:
        stages.update(gradients, variant.one_norm)
    return sent


def pipelined_run(steps: int, rate: float, seed: int) -> RunConfig:
    """A small decoder in three stages. The first weights depend on all of this."""
    size = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
    return parse_run(
        {
            "name": "pipelined",
            "global_batch": MICROBATCH * MICROBATCHES,
            "seed": seed,
            "task": {
                "name": "causal",
                "tokenizer": "./tokenizer",
                "sequence_length": 64,
                "evaluation_samples": 256,
                "model": size,
            },
            "data": {"train": [{"dataset": "./train.parquet"}], "evaluation": {"dataset": "./test.parquet"}},
            "optimizer": {"name": "adamw", "learning_rate": rate, "warmup_steps": steps // 10, "total_steps": steps},
            "averaging": {"overlap": False},
            "pipeline": {"stages": STAGES},
        }
    ).renamed(lambda name: local(name, Path()))


def _taken(stage: StageTask, batch: Batch) -> Batch:
    return {name: batch[name] for name in stage.takes}
