"""What this machine computes with."""

from typing import Literal

import torch

from dedloc_kit.errors import UserError
from dedloc_kit.machine.survey import cores


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
    count = cores()
    return f"CPU, {count} core{'' if count == 1 else 's'}"


def half_precision(device: torch.device) -> torch.dtype | None:
    """The 16-bit type that makes this device faster; none where float32 does as well.

    bfloat16 where the device has arithmetic for it (a Tesla T4 only imitates it, slower than float32), else float16
    where there are tensor cores, from compute capability 7.0.
    """
    if device.type != "cuda":
        return None
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.float16 if torch.cuda.get_device_capability(device) >= (7, 0) else None


def set_threads(count: int) -> None:
    """Let torch compute with `count` CPU threads; 0 takes as many as this process has cores."""
    torch.set_num_threads(count or cores())
