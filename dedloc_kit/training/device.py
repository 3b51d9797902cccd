"""What this machine computes with, and how much of a batch it takes at once."""

import os
from typing import Literal

import torch

from dedloc_kit.errors import UserError

_CPU_MICROBATCH = 4
_GIB_PER_SAMPLE = 1.5
_LARGEST_MICROBATCH = 64


def pick_device(choice: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """The device to train on; `auto` takes a GPU if there is one. UserError if `cuda` is asked for and not there."""
    has_gpu = torch.cuda.is_available()
    if choice == "cuda" and not has_gpu:
        raise UserError(
            "torch finds no CUDA GPU here; choose the device 'auto' or 'cpu', or switch the GPU on "
            "(in Colab and Kaggle: the notebook's accelerator setting)"
        )
    return torch.device("cuda" if has_gpu and choice != "cpu" else "cpu")


def describe_device(device: torch.device) -> str:
    """The device in words for the dashboard, at most 64 characters: `Tesla T4` or `CPU, 2 cores`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)[:64]
    cores = _cores()
    return f"CPU, {cores} core{'' if cores == 1 else 's'}"


def computes_in_bfloat16(device: torch.device) -> bool:
    """Whether this device has bfloat16 arithmetic of its own; a Tesla T4 only imitates it, slower than float32."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def default_microbatch(device: torch.device) -> int:
    """Samples that go through the model at once if the volunteer has not chosen.

    A GPU takes a power of two, at most 64, with 1.5 GiB of its memory or more for each sample: 8 on a Tesla T4,
    32 with 80 GB. ALBERT-large at 512 tokens fits: its backward pass keeps 1.4 GiB for each sample in float32, less
    in half precision. A CPU takes 4: a peer joins an average only between two microbatches, so they should be short.
    """
    if device.type != "cuda":
        return _CPU_MICROBATCH
    gibibytes = torch.cuda.get_device_properties(device).total_memory / 2**30
    fitting = max(1, int(gibibytes / _GIB_PER_SAMPLE))
    return min(_LARGEST_MICROBATCH, 1 << (fitting.bit_length() - 1))


def set_threads(count: int) -> None:
    """Let torch compute with `count` CPU threads; 0 takes as many as this process has cores."""
    torch.set_num_threads(count or _cores())


def _cores() -> int:
    """The cores that this process may use (a container or `taskset` may grant fewer than the machine has)."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
