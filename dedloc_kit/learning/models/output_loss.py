"""The loss of an output layer over a large vocabulary, whose scores never stand in memory at once."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

_SCORES_AT_ONCE = 2**24
"""64 MB in float32; of 32,000 words those of 524 tokens, enough for matrix products on a CPU to be as fast as larger
ones."""
_MOST_SCORES = 2**28
"""1 GB in float32: more than enough for any GPU."""
_SHARE = 32
"""Scores, and what is made of them, take at most about a tenth of the memory that is free at the start."""


def output_loss(hidden: Tensor, output: nn.Linear, labels: Tensor, softcap: float | None = None) -> Tensor:
    """The mean cross-entropy of `output(hidden)` for `labels`, as a scalar in float32; 0 of no tokens.

    The scores are made in chunks, and the gradients at once with them: so nothing is computed twice, and what is kept
    for the backward pass are the gradients themselves.

    :param hidden: [tokens, width]
    :param labels: [tokens], each of the vocabulary
    :param softcap: bounds the scores to so much, as Gemma does: `softcap * tanh(scores / softcap)`
    """
    dtype = hidden.dtype
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
    loss: Tensor = _OutputLoss.apply(hidden, output.weight, output.bias, labels, softcap, dtype)  # type: ignore[no-untyped-call]
    return loss


def chunk_rows(vocabulary: int, device: torch.device) -> int:
    """Of how many tokens the scores are made at once."""
    return max(1, _scores_at_once(device) // vocabulary)


def _scores_at_once(device: torch.device) -> int:
    return scores_within(_free_at_first(device)) if device.type == "cuda" else _SCORES_AT_ONCE


@lru_cache
def _free_at_first(device: torch.device) -> int:
    """Bytes. Asked once, so that the chunks stay what they were when a microbatch's size was tried out."""
    free, _ = torch.cuda.mem_get_info(device)
    return free


def scores_within(free: int) -> int:
    """How many scores may be made at once on a device with so many bytes of free memory: a power of two."""
    fit = max(_SCORES_AT_ONCE, min(_MOST_SCORES, free // (4 * _SHARE)))
    return 1 << (fit.bit_length() - 1)


def best_tokens(hidden: Tensor, output: nn.Linear) -> Tensor:
    """Of each hidden state [tokens, width] the token with the highest score, [tokens]."""
    parts = hidden.split(chunk_rows(output.out_features, hidden.device))
    return torch.cat([functional.linear(part, output.weight, output.bias).argmax(dim=-1) for part in parts])


class _OutputLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        softcap: float | None,
        dtype: torch.dtype,
    ) -> Tensor:
        wanted = ctx.needs_input_grad
        gradients = [
            torch.zeros_like(each, dtype=torch.float32) if each is not None and needed else None
            for each, needed in zip((hidden, weight, bias), wanted, strict=False)
        ]
        total = torch.zeros((), device=hidden.device)
        rows = chunk_rows(len(weight), hidden.device)
        # By hand rather than by autocast, which would keep the copy of the weights made here, without gradient.
        with torch.autocast(hidden.device.type, enabled=False):
            cast = weight.to(dtype)
            cast_bias = None if bias is None else bias.to(dtype)
            for start in range(0, len(hidden), rows):
                part, targets = hidden[start : start + rows].to(dtype), labels[start : start + rows, None]
                scores = functional.linear(part, cast, cast_bias).float()
                capped = None if softcap is None else scores.div_(softcap).tanh_().clone()
                if softcap is not None:
                    scores.mul_(softcap)
                scores.sub_(scores.amax(dim=1, keepdim=True))
                right = scores.gather(1, targets)
                sums = scores.exp_().sum(dim=1, keepdim=True)
                total += (sums.log() - right).sum()
                if not any(wanted[:3]):
                    continue
                errors = scores.div_(sums).scatter_add_(1, targets, torch.full_like(sums, -1.0))
                if capped is not None:
                    errors.mul_(1 - capped.square_())
                _add(gradients, start, errors, part, cast)
        count = max(1, len(hidden))
        ctx.count, ctx.dtype = count, hidden.dtype
        ctx.save_for_backward(gradients[0])
        ctx.of_output = gradients[1:]  # not saved: what watches the memory that samples take does not count it
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        scale = gradient / ctx.count
        # In place, for a copy of what the weights get may be as large as all else; autograd refuses a second time.
        hidden, weight, bias = (
            None if each is None else each.mul_(scale) for each in (*ctx.saved_tensors, *ctx.of_output)
        )
        return None if hidden is None else hidden.to(ctx.dtype), weight, bias, None, None, None


def _add(gradients: list[Tensor | None], start: int, errors: Tensor, part: Tensor, weight: Tensor) -> None:
    """What the errors of a chunk's scores [rows, vocabulary] mean for hidden states, weights and biases."""
    of_hidden, of_weight, of_bias = gradients
    if of_bias is not None:
        of_bias += errors.sum(dim=0)
    errors = errors.to(weight.dtype)
    if of_hidden is not None:
        of_hidden[start : start + len(part)] = errors @ weight
    if of_weight is None:
        return
    if of_weight.dtype == errors.dtype:
        of_weight.addmm_(errors.t(), part)
    else:
        of_weight += errors.t() @ part
