"""A device for tests whose tensors lie in this process: counts what a program would have to wait for on a GPU.

It is torch's PrivateUse1 backend, written in Python: each operation on its tensors comes through `Counted`, which does
the same on the CPU. Slow, and only for counting. Autocast changes no type here.
"""

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "counted"
_READS = {
    "aten::_local_scalar_dense": "item",
    "aten::is_nonzero": "item",
    "aten::_linalg_check_errors": "item",
    "aten::equal": "equal",
    "aten::nonzero": "nonzero",
    "aten::masked_select": "masked_select",
    "aten::_unique2": "unique",
    "aten::unique_dim": "unique",
    "aten::unique_consecutive": "unique",
    "aten::repeat_interleave": "repeat_interleave",
}
"""Operations whose result, or its shape, is needed on the CPU."""
_INDEXED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
_MADE = (
    ("empty", "memory_format"),
    ("empty_strided", ""),
    ("arange", ""),
    ("arange", "start"),
    ("arange", "start_step"),
    ("full", ""),
    ("zeros", ""),
    ("ones", ""),
    ("eye", ""),
    ("scalar_tensor", ""),
    ("randperm", ""),
    ("tril_indices", ""),
    ("_to_copy", ""),
)
"""Operations that make tensors of the device out of nothing, or of the CPU's."""


class _Module(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


class Counts:
    """What was asked of the device."""

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        """By kind, and by the line of the package that asked."""
        self.double: Counter[str] = Counter()
        """Operations that made float64 tensors on the device."""

    def wait(self, kind: str) -> None:
        self.waits[f"{kind} in {_line()}"] += 1


_counts = Counts()


@contextmanager
def counting() -> Iterator[Counts]:
    """Counts what is asked of the device meanwhile."""
    global _counts
    before, _counts = _counts, Counts()
    try:
        yield _counts
    finally:
        _counts = before


class Counted(Tensor):
    """A tensor of the device; `raw` is the same on the CPU."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> "Counted":
        made: Counted = Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )
        made.raw = raw
        return made

    def __init__(self, raw: Tensor) -> None: ...

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Counted({tuple(self.shape)}, {self.dtype})"

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        assert isinstance(other, Counted)
        Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.raw = other.raw

    def tolist(self) -> Any:
        _counts.wait("tolist")
        return self.raw.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _dispatch(func, args, kwargs or {})


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name, device = func._schema.name, kwargs.get("device")
    goes = device is not None and torch.device(device).type == NAME
    if name == "aten::_to_copy":
        return _copied(func, args, kwargs, goes)
    _count(name, args, kwargs)
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = func(*_raw(args), **_raw(kwargs))
    mine = {id(each.raw): each for each in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(each, Counted)}

    def wrapped(each: Any) -> Any:
        if not isinstance(each, Tensor):
            return each
        if each.dtype == torch.float64:
            _counts.double[name] += 1
        own = mine.get(id(each))  # what is changed in place
        return Counted(each) if own is None else own

    return result if name == "aten::copy_" and not isinstance(args[0], Counted) else tree_map(wrapped, result)


def _count(name: str, args: Any, kwargs: dict[str, Any]) -> None:
    if name in _READS:
        _counts.wait(_READS[name])
    elif name in _INDEXED:
        indices = [each for each in args[1] if each is not None]
        if any(each.dtype in (torch.bool, torch.uint8) for each in indices):
            _counts.wait("boolean index")
        if any(not isinstance(each, Counted) for each in indices):
            _counts.wait("copy in")
    elif name == "aten::copy_" and isinstance(args[0], Counted) != isinstance(args[1], Counted):
        waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        if waits:
            _counts.wait("copy in" if isinstance(args[0], Counted) else "copy out")


def _copied(func: Any, args: Any, kwargs: dict[str, Any], goes: bool) -> Any:
    source = args[0]
    leaves = isinstance(source, Counted) and not goes and kwargs.get("device") is not None
    options = {**kwargs, "device": torch.device("cpu")}
    result = func(*_raw(args), **options)
    if leaves:
        _counts.wait("copy out")
        return result
    if not isinstance(source, Counted) and not kwargs.get("non_blocking"):
        _counts.wait("copy in")
    if result.dtype == torch.float64:
        _counts.double["aten::_to_copy"] += 1
    return Counted(result)


def _raw(tree: Any) -> Any:
    return tree_map_only(Counted, lambda each: each.raw, tree)


def _line() -> str:
    """The line of the package that asked, and below it that of transformers."""
    inner = ""
    for frame in reversed(traceback.extract_stack(limit=80)):
        file = frame.filename
        if "/transformers/" in file and not inner:
            inner = f" ({file.rsplit('/', 1)[1]}:{frame.lineno})"
        if "/dedloc_kit/" in file and "/site-packages/" not in file:
            return f"{file.rsplit('/', 1)[1]}:{frame.lineno}{inner}"
    return "?" + inner


def move(model: nn.Module) -> nn.Module:
    """The model on the device; modules that share a parameter share it there, as on any other device."""
    moved: dict[int, Any] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                there = moved.setdefault(id(parameter), nn.Parameter(Counted(parameter.detach().clone())))
                module._parameters[name] = there.requires_grad_(parameter.requires_grad)
    return model.to(DEVICE)


def _register() -> torch.device:
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    for name, overload in _MADE:
        func = getattr(getattr(torch.ops.aten, name), overload or "default")

        def made(*args: Any, func: Any = func, **kwargs: Any) -> Any:
            kwargs.pop("pin_memory", None)
            if func._schema.name == "aten::_to_copy":
                return _dispatch(func, args, kwargs)
            return _dispatch(func, args, {**kwargs, "device": kwargs.get("device")})

        _library.impl(f"{name}.{overload}" if overload else name, made, "PrivateUse1")
    _autocast.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    return torch.device(NAME, 0)


_library, _autocast = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
DEVICE = _register()
