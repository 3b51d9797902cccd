"""A device whose tensors lie in the main memory, which counts what a GPU would have to be waited for.

`python -m tests.learning.counting_device FOLDER TASK ...`, a process of its own: torch knows one such device at most.
"""

import json
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "counting"
_READS = {
    "aten::_local_scalar_dense": "read",
    "aten::_linalg_check_errors": "read",
    "aten::is_nonzero": "read",
    "aten::equal": "read",
    "aten::nonzero": "count",
    "aten::masked_select": "count",
    "aten::repeat_interleave.Tensor": "count",
    "aten::_unique2": "count",
    "aten::unique_dim": "count",
}
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
waits: Counter[str] = Counter()
"""Each with the line of the kit that it belongs to."""


class _Module(_DummyBackendModule):
    """What torch asks of a device's module."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
DEVICE = torch.device(NAME, 0)


class OnDevice(Tensor):
    """`raw` is the same on the CPU."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> "OnDevice":
        made: OnDevice = Tensor._make_wrapper_subclass(
            cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype, device=DEVICE
        )
        made.raw = raw
        return made

    def __init__(self, raw: Tensor) -> None:
        pass

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnDevice({tuple(self.shape)})"

    def tolist(self) -> Any:
        _count("read")
        return self.raw.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _dispatched(func, args, kwargs or {})


def _dispatched(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name, overload = func._schema.name, func._overloadname
    target = kwargs.get("device")
    inward = target is not None and torch.device(target).type == NAME
    if inward:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if name == "aten::_to_copy" and target is not None:
        outside = not isinstance(args[0], OnDevice)
        if inward == outside and not kwargs.get("non_blocking"):
            _count("copy")
        made = func(*_raw(args), **_raw(kwargs))
        return OnDevice(made) if inward else made
    if name == "aten::copy_":
        blocking = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        if isinstance(args[0], OnDevice) != isinstance(args[1], OnDevice) and blocking:
            _count("copy")
    if name in _INDEXING:
        given = [each for each in args[1] if isinstance(each, Tensor)]
        if any(each.dtype == torch.bool for each in given):
            _count("count")
        if any(not isinstance(each, OnDevice) for each in given):
            _count("copy")
    if kind := _READS.get(f"{name}.{overload}", _READS.get(name)):
        _count(kind)
    result = func(*_raw(args), **_raw(kwargs))
    if name.endswith("_") and args and isinstance(args[0], OnDevice) and isinstance(result, Tensor):
        return args[0]
    return _wrapped(result)


def _raw(tree: Any) -> Any:
    return tree_map_only(OnDevice, lambda each: each.raw, tree)


def _wrapped(tree: Any) -> Any:
    return tree_map_only(Tensor, lambda each: each if isinstance(each, OnDevice) else OnDevice(each), tree)


def _count(kind: str) -> None:
    ours = [frame for frame in traceback.extract_stack() if "/dedloc_kit/" in frame.filename]
    where = f"{Path(ours[-1].filename).name}: {ours[-1].line}" if ours else "a backward pass"
    waits[f"{kind} in {where}"] += 1


_library = torch.library.Library("aten", "IMPL")
_kept: list[Any] = [_library]


def _implement() -> None:
    """What makes tensors on the device without any of its tensors among the arguments."""
    for name in ("empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step", "full",
                 "zeros", "ones", "eye", "eye.m", "scalar_tensor"):  # fmt: skip
        packet, _, overload = name.partition(".")
        func = getattr(getattr(torch.ops.aten, packet), overload or "default")

        def make(*args: Any, _func: Any = func, **kwargs: Any) -> Any:
            return _dispatched(_func, args, {key: value for key, value in kwargs.items() if key != "pin_memory"})

        _library.impl(name, make, "PrivateUse1")

    def to_copy(given: Tensor, **kwargs: Any) -> Any:
        return _dispatched(torch.ops.aten._to_copy.default, (given,), kwargs)

    _library.impl("_to_copy", to_copy, "PrivateUse1")


_implement()


def move(model: nn.Module) -> None:
    """Take the place of a model's parameters and buffers; those that modules share stay shared."""
    moved: dict[int, Any] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                made = moved.setdefault(id(parameter), nn.Parameter(OnDevice(parameter.detach().clone())))
                module._parameters[name] = made
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = moved.setdefault(id(buffer), OnDevice(buffer.clone()))


def noticed() -> dict[str, int]:
    """How many waits it counts of what is known to wait, and of what does not."""
    values = torch.arange(6.0).to(DEVICE)
    places = torch.tensor([1, 3]).to(DEVICE)

    def filled(at: Any) -> None:
        values.clone()[at] = 0.0

    told: dict[str, Any] = {
        "item": lambda: values.sum().item(),
        "truth": lambda: bool(values.sum() > 0),
        "list": values.tolist,
        "copy": values.cpu,
        "filled": lambda: torch.tensor([1.0, 2.0], device=DEVICE),
        "like": lambda: values.new_tensor([1.0]),
        "boolean": lambda: values[values > 2],
        "boolean filled": lambda: filled(values > 2),
        "listed": lambda: values[[1, 3]],
        "nonzero": values.nonzero,
        "inverse": torch.eye(3, device=DEVICE).inverse,
        "places": lambda: values[places],
        "chosen": lambda: torch.where(values > 2, values, 0.0).cumsum(0),
        "made": lambda: torch.zeros(3, device=DEVICE) + torch.arange(3, device=DEVICE),
    }
    found = {}
    for name, call in told.items():
        waits.clear()
        call()
        found[name] = waits.total()
    return found


def measured(name: str, folder: Path) -> dict[str, Any]:
    """The waits of the third microbatch of a task, and its losses and gradients here and on the CPU."""
    from dedloc_kit.learning.task import create_task, prepared
    from tests.learning.every_task import run_of

    run = run_of(name, folder)
    ours, plain = create_task(run), create_task(run)
    there, here = ours.build_model(), plain.build_model()
    move(there)
    batches, losses = ours.batches(4, 0, print), []
    for _ in range(3):
        batch = next(batches)
        given = prepared(ours, batch, DEVICE)
        waits.clear()
        loss = ours.loss(there, given, 0)
        loss.backward()
        counted = dict(waits)
        expected = plain.loss(here, plain.prepare(batch), 0)
        expected.backward()
        losses.append((loss.item(), expected.item()))
    one, other = (_gradient(model) for model in (there, here))
    return {"waits": counted, "losses": losses, "gradients off": float((one - other).norm() / other.norm())}


def _gradient(model: nn.Module) -> Tensor:
    return torch.cat([each.grad.cpu().flatten() for each in model.parameters() if each.grad is not None])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    found = {name: measured(name, folder) for name in sys.argv[2:]}
    sys.stdout.write(json.dumps({"noticed": noticed(), **found}))
