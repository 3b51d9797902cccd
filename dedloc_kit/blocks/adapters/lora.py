"""The adapter that a user trains for a model whose layers are elsewhere."""

import hashlib
import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from dedloc_kit.blocks.adapters.adapters import MAX_PROMPT_TOKENS, MAX_RANK, Adapter, layer_of, linear_layers
from dedloc_kit.blocks.span import Span
from dedloc_kit.errors import UserError
from dedloc_kit.records.record import Record


class LoraConfig(Record):
    """What is to be trained."""

    rank: Annotated[int, Field(ge=1, le=MAX_RANK)] = 8
    alpha: Annotated[float, Field(gt=0, le=1e4)] = 16.0
    """What LoRA adds is multiplied with alpha / rank."""
    target_modules: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Which linear layers get it: by the end of their names, such as `q_proj`, in all layers."""
    prompt_tokens: Annotated[int, Field(ge=0, le=MAX_PROMPT_TOKENS)] = 0
    """How long the prompt before each layer is."""

    @model_validator(mode="after")
    def _trains_something(self) -> Self:
        if not self.target_modules and not self.prompt_tokens:
            raise ValueError("nothing would be trained; give target_modules or prompt_tokens")
        return self


class TrainableAdapter(nn.Module):
    """The tensors of an adapter as parameters, in float32, by their names: `named`."""

    def __init__(self, tensors: Mapping[str, Tensor], scaling: float) -> None:
        super().__init__()
        self.scaling = scaling
        self._names = list(tensors)
        self._tensors = nn.ParameterList(tensor.detach().float().clone() for tensor in tensors.values())

    @property
    def named(self) -> dict[str, nn.Parameter]:
        return dict(zip(self._names, self._tensors, strict=True))

    def adapter(self) -> Adapter:
        """As they are now; raises ValueError if one is not finite any more."""
        return Adapter.of(self.named, self.scaling)


def new_adapter(config: LoraConfig, model_config: Any, seed: int = 0) -> TrainableAdapter:
    """One that changes nothing yet, for all layers of a model; raises UserError if a target is in none of them."""
    span = Span(model_config, 0, model_config.num_hidden_layers)
    tensors: dict[str, Tensor] = {}
    used: set[str] = set()
    there: set[str] = set()
    for number in range(span.end):
        if config.prompt_tokens:
            tensors[f"layers.{number}.prompt"] = torch.zeros(config.prompt_tokens, span.config.hidden_size)
        for path, (inputs, outputs) in linear_layers(layer_of(span, number)).items():
            there.add(path)
            ends = {target for target in config.target_modules if f".{path}".endswith(f".{target}")}
            used |= ends
            if ends:
                name = f"layers.{number}.{path}.lora_"
                bound = 1 / math.sqrt(inputs)  # as peft
                drawn = torch.empty(config.rank, inputs)
                tensors[f"{name}A"] = drawn.uniform_(-bound, bound, generator=_generator(seed, name))
                tensors[f"{name}B"] = torch.zeros(outputs, config.rank)
    if missing := sorted(set(config.target_modules) - used):
        raise UserError(
            f"no layer of {model_config.model_type} has a linear layer {missing[0]!r:.80}; there are: "
            f"{', '.join(sorted(there))}"
        )
    return TrainableAdapter(tensors, config.alpha / config.rank)


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
