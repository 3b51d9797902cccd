"""What of a model this machine can hold, and how fast it is."""

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from dedloc_kit.blocks.architecture import Layout, skeleton
from dedloc_kit.blocks.past import Past
from dedloc_kit.blocks.plans.plan import MAX_SPEED
from dedloc_kit.blocks.span import CachedSpan, Span
from dedloc_kit.blocks.weights.manifest import Manifest
from dedloc_kit.blocks.weights.quantized import is_linear
from dedloc_kit.errors import UserError
from dedloc_kit.serving.config import WeightFormat

MEMORY_SHARE = 0.7
"""Of the memory that is free now: others need some, and activations of prompts and of training."""
_BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.05, "int4": 0.6}
"""Of a number in the weights with its part of the scales."""
_ROUNDS, _PROMPT = 5, 64
_TRIAL_SECONDS = 0.1


@dataclass(frozen=True)
class Sizes:
    """Bytes of one layer."""

    stored: int
    """As the model's files have it."""
    held: int
    """In the server's format."""
    cache: int
    """For each token that it remembers."""

    @classmethod
    def of(cls, config: Any, manifest: Manifest, form: WeightFormat) -> "Sizes":
        """Of the model's largest layer."""
        whole = skeleton(config)
        layout = Layout.of(whole)
        stored = Counter[int]()
        for name, tensor in manifest.tensors.items():
            if found := layout.layer_of(name):
                stored[found[0]] += tensor.size
        if not stored:
            raise UserError("the weights have no tensors of layers; are they this model's?")
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        number = 2 if form == "bfloat16" else 4
        layers = whole.base_model.get_submodule(layout.path)
        held = max(sum(_held(module, form, number) for module in layer.modules()) for layer in layers)
        return cls(max(stored.values()), int(held), 2 * heads * size * number)


def _held(module: Any, form: WeightFormat, number: int) -> float:
    """Bytes of a module's own tensors: only linear layers' weights have few bits, merged experts for example do not."""
    held = 0.0
    for name, values in module.named_parameters(recurse=False):
        held += values.numel() * (_BYTES[form] if name == "weight" and is_linear(module) else number)
    return held


def layers_that_fit(sizes: Sizes, cache_tokens: int) -> int:
    """How many layers with their caches; raises UserError if there is not even room for one."""
    free = psutil.virtual_memory().available * MEMORY_SHARE
    count = int(free // (sizes.held + cache_tokens * sizes.cache))
    if count < 1:
        raise UserError(
            f"one layer with {cache_tokens} tokens takes {(sizes.held + cache_tokens * sizes.cache) / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB of this machine's memory can be used; free some, or lower --weights or --cache-tokens"
        )
    return count


def has_room(sizes: Sizes, layers: int) -> bool:
    """Whether so many layers fit beside what is held already, without further caches."""
    return psutil.virtual_memory().available * MEMORY_SHARE >= layers * sizes.held


def guessed_speed(sizes: Sizes, layers: int) -> float:
    """Tokens a second one by one, before anything is loaded: a token takes as long as reading the weights."""
    width = 1024
    weights, row = torch.ones(width, width), torch.ones(width)
    began, read = time.perf_counter(), 0
    while time.perf_counter() < began + _TRIAL_SECONDS:
        torch.mv(weights, row)
        read += 4 * width * width
    seconds = (time.perf_counter() - began) * sizes.held * layers / read
    return min(MAX_SPEED, 1 / seconds)


@dataclass(frozen=True)
class Speeds:
    """Tokens a second through all layers of a span."""

    decoding: float
    prompts: float
    passes: float
    """Forward and backward."""


def measured(span: Span, dtype: torch.dtype) -> Speeds:
    """Of a span that is loaded; takes some seconds for a large one."""
    prompt = torch.randn(1, _PROMPT, span.config.hidden_size, generator=torch.Generator().manual_seed(0)).to(dtype)
    positions = torch.arange(_PROMPT + _ROUNDS)[None]
    session = CachedSpan(span)
    took = [_seconds(lambda: session(prompt, None, positions[:, :_PROMPT], Past(0))) for _ in range(2)]
    tokens = []
    for n in range(_PROMPT, _PROMPT + _ROUNDS):
        place = positions[:, n : n + 1]
        tokens.append(_seconds(lambda n=n, place=place: session(prompt[:, :1], None, place, Past(n))))

    def pass_through() -> None:
        given = prompt.detach().requires_grad_()
        span.forward(given, None, positions[:, :_PROMPT]).sum().backward()

    def speed(count: int, seconds: float) -> float:
        return min(MAX_SPEED, count / max(seconds, 1e-9))

    return Speeds(
        speed(1, sorted(tokens)[_ROUNDS // 2]), speed(_PROMPT, min(took)), speed(_PROMPT, _seconds(pass_through))
    )


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
