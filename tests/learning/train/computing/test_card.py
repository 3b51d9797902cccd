"""Half precision and checkpointed blocks change how gradients are computed, not what they are."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dedloc_kit.errors import UserError
from dedloc_kit.learning.task import Loss
from dedloc_kit.learning.train.computing.card import Card, LossFunction
from dedloc_kit.learning.train.computing.checkpointing import Checkpointing
from dedloc_kit.learning.train.copies import Copies, Readout
from dedloc_kit.learning.train.flat_model import FlatModel
from dedloc_kit.learning.train.gradients.gradients import Gradients

CPU = torch.device("cpu")


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Tanh()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def model() -> Blocks:
    torch.manual_seed(0)
    return Blocks()


def batch(size: int = 4, factor: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(size, 8, generator=generator), "factor": torch.full((size,), factor)}


def loss(model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
    torch.manual_seed(2)  # the same dropout each time
    mean = functional.mse_loss(model(batch["x"]).float(), batch["x"].roll(1, 1)) * batch["factor"][0]
    return Loss.of(mean, len(batch["x"]))


class _Infinite(torch.autograd.Function):
    """The gradient of what goes through is infinite."""

    @staticmethod
    def forward(ctx: object, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient * math.inf


def overflowing(model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
    """With an infinite factor the gradient is infinite, and the loss is not."""
    finite = batch["factor"].isfinite().all()
    value = loss(model, {**batch, "factor": torch.ones_like(batch["factor"])}, step)
    infinite: Tensor = _Infinite.apply(value.total)  # type: ignore[no-untyped-call]
    return value if finite else value._replace(total=infinite)


class Elsewhere(Copies):
    """Copies of a device whose memory is the processor's, but which is waited for."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.here = False
        self.read: list[float] = []

    def readout(self, values: Tensor) -> Readout:
        read = self.read

        class Told(Readout):
            def read(self) -> list[float]:
                found = super().read()
                read.append(found[0])
                return found

        return Told(values)


def card_of(half: torch.dtype | None = None, loss: LossFunction = loss) -> Card:
    return Card(FlatModel(model(), CPU), loss, half)


def gradients_of(card: Card, batch: dict[str, Tensor]) -> list[Tensor]:
    assert card.measure(batch) is not None
    return [p.grad.clone() for p in card.model.parameters() if p.grad is not None]


def losses_of(cards: Sequence[Card], batch: dict[str, Tensor]) -> list[float]:
    """What they find."""
    return [computed.loss for card in cards if (computed := card.measure(batch)) is not None]


def test_a_card_reads_an_outcome_through_the_copies_of_its_device_one_microbatch_later() -> None:
    copies = Elsewhere()
    card = Card(FlatModel(model(), CPU, copies), loss)
    found = []
    for size in (2, 4):
        assert card.submit(batch(size))
        found.append(card.results())
    assert [[each.samples for each in results] for results in found] == [[], [2]]
    assert copies.read == [each.loss for each in found[1]]
    assert [each.samples for each in card.finish()] == [4]
    flat = torch.arange(card.replica.layout.size, dtype=torch.float32)
    card.load(flat)
    assert torch.equal(card.replica.read(), flat)


def test_float16_gives_the_gradients_of_float32() -> None:
    exact, half = (card_of(dtype) for dtype in (None, torch.float16))
    first, second = losses_of([exact, half], batch())
    assert first == pytest.approx(second, rel=1e-2)
    for ours, theirs in zip(gradients_of(half, batch()), gradients_of(exact, batch()), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=1e-4)


def test_small_gradients_survive_float16_because_the_loss_is_scaled() -> None:
    exact, half = (card_of(dtype) for dtype in (None, torch.float16))
    tiny = batch(factor=2e-6)
    for ours, theirs in zip(gradients_of(half, tiny), gradients_of(exact, tiny), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=1e-9)


def test_a_scale_that_is_too_large_costs_its_microbatches_and_the_accumulated_gradients_stay_exact() -> None:
    exact, half = (card_of(dtype) for dtype in (None, torch.float16))
    accumulated, layout = Gradients([half.replica]), half.replica.layout
    taken = []
    for size in (2, 4, 2, 6, 2, 4, 2, 6, 4, 2):
        assert half.submit(batch(size, factor=200.0))
        (computed,) = half.results()
        taken.append(size if computed.finite else 0)
        assert computed.rescaled == (taken[-1] == 0), "what was left out is no fault"
    assert taken[0] == 0, "the first scale overflows"
    assert taken[-3:] == [6, 4, 2], "a smaller one does not"
    flat = torch.zeros(layout.size)
    accumulated.load_in_flight(flat)
    means = [torch.zeros_like(p) for p in half.model.parameters()]
    for size in filter(None, taken):
        for mean, gradient in zip(means, gradients_of(exact, batch(size, factor=200.0)), strict=True):
            mean += gradient * size / sum(taken)
    for ours, theirs in zip(layout.views(flat), means, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=0.05)


def test_gradients_that_overflow_at_every_scale_are_a_fault_and_the_scale_recovers() -> None:
    half, exact = card_of(torch.float16, overflowing), card_of()
    found = []
    for _ in range(40):
        assert half.submit(batch(factor=math.inf))
        found += half.results()
    assert [each.finite for each in found] == [False] * 40
    assert [each.rescaled for each in found] == [True] * 16 + [False] * 24, "until there is no scale left"
    assert all(math.isfinite(each.loss) for each in found)
    first, second = losses_of([exact, half], batch())
    assert first == pytest.approx(second, rel=1e-2)
    for ours, theirs in zip(gradients_of(half, batch()), gradients_of(exact, batch()), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=1e-4)


def test_a_batch_that_does_not_fit_leaves_no_gradients() -> None:
    def runs_out(model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        loss(model, batch, step).mean.backward()  # some gradients are there by then
        raise torch.OutOfMemoryError

    card = card_of(loss=runs_out)
    assert not card.submit(batch())
    assert card.measure(batch()) is None
    assert not card.replica.gradients.vector.any()
    assert (card.results(), card.snapshot()) == ([], None)


def test_checkpointed_blocks_have_the_same_gradients_and_keep_less() -> None:
    def kept(card: Card) -> int:
        """The numbers that are kept for the backward pass, the parameters left out."""
        found: dict[int, int] = {}
        parameters = {p.data_ptr() for p in card.model.parameters()}

        def keep(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in parameters:
                found[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            value = loss(card.model, batch(64), 0).mean
        size = sum(found.values())
        value.backward()
        card.clear()
        return size

    plain, saving = card_of(), card_of()
    saving.checkpointing.begin()
    assert kept(saving) < kept(plain)
    for ours, theirs in zip(gradients_of(saving, batch(64)), gradients_of(plain, batch(64)), strict=True):
        assert torch.equal(ours, theirs), "dropout included"
    with pytest.raises(UserError, match="choose the device 'cpu'"):
        saving.checkpointing.begin()
    saving.checkpointing.end()
    assert kept(saving) == kept(plain)


def test_a_model_without_blocks_cannot_be_checkpointed() -> None:
    assert not Checkpointing(nn.Sequential(nn.Linear(8, 8), nn.Tanh())).possible
