"""Experts that learn nothing."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dedloc_kit.experts.calls import Answers, Cell, ExpertName, Ticket
from dedloc_kit.experts.network import Network


class Frozen:
    """Some networks as experts (`calls.Experts`): a model is measured, or written, while those of the run go on."""

    def __init__(self, networks: Mapping[ExpertName, Network], grid: tuple[int, int]) -> None:
        self.networks, self._grid = networks, grid

    def alive(self, layer: int) -> Tensor:
        cells = torch.zeros(self._grid, dtype=torch.bool)
        for name in self.networks:
            if name.layer == layer:
                cells[name.cell] = True
        return cells

    @torch.no_grad()
    def forward(self, layer: int, inputs: Mapping[Cell, Tensor], keep: bool) -> Answers:
        outputs = {cell: self._output(layer, cell, given) for cell, given in inputs.items()}
        return Answers(outputs, inputs if keep else None)

    @torch.enable_grad()
    def backward(self, layer: int, ticket: Ticket, gradients: Mapping[Cell, Tensor]) -> Mapping[Cell, Tensor]:
        assert isinstance(ticket, Mapping)
        of_inputs = {}
        for cell, gradient in gradients.items():
            given = ticket[cell].detach().requires_grad_()
            (of_inputs[cell],) = torch.autograd.grad(self._output(layer, cell, given), [given], gradient)
        return of_inputs

    def _output(self, layer: int, cell: Cell, given: Tensor) -> Tensor:
        with torch.autocast(given.device.type, enabled=False):
            made: Tensor = self.networks[ExpertName(layer, *cell)](given)
        return made
