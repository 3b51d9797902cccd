"""A model's tensors, a part at a time: read from safetensors, changed where GGUF has another form, encoded."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open

from dedloc_kit.blocks.weights.manifest import weight_files
from dedloc_kit.errors import UserError

Kind = Literal["f32", "f16", "q8_0"]
"""How numbers are stored: 4 bytes, 2 bytes, or 8 bits in blocks of 32 with a scale each."""
Floats = npt.NDArray[np.float32]

_READ = {"F32", "F16", "BF16"}
_BLOCK = 32
_PART = 2**20
"""Numbers that are held at once."""
_LARGEST_F16 = float(np.finfo(np.float16).max)
_TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}


@dataclass(frozen=True)
class Tensor:
    """One tensor of a GGUF file: `(source + shift) * scale`, with its rows in another order if `pairs` says so."""

    name: str
    source: str
    """In the checkpoint."""
    shape: tuple[int, ...]
    shift: float = 0.0
    scale: float = 1.0
    pairs: int = 0
    """The size of a head whose rows i and i + pairs / 2 come to stand side by side; none if 0."""

    def kind(self, wanted: Kind) -> Kind:
        """Vectors stay in float32; rows that are no whole blocks have no 8-bit form."""
        if len(self.shape) == 1:
            return "f32"
        return "f16" if wanted == "q8_0" and self.shape[-1] % _BLOCK else wanted

    def type(self, wanted: Kind) -> gguf.GGMLQuantizationType:
        return _TYPES[self.kind(wanted)]

    def bytes(self, wanted: Kind) -> int:
        """In the GGUF file."""
        count = int(np.prod(self.shape))
        match self.kind(wanted):
            case "f32":
                return 4 * count
            case "f16":
                return 2 * count
            case "q8_0":
                return count // _BLOCK * (_BLOCK + 2)


class Weights:
    """The tensors of a folder. Nothing is read before it is asked for."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        """
        :param tensors: by name, slices of `safetensors`
        """
        self._tensors = tensors
        self.shapes = {name: tuple(part.get_shape()) for name, part in tensors.items()}

    def check(self, tensors: list[Tensor], ignored: set[str]) -> None:
        """Raise UserError unless the folder has exactly these tensors and perhaps ignored ones, of their shapes."""
        wanted = {tensor.source: tensor.shape for tensor in tensors}
        for name, shape in wanted.items():
            if name not in self.shapes:
                raise UserError(f"the model lacks the weight {name}; export it again")
            if self.shapes[name] != shape:
                raise UserError(
                    f"{name} has the shape {self.shapes[name]}, and by config.json {shape}; export it again"
                )
            if (stored := self._tensors[name].get_dtype()) not in _READ:
                raise UserError(f"{name} is stored as {stored!r:.20}, not in floating point; load and save the model")
        if unknown := sorted(self.shapes.keys() - wanted.keys() - ignored):
            raise UserError(
                f"the model has the weight {unknown[0]!r:.120}, which llama.cpp does not know; export it with --to "
                "transformers"
            )

    def encoded(self, tensor: Tensor, wanted: Kind) -> Iterator[bytes]:
        """The bytes of a tensor for a GGUF file, part by part.

        Raises UserError if a number is not finite, or too large for the kind, or the file is damaged.
        """
        width = int(np.prod(tensor.shape[1:]))
        unit = tensor.pairs or 1
        rows = max(1, _PART // (width * unit)) * unit
        for begin in range(0, tensor.shape[0], rows):
            part = self._read(tensor.source, begin, min(begin + rows, tensor.shape[0]))
            if tensor.pairs:
                part = _paired(part, tensor.pairs)
            if tensor.shift or tensor.scale != 1.0:
                part = (part + np.float32(tensor.shift)) * np.float32(tensor.scale)
            yield _encoded(part, tensor, tensor.kind(wanted)).tobytes()

    def _read(self, name: str, begin: int, end: int) -> Floats:
        try:
            part: torch.Tensor = self._tensors[name][begin:end]
        except SafetensorError as error:
            raise UserError(f"the weight {name} cannot be read ({error}); export the model again") from None
        found: Floats = part.to(torch.float32).numpy()
        if not np.isfinite(found).all():
            raise UserError(f"the weight {name} holds numbers that are not finite; export an earlier checkpoint")
        return found


@contextmanager
def opened(folder: Path) -> Iterator[Weights]:
    """The weights in a folder of transformers; raises UserError if there are none or a file is damaged."""
    tensors: dict[str, Any] = {}
    with ExitStack() as files:
        for shard, listed in sorted(weight_files(folder).items()):
            path = folder / shard
            try:
                path.open("rb").close()  # safetensors reports a file that is missing or forbidden less clearly
                file = files.enter_context(safe_open(path, framework="pt"))
            except OSError as error:
                raise UserError(f"{path} cannot be read ({error.strerror or error})") from None
            except SafetensorError as error:
                raise UserError(f"{path} is damaged ({error}); export the model again") from None
            names = set(file.keys())
            if missing := sorted((listed or names) - names):
                raise UserError(f"{path} has no tensor {missing[0]!r:.120}, though the index says so; export it again")
            tensors |= {name: file.get_slice(name) for name in listed or names}
        yield Weights(tensors)


def _paired(rows: Floats, head: int) -> Floats:
    """Rows of heads whose halves rotate against each other, as rows whose neighbours do."""
    halves = rows.reshape(-1, 2, head // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def _encoded(part: Floats, tensor: Tensor, kind: Kind) -> npt.NDArray[Any]:
    largest = float(np.abs(part).max(initial=0.0))
    if largest > {"f32": np.inf, "f16": _LARGEST_F16, "q8_0": 127 * _LARGEST_F16}[kind]:
        raise UserError(f"the weight {tensor.source} holds {largest:.3g}, too large for {kind}; choose f32")
    match kind:
        case "f32":
            return np.ascontiguousarray(part, dtype="<f4")
        case "f16":
            return np.ascontiguousarray(part, dtype="<f2")
        case "q8_0":
            return gguf.quantize(np.ascontiguousarray(part), gguf.GGMLQuantizationType.Q8_0)
