"""LAMB with a state of 8 bits."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dedloc_kit.learning.train.flat import SMALL_TENSOR, Scratch
from dedloc_kit.learning.train.optim.blocks import BLOCK, Blocks
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.optim.portable import CHUNK, Floats, norm

_UNIT = np.float32(2.0**-10)
"""Gradients are counted in 1024ths, so that the squares of large ones can be added up."""
_scratch = Scratch()
"""Of all: a host of experts has as many of these optimizers."""


class Lamb8Bit(Lamb):
    """`Lamb` with a state of a quarter of the size: 8 bits for a number, in blocks of 256 with a scale each.

    With the sums s = beta1 s + g and q = beta2 q + g², which are LAMB's m and v but for factors that depend on the step
    alone, and e for eps in their units, LAMB's r is proportional to

        d = s / (sqrt(q) + e)

    Of a parameter with SMALL_TENSOR values or more `direction` (d) and `root` (of q) are kept. The d of a value that
    has small gradients is as large as that of any other, so it is not lost in its block, and however `root` is rounded,
    what follows from both is no larger step. Of smaller parameters `sum` (s) and `square_sum` (q) are kept in float32.
    Each has `step` as well.

    The same state and gradients lead to the same bits on every processor, whatever the number of threads. Parameters
    are float32, contiguous and on the CPU.
    """

    kept = ("step", "sum", "square_sum", "direction", "direction_scale", "root", "root_scale")

    def _first_state(self, param: Tensor) -> dict[str, Tensor]:
        blocks = -(-param.numel() // BLOCK)
        step = {"step": torch.zeros(())}
        if param.numel() < SMALL_TENSOR:
            return step | {name: torch.zeros(blocks, BLOCK) for name in ("sum", "square_sum")}
        return step | {
            "direction": torch.zeros(blocks, BLOCK, dtype=torch.int8),
            "direction_scale": torch.zeros(blocks),
            "root": torch.zeros(blocks, BLOCK, dtype=torch.uint8),
            "root_scale": torch.zeros(blocks),
        }

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        for param in params:
            assert param.grad is not None
            values, gradient = param.detach().view(-1).numpy(), param.grad.reshape(-1).numpy()
            self._update_one(values, gradient, self.state[param], group)

    def _update_one(self, values: Floats, gradient: Floats, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        state["step"] += 1
        step, (beta1, beta2) = int(state["step"]), group["betas"]
        gain = (1 - beta1) / (1 - beta1**step) * _root_of_weights(beta2, step)  # LAMB's r is this times d
        sums = _Coded(state, group) if "root" in state else _Exact(state, group)
        epsilon, decay = _epsilon(group, step), np.float32(group["weight_decay"] / gain)
        *rooms, directions = _rooms(values.size)
        room, updates = rooms[0].reshape(-1), directions.reshape(-1)[: values.size]
        for begin in range(0, values.size, CHUNK):
            part = slice(begin, min(begin + CHUNK, values.size))
            blocks = slice(begin // BLOCK, -(-part.stop // BLOCK))
            _advance(sums, gradient[part], blocks, epsilon, rooms, directions[blocks])
            if decay:
                updates[part] += np.multiply(values[part], decay, out=room[: part.stop - begin])
        weight_norm, update_norm = norm(values, room), gain * norm(updates, room)
        usable = weight_norm > 0 and update_norm > 0
        ratio = min(weight_norm, group["max_weight_norm"]) / update_norm if usable else 1.0
        way = np.float32(-group["lr"] * ratio * gain)
        for begin in range(0, values.size, CHUNK):
            part = slice(begin, min(begin + CHUNK, values.size))
            values[part] += np.multiply(updates[part], way, out=room[: part.stop - begin])


def _rooms(values: int) -> list[Floats]:
    """Three for a chunk, and one for d of so many values, each [blocks, BLOCK]."""
    sizes = [CHUNK, CHUNK, CHUNK, -(-values // BLOCK) * BLOCK]
    parts = _scratch.of(sum(sizes), torch.device("cpu")).split(sizes)
    return [part.view(-1, BLOCK).numpy() for part in parts]


class _Exact:
    """The sums of a small parameter, in float32."""

    def __init__(self, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        self._sums = [state[name].numpy() for name in ("sum", "square_sum")]
        self._betas = group["betas"]

    def decayed(self, blocks: slice, rooms: Sequence[Floats]) -> list[Floats]:
        """Both of a chunk, times the betas."""
        for each, beta in zip(self._sums, self._betas, strict=True):
            each *= np.float32(beta)
        return self._sums

    def keep(self, direction: Floats, blocks: slice, rooms: Sequence[Floats]) -> None:
        """What has been added to them stands there already."""


class _Coded:
    """The sums of another, told by `direction` and `root`."""

    def __init__(self, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        self._step = int(state["step"])
        beta1, beta2 = group["betas"]
        decay = math.sqrt(beta2)
        self._direction = Blocks(state["direction"], state["direction_scale"], beta1 / decay)
        self._root = Blocks(state["root"], state["root_scale"], decay)
        self._epsilon = np.float32(decay) * _epsilon(group, self._step - 1)

    def decayed(self, blocks: slice, rooms: Sequence[Floats]) -> list[Floats]:
        """Both of a chunk, times the betas, in the last two of three rooms."""
        self._direction.read(blocks, rooms[1])
        self._root.read(blocks, rooms[2])
        room, total, squares = rooms
        total *= np.add(squares, self._epsilon, out=room)
        squares *= squares
        return [total, squares]

    def keep(self, direction: Floats, blocks: slice, rooms: Sequence[Floats]) -> None:
        """They have come to this; the root is in the last room."""
        self._direction.write_signed(direction, blocks, self._step, rooms[0])
        self._root.write_positive(rooms[2], blocks, self._step)


def _advance(
    sums: _Exact | _Coded,
    gradient: Floats,
    blocks: slice,
    epsilon: np.float32,
    rooms: Sequence[Floats],
    direction: Floats,
) -> None:
    """Take a chunk of the gradient into the state, and leave its d in the last room."""
    size = len(gradient)
    if size < CHUNK:
        rooms = [each[: blocks.stop - blocks.start] for each in rooms]
    total, squares = sums.decayed(blocks, rooms)
    room = np.multiply(gradient, _UNIT, out=rooms[0].reshape(-1)[:size])
    total.reshape(-1)[:size] += room
    room *= room
    squares.reshape(-1)[:size] += room
    np.sqrt(squares, out=rooms[2])
    np.add(rooms[2], epsilon, out=rooms[0])
    np.divide(total, rooms[0], out=direction)
    sums.keep(direction, blocks, rooms)


def _root_of_weights(beta2: float, updates: int) -> float:
    """The square root of the sum of the weights that q gives to the squares of so many gradients."""
    return math.sqrt((1 - beta2**updates) / (1 - beta2))


def _epsilon(group: dict[str, Any], updates: int) -> np.float32:
    """LAMB's eps as it is added to the root of q."""
    return np.float32(group["eps"] * _root_of_weights(group["betas"][1], updates)) * _UNIT
