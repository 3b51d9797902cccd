"""What was computed with parameters of before is found again, and nothing of that is left behind."""

import pytest
import torch
from torch import Tensor, nn

from dedloc_kit.learning.task import Loss
from dedloc_kit.learning.train.computing.card import Card, Computed
from dedloc_kit.learning.train.computing.recomputing import Wanted, on_cpu, recompute
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.state.replica import Replica
from dedloc_kit.learning.train.state.state import TrainingState
from tests.tiny import WIDTH, TinyTask, tiny_run

CPU = torch.device("cpu")


class WithBuffers(TinyTask):
    """Its model counts what it has seen, and normalises it."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(WIDTH), super().model())

    def loss(self, model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        loss = super().loss(model, batch, step)
        return loss._replace(total=loss.total * (step + 1))


class Peer:
    def __init__(self) -> None:
        run = tiny_run()
        self.task = WithBuffers(run)
        self.state = TrainingState(
            self.task.model(),
            lambda model: build_optimizer(run.optimizer, self.task.groups(model)),
            run,
        )
        self.replica = Replica(self.state, CPU)
        self.card = Card(self.replica, self.task.loss)
        self.batch = next(self.task.batches(4, 1, lambda _: None))

    def gradient(self) -> Tensor:
        """Of its batch, flat."""
        assert self.card.measure(self.batch) is not None
        gradients = [p.grad for p in self.replica.model.parameters() if p.grad is not None]
        found = self.state.layout.part(gradients, 0, self.state.layout.size)
        self.card.clear()
        return found

    def wanted(self) -> Wanted:
        """Some of the gradient of its batch, with parameters that it does not hold."""
        return Wanted(self.batch, torch.linspace(-1, 1, self.state.layout.size), 3, 2, 9)

    def held(self) -> list[Tensor]:
        """All that its replica holds."""
        return [each.detach().clone() for each in (*self.replica.model.parameters(), *self.replica.model.buffers())]

    def move(self) -> None:
        """To other parameters, those of the step after."""
        with torch.no_grad():
            for parameter in self.replica.model.parameters():
                parameter.add_(0.1 * parameter.sign() + 0.01)
        self.replica.step += 1


def test_a_gradient_of_before_is_computed_again_bit_for_bit_and_the_replica_is_as_it_was() -> None:
    peer = Peer()
    before, expected = peer.state.flat.clone(), peer.gradient()
    peer.move()
    assert not torch.equal(peer.gradient(), expected)
    held, parameters = peer.held(), before.clone()
    begin, end = 5, peer.state.layout.size - 3
    part = recompute(peer.replica, peer.card, Wanted(peer.batch, parameters, 0, begin, end))
    assert part is not None
    assert torch.equal(part.values, expected[begin:end])
    assert part.norm == pytest.approx(float(expected.norm()), rel=1e-5)
    assert all(map(torch.equal, held, peer.held())), "buffers, too"
    assert peer.replica.step == 1
    assert torch.equal(parameters, before)
    assert not peer.replica.gradients.vector.any()


def test_whoever_has_no_replica_finds_the_same_and_the_state_is_as_it_was() -> None:
    peer = Peer()
    before, expected = peer.state.flat.clone(), peer.gradient()
    with torch.no_grad():
        peer.state.flat.mul_(2)
    tensors = [each.clone() for each in peer.state.tensors()]
    part = on_cpu(peer.state, peer.task.loss)(Wanted(peer.batch, before, 0, 0, len(expected)))
    assert part is not None
    assert torch.equal(part.values, expected)
    assert all(map(torch.equal, tensors, peer.state.tensors()))


class Overflowing(Card):
    """So many times."""

    times, trials = 0, 0

    def measure(self, batch: dict[str, Tensor]) -> Computed | None:
        found = super().measure(batch)
        self.trials += 1
        overflows = self.trials <= self.times
        return None if found is None else found._replace(rescaled=overflows, finite=not overflows)


@pytest.mark.parametrize(("times", "found"), [(1, True), (2, False)])
def test_a_gradient_that_overflows_in_float16_is_tried_once_more(times: int, found: bool) -> None:
    peer = Peer()
    held = peer.held()
    card = Overflowing(peer.replica, peer.task.loss)
    card.times = times
    assert (recompute(peer.replica, card, peer.wanted()) is not None) is found
    assert card.trials == 2
    assert all(map(torch.equal, held, peer.held()))


def test_a_gradient_that_is_not_finite_is_none() -> None:
    peer = Peer()
    endless = Card(peer.replica, lambda model, batch, step: Loss.of(model(batch["x"]).mean() * torch.inf, 1))
    assert recompute(peer.replica, endless, peer.wanted()) is None


def test_what_does_not_fit_into_the_memory_is_none_and_what_fails_leaves_the_parameters_in_place() -> None:
    peer = Peer()
    held = peer.held()

    def failing(error: RuntimeError) -> Card:
        def loss(*_: object) -> Loss:
            raise error

        return Card(peer.replica, loss)

    assert recompute(peer.replica, failing(torch.OutOfMemoryError()), peer.wanted()) is None
    with pytest.raises(RuntimeError, match="illegal memory access"):
        recompute(peer.replica, failing(RuntimeError("an illegal memory access")), peer.wanted())
    assert all(map(torch.equal, held, peer.held()))
