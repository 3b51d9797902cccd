"""Which cells a host's record names, and how they come into it."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.records.experts import LayerCells

Grid = tuple[int, int]


def layers_of(names: Iterable[ExpertName], grid: Grid) -> tuple[LayerCells, ...]:
    """As a host's record names these experts."""
    cells: dict[int, Tensor] = {}
    for name in names:
        cells.setdefault(name.layer, torch.zeros(grid, dtype=torch.bool))[name.cell] = True
    return tuple(LayerCells(layer=layer, cells=_packed(each)) for layer, each in sorted(cells.items()))


def cells_of(layers: Iterable[LayerCells], grid: Grid) -> dict[int, Tensor]:
    """Bool [rows, columns] for each layer that the record names; raises ValueError if it is of another grid."""
    return {each.layer: _unpacked(each.cells, grid) for each in layers}


def names_in(layers: Iterable[LayerCells], grid: Grid) -> frozenset[ExpertName]:
    """The experts that the record names; raises as `cells_of`."""
    return frozenset(
        ExpertName(layer, *cell) for layer, cells in cells_of(layers, grid).items() for cell in cells.nonzero().tolist()
    )


def _packed(cells: Tensor) -> bytes:
    return np.packbits(cells.numpy().reshape(-1)).tobytes()


def _unpacked(bits: bytes, grid: Grid) -> Tensor:
    rows, columns = grid
    flat = np.unpackbits(np.frombuffer(bits, np.uint8))
    if len(bits) != -(-rows * columns // 8) or flat[rows * columns :].any():
        raise ValueError(f"its cells are not those of a grid of {rows} x {columns}")
    return torch.from_numpy(flat[: rows * columns].astype(bool)).view(rows, columns)
