"""Peers take steps of their own; what is averaged is the way they went, and none of it is lost or counted twice."""

import pytest
import torch

from dedloc_kit.records import Receipt
from dedloc_kit.run import RunConfig
from dedloc_kit.training.local_steps import LocalSteps
from dedloc_kit.training.optimizers.lamb import Lamb
from dedloc_kit.training.optimizers.outer import NesterovSGD
from dedloc_kit.training.state import Replica, TrainingState
from tests.tiny import tiny_run

RUN = tiny_run(averaging={"mode": "local-steps", "outer_learning_rate": 0.5, "outer_momentum": 0.9})


def shared(run: RunConfig = RUN) -> TrainingState:
    model = torch.nn.Linear(4, 3, bias=False)
    torch.nn.init.ones_(model.weight)
    settings = run.averaging
    return TrainingState(
        model,
        lambda m: NesterovSGD(m.parameters(), lr=settings.outer_learning_rate, momentum=settings.outer_momentum),
        run,
    )


class Peer:
    def __init__(self, state: TrainingState, local_batch: int = 4) -> None:
        self.state, self.replica = state, Replica(state, torch.device("cpu"))
        self.weight = next(iter(self.replica.model.parameters()))
        optimizer = Lamb([self.weight], lr=0.1, weight_decay=0.0)
        self.steps = LocalSteps(
            [self.replica],
            state,
            optimizer,
            local_batch=local_batch,
            max_norm=1.0,
            learning_rate=lambda _: 0.1,
        )
        self.flat = torch.zeros(state.layout.size)

    def train(self, samples: int, gradient: float = 1.0) -> None:
        self.weight.grad = torch.full((3, 4), gradient)
        assert self.steps.add(1.0, samples, self.replica.step)
        self.steps.boundary()


def receipt(step: int, round_id: str) -> Receipt:
    return Receipt(step=step, round=round_id, time=1.0, seconds=0.0, signed=())


def test_a_local_step_is_taken_when_its_samples_have_come_together() -> None:
    peer = Peer(shared())
    peer.train(2)
    assert bool((peer.weight == 1.0).all())
    peer.train(2)
    assert bool((peer.weight < 1.0).all())
    assert peer.steps.tally.samples == 4


def test_what_is_outgoing_is_the_way_from_the_shared_parameters() -> None:
    peer = Peer(shared())
    for _ in range(3):
        peer.train(4)
    peer.steps.load_outgoing(peer.flat)
    assert torch.equal(peer.flat, 1.0 - peer.weight.detach().flatten())
    assert peer.steps.tally.outgoing == 12


def test_two_peers_that_average_their_ways_hold_the_same_shared_parameters() -> None:
    one, other = Peer(shared()), Peer(shared())
    one.train(4)
    other.train(4, gradient=-1.0)
    other.train(4, gradient=-1.0)
    for peer in (one, other):
        peer.steps.load_outgoing(peer.flat)
    average = (4 * one.flat + 8 * other.flat) / 12
    for peer in (one, other):
        peer.state.apply(average, receipt(1, "aa"))
        peer.steps.count_outgoing()
        peer.replica.refresh(peer.steps.rebase, lambda: None)
        # Nesterov's first step: (1 + momentum) times the way, times the outer learning rate.
        assert torch.allclose(peer.weight.flatten(), 1.0 - 0.5 * 1.9 * average)
    assert torch.equal(one.weight, other.weight)


def test_what_was_learned_while_a_round_ran_goes_on_from_the_new_parameters() -> None:
    peer = Peer(shared())
    peer.train(4)
    peer.steps.load_outgoing(peer.flat)
    before = peer.weight.detach().clone()
    peer.train(4)
    late = peer.weight.detach() - before
    peer.state.apply(peer.flat, receipt(1, "aa"))
    peer.steps.count_outgoing()
    peer.replica.refresh(peer.steps.rebase, lambda: None)
    assert torch.allclose(peer.weight, peer.state.parameters[0] + late, atol=1e-6)
    peer.steps.load_outgoing(peer.flat)
    assert torch.allclose(peer.flat, -late.flatten(), atol=1e-6)
    assert (peer.steps.tally.outgoing, peer.steps.tally.counted) == (4, 4)


@pytest.mark.parametrize("counted", [True, False])
def test_a_round_in_doubt_counts_once_or_goes_into_the_next(counted: bool) -> None:
    peer = Peer(shared())
    peer.train(4)
    peer.steps.load_outgoing(peer.flat)
    first = peer.flat.clone()
    peer.steps.doubt("aa")
    peer.train(4)
    peer.steps.load_outgoing(peer.flat)
    both = peer.flat.clone()
    peer.steps.settle(["aa"] if counted else ["bb"])
    peer.steps.load_outgoing(peer.flat)
    assert torch.allclose(peer.flat, both - first if counted else both, atol=1e-6)
    assert peer.steps.tally.outgoing == (4 if counted else 8)


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    peer = Peer(shared())
    peer.weight.grad = torch.full((3, 4), float("nan"))
    assert not peer.steps.add(1.0, 4, 0)
    assert bool((peer.weight == 1.0).all())
    assert peer.steps.tally.samples == 0
