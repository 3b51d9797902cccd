"""Peers take steps of their own; what is averaged is the way they went, and none of it is lost or counted twice."""

import pytest
import torch

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.train.gradients.local_steps import LocalSteps
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.optim.outer import NesterovSGD
from dedloc_kit.learning.train.state.replica import Replica
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.steps import Receipt
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of, decode
from dedloc_kit.swarm.allreduce.encoding.feedback import Feedback
from tests.learning.train.by_hand import give
from tests.tiny import tiny_run

RUN = tiny_run(averaging={"mode": "local-steps", "outer_learning_rate": 0.5, "outer_momentum": 0.9})


def shared(run: RunConfig = RUN, size: tuple[int, int] = (4, 3)) -> TrainingState:
    model = torch.nn.Linear(*size, bias=False)
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
        self.optimizer = Lamb([self.weight], lr=0.1, weight_decay=0.0)
        self.steps = LocalSteps(
            [self.replica],
            self.optimizer,
            local_batch=local_batch,
            max_norm=1.0,
            learning_rate=lambda _: 0.1,
        )
        self.flat = torch.zeros(state.layout.size)
        self.forgot = list[int]()

    def train(self, samples: int, gradient: float | torch.Tensor = 1.0) -> torch.Tensor:
        """How far that has moved it."""
        before = self.weight.detach().clone()
        assert give(self.replica, gradient, samples, step=self.replica.step)
        self.steps.boundary()
        return self.weight.detach() - before

    def outgoing(self) -> torch.Tensor:
        """The way that goes into a round from now on."""
        self.steps.load_in_flight(self.flat)
        return -self.flat.view_as(self.weight)

    def refresh(self) -> None:
        self.replica.refresh(self.steps.rebase, lambda: self.forgot.append(self.steps.forget()))


def take_the_round(peer: Peer) -> None:
    """What it brought is all that the average holds."""
    peer.state.apply(peer.flat, receipt(peer.state.step + 1, f"{peer.state.step:02d}"))
    peer.steps.mark_applied()


def receipt(step: int, round_id: str) -> Receipt:
    return Receipt(step=step, round=round_id, time=1.0, seconds=0.0, record=b"")


def test_a_local_step_counts_what_losses_are_over_and_not_samples() -> None:
    peer = Peer(shared())
    assert give(peer.replica, 1.0, samples=2, weight=30)
    assert give(peer.replica, -2.0, samples=2, weight=10)
    before = peer.weight.detach().clone()
    peer.steps.boundary()
    assert (peer.weight < before).all()


def test_a_local_step_is_taken_when_its_samples_have_come_together() -> None:
    peer = Peer(shared())
    peer.train(2)
    assert bool((peer.weight == 1.0).all())
    peer.train(2)
    assert bool((peer.weight < 1.0).all())
    assert peer.steps.counter.samples == 4


def test_a_session_begins_with_small_steps() -> None:
    """Adam's first ones would be as large as a step can be, however far the run is."""
    state = shared()
    for _ in range(2):  # sessions
        peer, rates = Peer(state), list[float]()
        for _ in range(13):
            peer.train(4)
            rates.append(peer.optimizer.param_groups[0]["lr"])
        assert rates == pytest.approx([0.1 * min(1.0, step / 11) for step in range(1, 14)])


def test_what_is_outgoing_is_the_way_from_the_shared_parameters() -> None:
    peer = Peer(shared())
    for _ in range(3):
        peer.train(4)
    peer.steps.load_in_flight(peer.flat)
    assert torch.equal(peer.flat, 1.0 - peer.weight.detach().flatten())
    assert peer.steps.counter.in_flight == 12


def test_two_peers_that_average_their_ways_hold_the_same_shared_parameters() -> None:
    one, other = Peer(shared()), Peer(shared())
    one.train(4)
    other.train(4, gradient=-1.0)
    other.train(4, gradient=-1.0)
    for peer in (one, other):
        peer.steps.load_in_flight(peer.flat)
    average = (4 * one.flat + 8 * other.flat) / 12
    for peer in (one, other):
        peer.state.apply(average, receipt(1, "aa"))
        peer.steps.mark_applied()
        peer.replica.refresh(peer.steps.rebase, lambda: None)
        # Nesterov's first step: (1 + momentum) times the way, times the outer learning rate.
        assert torch.allclose(peer.weight.flatten(), 1.0 - 0.5 * 1.9 * average)
    assert torch.equal(one.weight, other.weight)


def test_what_was_learned_while_a_round_ran_goes_on_from_the_new_parameters() -> None:
    peer = Peer(shared())
    peer.train(4)
    peer.steps.load_in_flight(peer.flat)
    before = peer.weight.detach().clone()
    peer.train(4)
    late = peer.weight.detach() - before
    peer.state.apply(peer.flat, receipt(1, "aa"))
    peer.steps.mark_applied()
    peer.replica.refresh(peer.steps.rebase, lambda: None)
    assert torch.allclose(peer.weight, peer.state.parameters[0] + late, atol=1e-6)
    peer.steps.load_in_flight(peer.flat)
    assert torch.allclose(peer.flat, -late.flatten(), atol=1e-6)
    assert (peer.steps.counter.in_flight, peer.steps.counter.applied) == (4, 4)


@pytest.mark.parametrize("counted", [True, False])
def test_a_round_in_doubt_counts_once_or_goes_into_the_next(counted: bool) -> None:
    peer = Peer(shared())
    peer.train(4)
    peer.steps.load_in_flight(peer.flat)
    first = peer.flat.clone()
    peer.steps.mark_unconfirmed("aa")
    peer.train(4)
    peer.steps.load_in_flight(peer.flat)
    both = peer.flat.clone()
    peer.steps.confirm(["aa"] if counted else ["bb"])
    peer.steps.load_in_flight(peer.flat)
    assert torch.allclose(peer.flat, both - first if counted else both, atol=1e-6)
    assert peer.steps.counter.in_flight == (4 if counted else 8)


def test_a_way_that_is_fixed_before_the_newer_parameters_are_taken_over_counts_once() -> None:
    """A slow device: while it computes one microbatch a round ends, and the next one begins."""
    peer = Peer(shared())
    peer.train(4)
    peer.outgoing()
    second = peer.train(4)
    take_the_round(peer)
    assert torch.allclose(peer.outgoing(), second, atol=1e-6)
    peer.refresh()
    assert torch.allclose(peer.weight, peer.state.parameters[0] + second, atol=1e-6)
    third = peer.train(4)
    take_the_round(peer)
    peer.refresh()
    assert torch.allclose(peer.weight, peer.state.parameters[0] + third, atol=1e-6)
    assert torch.allclose(peer.outgoing(), third, atol=1e-6)
    assert (peer.steps.counter.in_flight, peer.steps.counter.applied) == (4, 8)


@pytest.mark.parametrize("counted", [True, False])
def test_a_round_in_doubt_is_settled_though_its_parameters_have_been_taken_over(counted: bool) -> None:
    peer = Peer(shared())
    way = peer.train(4)
    peer.outgoing()
    peer.steps.mark_unconfirmed("aa")
    late = peer.train(4)
    peer.state.apply(peer.flat, receipt(1, "aa" if counted else "bb"))
    peer.refresh()  # while the peer still asks the others which round it was
    peer.steps.confirm(peer.state.rounds)
    assert torch.allclose(peer.outgoing(), late if counted else way + late, atol=1e-6)
    assert (peer.steps.counter.in_flight, peer.steps.counter.applied) == ((4, 4) if counted else (8, 0))
    peer.state.apply(peer.flat, receipt(2, "cc"))
    peer.steps.mark_applied()
    peer.refresh()
    assert torch.equal(peer.weight, peer.state.parameters[0])


def test_what_came_too_late_for_a_round_goes_into_the_next_one_with_what_came_after() -> None:
    peer = Peer(shared())
    way = peer.train(4)
    peer.outgoing()
    late = peer.train(4)
    peer.state.apply(torch.full_like(peer.flat, 0.5), receipt(1, "aa"))  # what the others had
    peer.refresh()
    assert torch.allclose(peer.weight, peer.state.parameters[0] + way + late, atol=1e-6)
    assert torch.allclose(peer.outgoing(), way + late, atol=1e-6)
    assert (peer.steps.counter.in_flight, peer.steps.counter.applied) == (8, 0)


def test_the_way_from_before_a_rewind_goes_nowhere_even_before_the_device_has_gone_back() -> None:
    peer = Peer(shared())
    peer.train(4)
    peer.outgoing()
    tensors, info = peer.state.copy()
    peer.state.go_back(tensors, info, receipt(1, "aa"), 1.0)
    assert peer.steps.forget() == 4
    assert not peer.outgoing().any()
    peer.train(4)  # with the parameters of before
    peer.outgoing()
    peer.refresh()
    assert peer.forgot == [4]
    peer.steps.mark_applied()
    assert torch.equal(peer.weight, peer.state.parameters[0])
    way = peer.train(4)
    assert torch.allclose(peer.outgoing(), way, atol=1e-6)


def test_beside_rounds_of_few_values_all_of_its_way_is_sent_or_still_to_be_sent() -> None:
    peer, sent = Peer(shared(size=(100, 90))), Feedback(9000)
    noise = torch.Generator().manual_seed(0)
    whole, arrived = torch.zeros(90, 100), torch.zeros(9000)
    for step in range(1, 5):
        whole += peer.train(4, torch.randn(90, 100, generator=noise))
        peer.outgoing()
        sent.begin(1.0)
        message = sent.encode(codec_of("sparse").gradients, peer.flat, 0)
        whole += peer.train(4, torch.randn(90, 100, generator=noise))  # while it travels
        if step == 2:
            sent.discard()  # the round fails
            peer.steps.mark_unconfirmed("aa")
            continue
        sent.commit()
        average = decode(message, 9000)
        assert 0 < int(average.count_nonzero()) <= 3 * 64
        arrived += average
        peer.state.apply(average, receipt(step, f"{step:02d}"))
        peer.steps.mark_applied()
        peer.refresh()
    assert sent.residual is not None
    left = (arrived + sent.residual).view(90, 100) - peer.outgoing()
    assert torch.allclose(left, -whole, atol=1e-5)
    assert peer.steps.counter.samples + peer.steps.counter.applied == 32


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    peer = Peer(shared())
    assert not give(peer.replica, float("nan"), 4)
    peer.steps.boundary()
    assert bool((peer.weight == 1.0).all())
    assert peer.steps.counter.samples == 0
