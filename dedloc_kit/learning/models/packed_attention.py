"""Attention within packed documents: by where they begin where there is a kernel for it, by one mask elsewhere.

Where documents begin travels through a model of transformers in place of its mask. It reaches each layer as an argument
so a layer that is computed again in the backward pass (gradient checkpointing) gets the same one, and threads that run
several models share nothing.

The kernel is FlashAttention's for sequences of several lengths (`torch.nn.attention.varlen`, Dao 2023, arXiv
2307.08691), which skips all that lies outside a document. `flex_attention` would skip as much, but it has to be
compiled (a volunteer may have no compiler, and each new shape costs seconds), needs block masks made anew for each
microbatch, and uncompiled computes what a mask does.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "dedloc_packed"
"""What transformers calls this attention. For all that is not packed it is transformers' own SDPA."""
BOUNDS = "bounds"
"""In a prepared batch: int32 [documents + 1], see `document_bounds`."""
FULL, WINDOWED = "full_attention", "sliding_attention"
_MOST_CHANNELS = 256
"""Of a head, for the kernel, and a multiple of 8."""
_SPECIAL = ("softcap", "s_aux", "position_bias", "cache")
"""Arguments of attentions that are more than a mask: bounded scores, sinks, relative positions."""
_WINDOW = 3
"""For trying out a model: shorter than the documents that it is tried on."""


def document_bounds(positions: Tensor) -> Tensor:
    """Where each document begins in rows one after the other, and behind the last one their end: int32 [documents + 1].

    :param positions: as in `Pack`, on the CPU
    """
    flat = positions.numpy().reshape(-1)
    return torch.from_numpy(np.append(np.flatnonzero(flat == 0), flat.size).astype(np.int32))


def as_mask(config: Any, bounds: Tensor) -> Any:
    """Bounds as a model takes them in place of its mask, on its device."""
    return _for_each_kind(config, lambda _: bounds[None, None, None])


def document_masks(config: Any, positions: Tensor, causal: bool) -> Any:
    """What a model takes as its mask: bool [rows, 1, length, length], or for each kind of layers one.

    :param positions: as in `Pack`, on the model's device
    """

    def masked(window: int | None) -> Tensor:
        if window is None:
            return _mask(positions, causal, -1)
        # Of a decoder the window counts the token itself.
        far = window - 1 if causal else window
        return _mask(positions, causal, far)

    return _for_each_kind(config, masked)


def _mask(positions: Tensor, causal: bool, far: int) -> Tensor:
    """Bool [rows, 1, length, length]: what is in the same document, at most so far away if that is not negative."""
    document = (positions == 0).cumsum(dim=1)
    sees = document[:, :, None] == document[:, None, :]
    if causal:
        sees = sees.tril()
    if far >= 0:
        sees = sees & ((positions[:, :, None] - positions[:, None, :]).abs() <= far)
    return sees[:, None]


def _for_each_kind(config: Any, made: Any) -> Any:
    """What a model takes as its mask, made for a window or none."""
    kinds, window = getattr(config, "layer_types", None) or (), getattr(config, "sliding_window", None)
    if WINDOWED in kinds:
        return {FULL: made(None), WINDOWED: made(window)}
    return made(None if kinds else window)


def has_known_windows(config: Any) -> bool:
    """Whether the layers of a configuration see all of a document, or a window of one size."""
    return set(getattr(config, "layer_types", None) or ()) <= {FULL, WINDOWED}


@contextmanager
def narrow_windows(model: Any) -> Iterator[None]:
    """Let all windows of a model be small for a moment, so that a few tokens show where they end."""
    config = model.config
    window = getattr(config, "sliding_window", None)
    if window is None:
        yield
        return
    modules = [each for each in model.modules() if isinstance(getattr(each, "sliding_window", None), int)]
    _move_windows(config, modules, _WINDOW - window)
    try:
        yield
    finally:
        _move_windows(config, modules, window - _WINDOW)


def _move_windows(config: Any, modules: list[Any], by: int) -> None:
    config.sliding_window += by
    for each in modules:
        each.sliding_window += by


@lru_cache
def has_kernel(device: torch.device) -> bool:
    """Whether a device has the kernel: tried once, for neither a version nor a capability says so for sure."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        from torch.nn.attention.varlen import varlen_attn

        if not {"window_size", "enable_gqa"} <= inspect.signature(varlen_attn).parameters.keys():
            return False
        # Even within `no_grad` and `inference_mode` of the caller.
        with torch.inference_mode(False), torch.enable_grad():
            query = torch.zeros(8, 4, 64, device=device, dtype=torch.float16, requires_grad=True)
            key = torch.zeros(8, 2, 64, device=device, dtype=torch.float16, requires_grad=True)
            bounds = torch.tensor([0, 3, 8], device=device, dtype=torch.int32)
            found: Any = varlen_attn(query, key, key, bounds, bounds, 8, 8, window_size=(2, 0), enable_gqa=True)
            found.sum().backward()
            return bool(query.grad is not None and query.grad.isfinite().all())
    except (ImportError, RuntimeError, NotImplementedError, TypeError):
        return False


def in_half(device: torch.device) -> bool:
    """Whether what is computed now on a device is in half precision."""
    return torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) in (
        torch.float16,
        torch.bfloat16,
    )


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it.

    :param query: [rows, heads, length, channels]; key and value may have fewer heads
    :param attention_mask: bounds as `as_mask` makes them, or a mask
    :return: [rows, length, heads, channels]

    Raises ValueError for bounds together with what the kernel does not know.
    """
    special = any(others.get(name) is not None for name in _SPECIAL)
    if attention_mask is None or attention_mask.dtype != torch.int32:
        if attention_mask is None or special or query.device.type != "cpu" or key.shape[1] == query.shape[1]:
            made: Tensor = sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
            )[0]
            return made, None
        # transformers repeats keys and values for a mask, which most devices need and a CPU does not.
        found = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling, enable_gqa=True
        )
        return found.transpose(1, 2).contiguous(), None
    if special:
        raise ValueError("where documents begin does not say all of this attention")
    causal = others.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    # A module's window counts the token itself.
    window: int | None = others.get("sliding_window")
    far = -1 if window is None else window - 1
    channels = query.shape[-1]
    if (
        query.is_cuda
        and not dropout
        and channels % 8 == 0
        and channels <= _MOST_CHANNELS
        and channels == value.shape[-1]
    ):
        return _by_kernel(query, key, value, attention_mask.flatten(), causal, far, scaling), None
    mask = _mask_of(attention_mask.flatten(), query.shape[0], query.shape[2], causal, far)
    made = sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scaling)[0]
    return made, None


def _by_kernel(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, causal: bool, far: int, scaling: float | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    rows, heads, length, _ = query.shape
    # Autocast does not know this function, and rotary embeddings leave float32 behind.
    half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else query.dtype
    queries, keys, values = (each.to(half).transpose(1, 2).flatten(0, 1) for each in (query, key, value))
    # The longest document is only known on the host, and whether it is a whole row hardly matters to the kernel.
    found: Any = varlen_attn(
        queries,
        keys,
        values,
        bounds,
        bounds,
        length,
        length,
        scale=scaling,
        window_size=(far, 0 if causal else far),
        enable_gqa=key.shape[1] != heads,
    )
    unflattened: Tensor = found.unflatten(0, (rows, length))
    return unflattened


def _mask_of(bounds: Tensor, rows: int, length: int, causal: bool, far: int) -> Tensor:
    """The same as the kernel sees, as a mask: where it cannot be used, and to try a model."""
    number = torch.arange(rows * length, device=bounds.device)
    document = torch.searchsorted(bounds[1:], number, right=True)
    return _mask((number - bounds[document]).view(rows, length), causal, far)


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
