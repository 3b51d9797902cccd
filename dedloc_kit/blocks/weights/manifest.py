"""What a model's weights are: every tensor of its checkpoint with its file and hash. Whoever has the manifest can take
a tensor from anybody."""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from safetensors import SafetensorError, safe_open
from torch import Tensor, uint8

from dedloc_kit.errors import UserError
from dedloc_kit.records.record import Record
from dedloc_kit.validation import describe

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_TENSORS = 200_000
"""Some models have one for each matrix of each expert."""
MAX_BYTES = 2**26
"""Of a manifest or an index as JSON."""
_MAX_MODEL_BYTES = 2**43
_BYTES = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1},
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1},
}
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")

TensorName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,255}$")]
ShardName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\.safetensors$")]
"""Of a file that lies directly in the model's folder."""


class StoredTensor(Record):
    """One tensor of a checkpoint, as it is stored."""

    file: ShardName
    dtype: Literal[tuple(_BYTES)]  # type: ignore[valid-type]
    """As safetensors writes it."""
    shape: Annotated[tuple[Annotated[int, Field(ge=0, le=2**38)], ...], Field(max_length=8)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Of its bytes in the file."""

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * _BYTES[self.dtype]


class Manifest(Record):
    """The weights of a model."""

    tensors: Annotated[dict[TensorName, StoredTensor], Field(min_length=1, max_length=MAX_TENSORS)]
    """By their names in the checkpoint."""

    @model_validator(mode="after")
    def _is_no_absurd_model(self) -> Self:
        if self.size > _MAX_MODEL_BYTES:
            raise ValueError(f"a model of {self.size} bytes is larger than any that is read")
        return self

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Of what `canonical` gives; raises ValueError with the field that is wrong."""
        if len(text) > MAX_BYTES:
            raise ValueError(f"a manifest of {len(text)} bytes is too large")
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ValueError(f"Manifest: {describe(error, cls)}") from None

    def canonical(self) -> str:
        """As JSON with sorted keys."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the canonical form: it names the weights."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    @cached_property
    def size(self) -> int:
        """In bytes, as the weights are stored."""
        return sum(tensor.size for tensor in self.tensors.values())


class _Index(Record):
    """What is read of an index: in which file each tensor is."""

    weight_map: Annotated[dict[TensorName, ShardName], Field(min_length=1, max_length=MAX_TENSORS)]


def describe_folder(folder: Path) -> Manifest:
    """The manifest of the safetensors in a folder, all of which are read.

    Raises UserError if there are none, the index is wrong, or a file is damaged.
    """
    wanted = weight_files(folder)
    tensors: dict[str, Any] = {}
    for shard, listed in sorted(wanted.items()):
        with opened(folder / shard) as file:
            names = set(file.keys())
            if missing := sorted((listed or names) - names):
                raise UserError(f"{folder / INDEX} names {missing[0]!r:.80} in {shard}, which has no such tensor")
            for name in sorted(listed or names):
                dtype, shape = stored_as(file, name)
                tensors[name] = {"file": shard, "dtype": dtype, "shape": shape}
                tensors[name]["sha256"] = sha256(file.get_tensor(name))
    try:
        return Manifest.parse({"tensors": {name: StoredTensor.parse(values) for name, values in tensors.items()}})
    except ValueError as error:
        raise UserError(f"the weights in {folder} cannot be described ({error})") from None


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A file of safetensors, of which only what is asked for is read; raises UserError if it is missing or damaged."""
    try:
        path.open("rb").close()  # safetensors reports a file that is missing or forbidden less clearly
        with safe_open(path, framework="pt") as file:
            yield file
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error})") from None
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}); get it again from where the model is from") from None


def stored_as(file: Any, name: str) -> tuple[str, tuple[int, ...]]:
    """The dtype and shape of a tensor by the file's own head."""
    part = file.get_slice(name)
    return part.get_dtype(), tuple(part.get_shape())


def places(path: Path) -> dict[str, tuple[int, int]]:
    """Where in a file of safetensors each tensor's bytes begin and end; raises UserError if it is damaged."""
    with opened(path) as file:
        names = set(file.keys())  # the library has checked the whole head
    with path.open("rb") as raw:
        length = int.from_bytes(raw.read(8), "little")
        head = json.loads(raw.read(length))
    return {
        name: (8 + length + begin, 8 + length + end) for name in names for begin, end in [head[name]["data_offsets"]]
    }


def sha256(tensor: Tensor) -> str:
    """Of a tensor's bytes."""
    return hashlib.sha256(tensor.reshape(-1).view(uint8).numpy().data).hexdigest()


def weight_files(folder: Path) -> dict[str, set[str] | None]:
    """The files with a model's weights, each with the tensors that the index says are in it; none: all of them.

    Raises UserError if there are none or the index is wrong.
    """
    if (folder / SINGLE).is_file():
        return {SINGLE: None}
    if not (folder / INDEX).is_file():
        if any(next(folder.glob(pattern), None) for pattern in _PICKLES):
            raise UserError(
                f"{folder} has no weights in safetensors, and others are not read, for they may hold code; load the "
                "model with transformers, write it with save_pretrained, and name that folder"
            )
        raise UserError(f"{folder} holds no weights: there is neither {SINGLE} nor {INDEX}")
    shards: dict[str, set[str] | None] = {}
    for shard, group in groupby(sorted(_index(folder / INDEX).items(), key=itemgetter(1)), key=itemgetter(1)):
        shards[shard] = {name for name, _ in group}
    return shards


def _index(path: Path) -> dict[str, str]:
    """In which file each tensor is."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError("it is too large")
        values = json.loads(path.read_text(encoding="utf-8"))
        return _Index.parse({"weight_map": values.get("weight_map") if isinstance(values, dict) else None}).weight_map
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no index of a model's weights ({error})") from None
