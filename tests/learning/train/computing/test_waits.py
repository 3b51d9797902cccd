"""A card is waited for once a microbatch at most, and holds nothing in float64."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.task import Loss
from dedloc_kit.learning.train.computing.card import Batch, Card, LossFunction
from dedloc_kit.learning.train.computing.loss_scale import loss_scale
from dedloc_kit.learning.train.computing.recomputing import Wanted, recompute
from dedloc_kit.learning.train.gradients.gradients import Gradients
from dedloc_kit.learning.train.gradients.local_steps import LocalSteps
from dedloc_kit.learning.train.optim.build import build_optimizer, local_optimizer
from dedloc_kit.learning.train.state.replica import Replica
from dedloc_kit.learning.train.state.state import TrainingState
from tests.learning.counting_device import DEVICE, counting
from tests.tiny import TinyTask, tiny_run

SAMPLES, MICROBATCHES = 4, 5
HALVES = (None, torch.bfloat16, torch.float16)


def replica_of(run: RunConfig, device: torch.device) -> Replica:
    task = TinyTask(run)
    optimizer = lambda model: build_optimizer(run.optimizer, task.groups(model))  # noqa: E731
    return Replica(TrainingState(task.model(), optimizer, run), device)


def batches(run: RunConfig) -> Iterator[Batch]:
    return TinyTask(run).batches(SAMPLES, 1, pytest.fail)


def nan_in(microbatch: int, loss: LossFunction) -> LossFunction:
    """The loss, but for that of one microbatch."""
    calls = list[int]()

    def spoiled(model: nn.Module, batch: Batch, step: int) -> Loss:
        calls.append(1)
        found = loss(model, batch, step)
        return found._replace(total=found.total * (torch.nan if len(calls) == microbatch else 1.0))

    return spoiled


@pytest.mark.parametrize("half", HALVES)
def test_a_microbatch_waits_for_the_outcome_of_the_one_before_and_for_nothing_else(half: torch.dtype | None) -> None:
    run = tiny_run()
    card = Card(replica_of(run, DEVICE), TinyTask(run).loss, half)
    told = list[int]()
    for batch in islice(batches(run), MICROBATCHES):
        with counting() as counts:
            assert card.submit(batch)
            assert not counts.waits, "launching waits for nothing"
            told.append(len(card.results()))
        assert counts.waits.total() <= 1, counts.waits
    assert told == [0, 1, 1, 1, 1]
    assert [computed.finite for computed in card.finish()] == [True]


def test_a_round_waits_once_for_a_card_and_newer_parameters_for_nothing() -> None:
    run = tiny_run()
    replica = replica_of(run, DEVICE)
    card, gradients = Card(replica, TinyTask(run).loss), Gradients([replica])
    flat = torch.zeros(replica.layout.size)
    for batch in islice(batches(run), MICROBATCHES):
        card.submit(batch)
        card.results()
    with counting() as counts:
        gradients.load_in_flight(flat)
    # The outcome of the last microbatch has been computed when the sum has been.
    assert sorted(kind.split(" in ")[0] for kind in counts.waits.elements()) == ["copy out", "tolist"]
    with counting() as counts:
        card.load(flat)
    assert not counts.waits
    assert torch.equal(replica.read(), flat)


def test_a_card_adds_up_what_the_processor_does() -> None:
    run = tiny_run()
    found = []
    for device in (DEVICE, torch.device("cpu")):
        card = Card(replica_of(run, device), TinyTask(run).loss)
        for batch in islice(batches(run), MICROBATCHES):
            card.submit(batch)
        snapshot = card.snapshot()
        assert snapshot is not None
        assert snapshot.samples == SAMPLES * MICROBATCHES
        found.append((snapshot, card.finish()))
    (one, ones), (other, others) = found
    assert one.loss == pytest.approx(other.loss)
    assert all(map(torch.allclose, one.gradients, other.gradients))
    assert ones[-1] == others[-1]


def test_a_microbatch_that_is_not_finite_is_claimed_until_a_round_waits_for_the_card_and_told_one_later() -> None:
    run = tiny_run()
    replica = replica_of(run, DEVICE)
    card = Card(replica, nan_in(2, TinyTask(run).loss), work=lambda batch, step: bytes([len(batch["x"])]))
    gradients, flat = Gradients([replica]), torch.zeros(replica.layout.size)
    first, second = islice(batches(run), 2)
    card.submit(first)
    card.submit({"x": second["x"][:3]})
    assert [computed.finite for computed in card.results()] == [True]
    assert gradients.counter.samples == SAMPLES + 3
    gradients.load_in_flight(flat)
    assert (gradients.counter.in_flight, gradients.counter.pending) == (SAMPLES, 0)
    assert gradients.counter.work == (bytes([SAMPLES]),)
    assert flat.isfinite().all()
    assert flat.any()
    assert [(computed.samples, computed.finite) for computed in card.finish()] == [(3, False)]
    assert gradients.counter.samples == SAMPLES


def test_the_number_of_samples_is_right_once_an_outcome_is_told_too() -> None:
    run = tiny_run()
    replica = replica_of(run, DEVICE)
    card, gradients = Card(replica, nan_in(1, TinyTask(run).loss)), Gradients([replica])
    claimed = list[int]()
    for batch in islice(batches(run), 3):
        card.submit(batch)
        claimed.append(gradients.counter.samples)
        card.results()
    assert claimed == [SAMPLES, 2 * SAMPLES, 2 * SAMPLES]
    assert gradients.forget() == 2 * SAMPLES


def test_two_microbatches_that_overflow_at_the_same_scale_lower_it_once() -> None:
    run, scales = tiny_run(), list[float]()

    def loss(model: nn.Module, batch: Batch, step: int) -> Loss:
        scales.append(loss_scale())
        found = TinyTask(run).loss(model, batch, step)
        return found._replace(total=found.total * (1e35 if len(scales) <= 2 else 1.0))

    card = Card(replica_of(run, DEVICE), loss, torch.float16)
    told = []
    for batch in islice(batches(run), MICROBATCHES):
        card.submit(batch)
        told += card.results()
    assert scales == [2.0**16, 2.0**16, 2.0**15, 2.0**15, 2.0**15]
    assert [(each.finite, each.rescaled) for each in told] == [(False, True)] * 2 + [(True, False)] * 2


@pytest.mark.parametrize("half", HALVES)
def test_nothing_on_a_card_is_float64_with_averaged_gradients(half: torch.dtype | None) -> None:
    run = tiny_run()
    replica = replica_of(run, DEVICE)
    card, gradients = Card(replica, TinyTask(run).loss, half), Gradients([replica])
    flat = torch.zeros(replica.layout.size)
    with counting() as counts:
        for batch in islice(batches(run), MICROBATCHES):
            card.submit(batch)
            card.results()
            gradients.load_in_flight(flat)
            gradients.rebase(flat)
        assert recompute(replica, card, Wanted(batch, flat.clone(), 0, 0, 5)) is not None
    assert not counts.double


@pytest.mark.parametrize("name", ["lamb", "lars", "adamw", "muon"])
def test_nothing_on_a_card_is_float64_in_local_steps_which_are_those_of_the_processor(name: str) -> None:
    settings: dict[str, Any] = {"name": name, "learning_rate": 0.01, "warmup_steps": 0, "total_steps": 1000}
    run = tiny_run(averaging={"mode": "local-steps", "local_batch": 2 * SAMPLES}, optimizer=settings)
    ways = []
    for device in (DEVICE, torch.device("cpu")):
        replica, task = replica_of(tiny_run(), device), TinyTask(run)
        optimizer = local_optimizer(run.optimizer, task.groups(replica.model), replica.model)
        steps = LocalSteps(
            [replica],
            optimizer,
            local_batch=2 * SAMPLES,
            max_norm=1.0,
            learning_rate=lambda _: settings["learning_rate"],
        )
        card = Card(replica, task.loss)
        flat = replica.read()
        with counting() as counts:
            for batch in islice(batches(run), 2 * MICROBATCHES):
                card.submit(batch)
                card.results()
                steps.boundary()
            steps.rebase(flat)
            steps.load_in_flight(flat)
        assert not counts.double
        ways.append(flat)
    assert float((ways[0] - ways[1]).norm() / ways[1].norm()) < (1e-2 if name == "muon" else 1e-6)
