"""A user's own small tensors for frozen layers: LoRA for their linear layers, and prompts in front of them.

`layers.N.PATH.lora_A` [rank, inputs] and `layers.N.PATH.lora_B` [outputs, rank] belong to the linear layer PATH of
layer N of the whole model; `layers.N.prompt` [tokens, hidden] is added to what layer N gets for the first tokens of a
session.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from dedloc_kit.blocks.span import Span
from dedloc_kit.blocks.weights.quantized import QuantizedLinear
from dedloc_kit.records.record import Record

MAX_TENSORS = 4096
MAX_RANK = 512
MAX_PROMPT_TOKENS = 1024
MAX_BYTES = 2**29
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NAME = re.compile(r"layers\.(\d+)\.(?:(.+)\.(lora_[AB])|prompt)", re.ASCII)

_Dimension = Annotated[int, Field(ge=1, le=2**20)]
AdapterTensorName = Annotated[
    str,
    Field(
        max_length=160,
        pattern=r"^layers\.(0|[1-9][0-9]{0,4})\.(prompt|[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*\.lora_[AB])$",
    ),
]


class AdapterTensor(Record):
    """One tensor, before it is there."""

    dtype: Literal["float32", "bfloat16", "float16"]
    shape: Annotated[tuple[_Dimension, _Dimension], Field(strict=False)]  # not strict: a list will do

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * _DTYPES[self.dtype].itemsize


class AdapterForm(Record):
    """What an adapter is like, before any of its tensors are there: all that can be refused is refused by this."""

    scaling: Annotated[float, Field(gt=0, le=1e4)] = 1.0
    """What B A x is multiplied with before it is added."""
    tensors: Annotated[dict[AdapterTensorName, AdapterTensor], Field(min_length=1, max_length=MAX_TENSORS)]

    @model_validator(mode="after")
    def _holds_pairs_within_bounds(self) -> Self:
        for name, tensor in self.tensors.items():
            rows, columns = tensor.shape
            if name.endswith(".prompt"):
                if rows > MAX_PROMPT_TOKENS:
                    raise ValueError(f"{name} has {rows} tokens, more than {MAX_PROMPT_TOKENS}")
                continue
            rank, other = (rows, name[:-1] + "B") if name.endswith("A") else (columns, name[:-1] + "A")
            if rank > MAX_RANK:
                raise ValueError(f"{name} has rank {rank}, more than {MAX_RANK}")
            if other not in self.tensors:
                raise ValueError(f"{name} comes without {other}")
            if name.endswith("A") and self.tensors[other].shape[1] != rank:
                raise ValueError(f"{name} has rank {rank}, {other} has another")
        if self.size > MAX_BYTES:
            raise ValueError(f"an adapter of {self.size} bytes is larger than {MAX_BYTES}")
        return self

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(tensor.size for tensor in self.tensors.values())

    def check(self, span: Span) -> None:
        """Raises ValueError with the first tensor that does not fit these layers; all must."""
        hidden = span.config.hidden_size
        linear = cache(lambda number: linear_layers(layer_of(span, number)))
        for name, tensor in self.tensors.items():
            layer, path, kind = parts(name)
            if not span.begin <= layer < span.end:
                raise ValueError(f"{name} is for none of the layers {span.begin}:{span.end}")
            if path is None:
                wanted = (tensor.shape[0], hidden)
            else:
                if path not in linear(layer):
                    raise ValueError(f"{name}: layer {layer} has no linear layer {path}")
                inputs, outputs = linear(layer)[path]
                wanted = (tensor.shape[0], inputs) if kind == "lora_A" else (outputs, tensor.shape[1])
            if tensor.shape != wanted:
                raise ValueError(f"{name} has the shape {tensor.shape}, this model wants {wanted}")


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter's tensors as they are used; nobody may change them."""

    form: AdapterForm
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], scaling: float = 1.0) -> Self:
        """A copy of these tensors; raises ValueError with the one that cannot be."""
        known = {dtype: name for name, dtype in _DTYPES.items()}
        described = {
            name: {"dtype": known.get(tensor.dtype, str(tensor.dtype)), "shape": tuple(tensor.shape)}
            for name, tensor in tensors.items()
        }
        form = AdapterForm.parse({"scaling": scaling, "tensors": described})
        return cls._checked(form, {name: tensor.detach().clone() for name, tensor in tensors.items()})

    @classmethod
    def unpack(cls, form: AdapterForm, content: bytes, digest: str) -> Self:
        """What `pack` gave; raises ValueError if this is not what the form and digest say, or it is not finite."""
        if len(content) != form.size:
            raise ValueError(f"an adapter of {len(content)} bytes, not of {form.size}")
        if _digest(form, content) != digest:
            raise ValueError("the adapter's hash is another")
        tensors, at, memory = {}, 0, bytearray(content)
        for name, tensor in sorted(form.tensors.items()):
            values = torch.frombuffer(memory, dtype=torch.uint8, count=tensor.size, offset=at).clone()
            tensors[name] = values.view(_DTYPES[tensor.dtype]).view(tensor.shape)
            at += tensor.size
        return cls._checked(form, tensors)

    @classmethod
    def _checked(cls, form: AdapterForm, tensors: Mapping[str, Tensor]) -> Self:
        for name, tensor in tensors.items():
            if not tensor.isfinite().all():
                raise ValueError(f"{name} holds numbers that are not finite")
        return cls(form, tensors)

    def pack(self) -> bytes:
        """The bytes of the tensors, in the order of their names."""
        return b"".join(
            tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            for _, tensor in sorted(self.tensors.items())
        )

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of its form and its bytes: under this it is kept."""
        return _digest(self.form, self.pack())

    def part(self, begin: int, end: int) -> "Adapter | None":
        """What layers [begin, end) need of it; None if it is nothing."""
        names = [name for name in self.tensors if begin <= parts(name)[0] < end]
        if not names:
            return None
        form = AdapterForm(scaling=self.form.scaling, tensors={name: self.form.tensors[name] for name in names})
        return Adapter(form, {name: self.tensors[name] for name in names})


def parts(name: str) -> tuple[int, str | None, str]:
    """Of a tensor: its layer, its linear layer there, and whether it is `lora_A`, `lora_B` or `prompt`."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r:.80} is no name of an adapter's tensor")
    return int(found[1]), found[2], found[3] or "prompt"


def layer_of(span: Span, layer: int) -> nn.Module:
    """A layer by its number in the whole model."""
    return span.base.get_submodule(f"{span.layout.path}.{layer - span.begin}")  # type: ignore[no-any-return]


def linear_layers(layer: nn.Module) -> dict[str, tuple[int, int]]:
    """The inputs and outputs of those within a layer, by their names there."""
    found = {}
    for path, module in layer.named_modules():
        if isinstance(module, nn.Linear | QuantizedLinear):
            found[path] = (module.in_features, module.out_features)
        elif isinstance(module, Conv1D):
            found[path] = (module.nx, module.nf)
    return found


def _digest(form: AdapterForm, content: bytes) -> str:
    ordered = sorted((name, tensor.dtype, tensor.shape) for name, tensor in form.tensors.items())
    return hashlib.sha256(f"{form.scaling!r} {ordered!r}\n".encode() + content).hexdigest()
