"""The layer: a token goes to the few experts that suit it, and those who answered are mixed."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dedloc_kit.config.parts import ExpertsConfig
from dedloc_kit.experts.calls import Cell, Experts
from dedloc_kit.experts.gate import Gate, choose, imbalance
from dedloc_kit.learning.train.computing.loss_scale import loss_scale


class _Link:
    """To whoever holds the experts; copies of a model share it."""

    experts: Experts | None = None

    def __deepcopy__(self, memo: Any) -> "_Link":
        return self


class Mixture(nn.Module):
    """Takes and gives [..., width], in place of a feed-forward network.

    What experts answered is weighted by the softmax over their scores; who did not answer is left out. A token without
    any answer gets zero, so that it keeps its residual. `connect` says who holds the experts.

    :param layer: its number in the model
    :param seed: its gate's first weights follow from it
    """

    once = True
    """Its experts are not asked twice for a backward pass, as `training.computing` would to save memory."""

    def __init__(self, layer: int, settings: ExpertsConfig, seed: int) -> None:
        super().__init__()
        self.layer, self._top_k = layer, settings.top_k
        self.gate = Gate(settings.width, settings.grid, seed)
        self.link = _Link()
        self._imbalance: Tensor | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        if (experts := self.link.experts) is None:
            raise RuntimeError("no experts are connected to this model")
        tokens = hidden.flatten(0, -2).float()
        rows, columns = self.gate(tokens)
        alive = experts.alive(self.layer).to(tokens.device)
        chosen = choose(rows, columns, alive, self._top_k)
        if torch.is_grad_enabled():
            self._imbalance = imbalance(rows, columns, alive, chosen)
        call = _Call(experts, self.layer, chosen.cells, chosen.there, alive.shape[1])
        outputs, answered = _Asked.apply(tokens, call)  # type: ignore[no-untyped-call]
        # Finite where nobody answered, too: what is masked with infinity would be NaN there, forward and backward.
        scores = chosen.scores.masked_fill(~answered, torch.finfo(torch.float32).min)
        weights = scores.softmax(1) * answered
        mixed: Tensor = (weights[:, :, None] * outputs).sum(1)
        return mixed.view(hidden.shape).to(hidden.dtype)

    def take_imbalance(self) -> Tensor | None:
        """That of the last forward pass with gradients, once."""
        found, self._imbalance = self._imbalance, None
        return found


class _Call:
    """The tokens of one forward pass of a layer by the experts that they go to, and the way back.

    Both wait for the device, for tokens travel from the CPU: a run with experts has more waits than one a microbatch.

    :param cells: numbers, [tokens, chosen]; where not `there`, nobody is asked
    """

    def __init__(self, experts: Experts, layer: int, cells: Tensor, there: Tensor, columns: int) -> None:
        self.experts, self.layer, self.shape = experts, layer, cells.shape
        places = there.flatten().nonzero()[:, 0]
        numbers, order = cells.flatten()[places].sort(stable=True)
        found, counts = numbers.unique_consecutive(return_counts=True)
        self._places: dict[Cell, Tensor] = {
            Cell(*divmod(number, columns)): part
            for number, part in zip(found.tolist(), places[order].split(counts.tolist()), strict=True)
        }
        """Of each cell, in [tokens * chosen]."""
        self._ticket: object = None
        self._scale = loss_scale()

    def forward(self, tokens: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        """Outputs [tokens, chosen, width] and who answered [tokens, chosen]."""
        count, chosen = self.shape
        places = self._places
        given = self._by_cell(tokens, {cell: at // chosen for cell, at in places.items()})
        answers = self.experts.forward(self.layer, given, keep)
        self._ticket = answers.ticket
        self._places = {cell: at for cell, at in places.items() if cell in answers.outputs}
        outputs, answered = tokens.new_zeros(count * chosen, tokens.shape[1]), tokens.new_zeros(count * chosen)
        if self._places:
            at = torch.cat(list(self._places.values()))
            outputs[at] = torch.cat([answers.outputs[cell] for cell in self._places]).to(tokens.device)
            answered[at] = 1.0
        return outputs.view(count, chosen, -1), answered.view(count, chosen).bool()

    def backward(self, gradient: Tensor) -> Tensor:
        """The gradient of the tokens by that of the outputs; nobody is sent what is not finite."""
        count, chosen = self.shape
        given = self._by_cell(gradient.flatten(0, 1) / self._scale, self._places)
        given = {cell: part for cell, part in given.items() if bool(part.isfinite().all())}
        of_tokens = gradient.new_zeros(count, gradient.shape[2])
        if given:
            found = self.experts.backward(self.layer, self._ticket, given)
            for cell, part in found.items():
                of_tokens.index_add_(0, self._places[cell] // chosen, part.to(of_tokens.device), alpha=self._scale)
        return of_tokens

    @staticmethod
    def _by_cell(values: Tensor, rows: Mapping[Cell, Tensor]) -> dict[Cell, Tensor]:
        """Rows of a tensor for each cell, on the CPU, in one transfer."""
        if not rows:
            return {}
        parts = values[torch.cat(list(rows.values()))].cpu().split([len(at) for at in rows.values()])
        return dict(zip(rows, parts, strict=True))


class _Asked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, call: _Call) -> tuple[Tensor, Tensor]:
        ctx.call = call
        outputs, answered = call.forward(tokens.detach(), keep=ctx.needs_input_grad[0])
        ctx.mark_non_differentiable(answered)
        return outputs, answered

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
        return ctx.call.backward(gradient), None


def mixtures_of(model: nn.Module) -> Iterator[Mixture]:
    """The mixtures in a model."""
    return (module for module in model.modules() if isinstance(module, Mixture))


def connect(model: nn.Module, experts: Experts | None) -> None:
    """Let a model, and all copies of it, call these experts; with None they cannot be used until the next call."""
    for mixture in mixtures_of(model):
        mixture.link.experts = experts


def connect_alone(model: nn.Module, experts: Experts) -> None:
    """Let this copy of a model alone call these experts."""
    for mixture in mixtures_of(model):
        mixture.link = _Link()
    connect(model, experts)


def imbalance_of(model: nn.Module) -> Tensor:
    """The sum over the mixtures of a model, of its last forward pass with gradients; 0 if there was none."""
    found = [term for mixture in mixtures_of(model) if (term := mixture.take_imbalance()) is not None]
    return torch.stack(found).sum() if found else torch.zeros(())
