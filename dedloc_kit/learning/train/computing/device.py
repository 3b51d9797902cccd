"""What this machine computes with."""

import logging
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Literal

import torch

from dedloc_kit.errors import UserError
from dedloc_kit.machine.hardware import cores

SWITCH_SECONDS = 5e-5
"""Python's own 5 ms are longer than a GPU has to do: whoever feeds it gives way hundreds of times in a microbatch, and
each time waits for so long while samples are made in another thread."""
_NO_GPU = (
    "torch finds no CUDA GPU here; choose the device 'auto' or 'cpu', or switch the GPU on "
    "(in Colab and Kaggle: the notebook's accelerator setting)"
)
_CPU = torch.device("cpu")

_log = logging.getLogger(__name__)


def why_unusable(device: torch.device) -> str:
    """Why a small step on this device fails, in one line; empty if it does not. torch lists cards that it has no code
    for, such as a Tesla P100."""
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            half = half_precision(device)
            weights = torch.ones(8, 8, device=device, requires_grad=True)
            with torch.autocast(device.type, half or torch.bfloat16, enabled=half is not None):
                loss = (torch.ones(8, 8, device=device) @ weights).float().square().mean()
            torch.autograd.grad(loss, weights)[0].sum().item()  # waits for the device
    except (RuntimeError, AssertionError) as error:  # of a torch without CUDA the latter
        return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return ""


Fails = Callable[[torch.device], str]
"""As `why_unusable`."""


def usable_devices(devices: Sequence[torch.device], choice: str, fails: Fails = why_unusable) -> list[torch.device]:
    """Those that a small step can be taken on, else for `auto` the CPU; what is left out is a warning. UserError if
    one that was asked for by name, or every GPU of `cuda`, cannot be used.

    It sets GPUs up, which no process that is forked later could use.

    :param devices: what `pick_devices` gave for this choice
    """
    left_out = {device: why for device in devices if device.type != "cpu" and (why := fails(device))}
    usable = [device for device in devices if device not in left_out]
    told = [f"{device} cannot be used, for a small step on it fails: {why}" for device, why in left_out.items()]
    if left_out and (choice not in ("auto", "cuda") or (choice == "cuda" and not usable)):
        raise UserError(f"{told[0]}; choose the devices 'auto' or 'cpu', or mend its driver")
    for text in told:
        _log.warning("%s; computing on %s", text, ", ".join(map(str, usable)) or "the processor")
    return usable or [_CPU]


def pick_device(choice: Literal["auto", "cpu", "cuda"], fails: Fails = why_unusable) -> torch.device:
    """One device; `auto` takes a GPU if there is one that can be used. UserError if `cuda` is asked for and there is
    none."""
    has_gpu = torch.cuda.is_available()
    if choice == "cuda" and not has_gpu:
        raise UserError(_NO_GPU)
    if not has_gpu or choice == "cpu":
        return _CPU
    return usable_devices([torch.device("cuda")], choice, fails)[0]


def pick_devices(choice: str) -> list[torch.device]:
    """The devices to train on, untried; UserError if one is asked for that is not there.

    :param choice: as `PeerConfig.devices`: `auto` takes all CUDA GPUs, else Apple's GPU, else the CPU; `cuda` all CUDA
        GPUs; else the names of devices, separated by commas
    """
    gpus = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    if choice == "auto":
        return gpus or [torch.device("mps" if torch.backends.mps.is_available() else "cpu")]
    if choice == "cuda" and gpus:
        return gpus
    devices = [torch.device(name) for name in choice.split(",")]
    for device in devices:
        if device.type == "cuda" and not gpus:
            raise UserError(_NO_GPU)
        if device.type == "cuda" and device not in gpus:
            raise UserError(f"there is no {device} here; choose the devices 'auto', or of cuda:0 to {gpus[-1]}")
        if device.type == "mps" and not torch.backends.mps.is_available():
            raise UserError("torch finds no Apple GPU here; choose the devices 'auto' or 'cpu'")
    return devices


def describe_devices(devices: Sequence[torch.device]) -> str:
    """The devices in words for the dashboard, at most 64 characters: `2 x Tesla T4` or `CPU, 2 cores`."""
    counts = Counter(map(describe_device, devices))
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())[:64]


def describe_device(device: torch.device) -> str:
    """One of them."""
    match device.type:
        case "cuda":
            return torch.cuda.get_device_name(device)[:64]
        case "mps":
            return "Apple GPU"
    count = cores()
    return f"CPU, {count} core{'' if count == 1 else 's'}"


def half_precision(device: torch.device) -> torch.dtype | None:
    """The 16-bit type that makes this device faster; none where float32 does as well, or nobody has tried (Apple).

    bfloat16 where the device has arithmetic for it (a Tesla T4 only imitates it, slower than float32), else float16
    where there are tensor cores, from compute capability 7.0. Call it where this is the current device.
    """
    if device.type != "cuda":
        return None
    if torch.cuda.is_bf16_supported(including_emulation=False):  # asks the current device
        return torch.bfloat16
    return torch.float16 if torch.cuda.get_device_capability(device) >= (7, 0) else None


def make_current(device: torch.device) -> None:
    """Let this thread compute on the device, without waiting long for Python's other threads where that is a GPU."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        sys.setswitchinterval(SWITCH_SECONDS)


_NO_ROOM = "MPS backend out of memory", "DefaultCPUAllocator: can't allocate memory"
"""What Apple's devices and torch on a processor say, which have no class of their own for it."""


def out_of_memory(error: Exception) -> bool:
    """Whether a device's memory, or the machine's, did not hold something."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(said in str(error) for said in _NO_ROOM)


def free_cached(device: torch.device) -> None:
    """Give memory back that torch keeps for later."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def set_threads(count: int, devices: Sequence[torch.device] = ()) -> None:
    """Let torch compute with `count` CPU threads; 0 takes as many as this process has cores. Where the CPU stands
    several times among the devices, they share them."""
    replicas = max(1, sum(device.type == "cpu" for device in devices))
    torch.set_num_threads(max(1, (count or cores()) // replicas))
