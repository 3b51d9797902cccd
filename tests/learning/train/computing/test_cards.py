"""Several devices of a host give what one would: here replicas on the CPU, each with its thread."""

import itertools
import threading

import pytest
import torch
from torch import Tensor, nn

from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.learning.task import Loss
from dedloc_kit.learning.train.computing.card import LossFunction, Prepare
from dedloc_kit.learning.train.computing.cards import MOST_TIMES, Callbacks, Cards
from dedloc_kit.learning.train.computing.recomputing import Wanted
from dedloc_kit.learning.train.gradients.accumulator import Accumulator
from dedloc_kit.learning.train.gradients.gradients import Gradients
from dedloc_kit.learning.train.gradients.local_steps import LocalSteps
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.state.replica import Replica
from dedloc_kit.learning.train.state.state import TrainingState
from tests.tiny import WIDTH, TinyTask, tiny_run

CPU = torch.device("cpu")
MICROBATCH, TURNS = 4, 6
LOCAL = {"mode": "local-steps", "local_batch": 2 * MICROBATCH}


class Host:
    """So many CPU devices, and what takes their gradients."""

    def __init__(
        self,
        run: RunConfig,
        count: int,
        losses: list[LossFunction] | None = None,
        in_step: bool = True,
        prepare: Prepare = dict,
    ) -> None:
        task = TinyTask(run)
        self.state = TrainingState(task.model(), lambda m: build_optimizer(run.optimizer, groups(m)), run)
        self.replicas = [Replica(self.state, CPU) for _ in range(count)]
        self.gradients = self._gradients(run)
        self.batches = task.batches(MICROBATCH, 5, lambda _: None)
        caller = Callbacks(self._refresh, self.gradients.leave_out)
        given = losses or count * [task.loss]
        self.cards = Cards(self.replicas, given, self.batches, caller, in_step=in_step, prepare=prepare)
        self.samples = 0

    def _gradients(self, run: RunConfig) -> Accumulator:
        if run.averaging.mode == "global-batch":
            return Gradients(self.replicas)
        optimizer = build_optimizer(run.optimizer, groups(self.replicas[0].model))
        batch = run.averaging.local_batch
        return LocalSteps(self.replicas, optimizer, local_batch=batch, max_norm=1.0, learning_rate=lambda _: 0.01)

    def _refresh(self, number: int) -> None:
        self.replicas[number].refresh(lambda newer: self.gradients.rebase(newer, number), lambda: None)

    def turn(self) -> set[int]:
        """Who has computed something in it."""
        computed = self.cards.compute()
        assert all(each.finite for each in computed)
        self.samples += sum(each.samples for each in computed)
        self.gradients.boundary()
        return {each.replica for each in computed}

    def outgoing(self) -> Tensor:
        flat = torch.zeros(self.state.layout.size)
        self.gradients.load_in_flight(flat)
        return flat


def groups(model: nn.Module) -> list[dict[str, object]]:
    return [{"params": list(model.parameters()), "weight_decay": 0.0}]


@pytest.mark.parametrize("averaging", [{}, LOCAL], ids=["gradients", "local steps"])
def test_two_devices_give_what_one_gives_of_the_same_batches(averaging: dict[str, object]) -> None:
    run = tiny_run(averaging=averaging)
    two, one = Host(run, 2), Host(run, 1)
    for _ in range(TURNS):
        assert two.turn() == {0, 1}
    for _ in range(2 * TURNS):
        one.turn()
    assert two.samples == one.samples == 2 * TURNS * MICROBATCH
    found, expected = two.outgoing(), one.outgoing()
    assert float((found - expected).norm() / expected.norm()) < 1e-6
    assert two.gradients.counter.in_flight == one.gradients.counter.in_flight == one.samples
    assert two.gradients.counter.loss == pytest.approx(one.gradients.counter.loss)
    first, second = (list(replica.model.parameters()) for replica in two.replicas)
    assert all(map(torch.equal, first, second))
    two.cards.close()


def test_a_device_that_is_not_in_step_goes_on_while_another_computes() -> None:
    held = threading.Event()

    def slow(model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        held.wait(60)
        return quick(model, batch, step)

    run = tiny_run()
    quick: LossFunction = TinyTask(run).loss
    host = Host(run, 2, [slow, quick], in_step=False)
    for _ in range(3):
        assert host.turn() == {1}
    held.set()
    seen = set[int]()
    while 0 not in seen:
        seen |= host.turn()
    host.cards.close()


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("in_step", [True, False])
def test_a_device_that_fails_is_left_out_without_its_samples_and_the_other_goes_on(
    lost: int, in_step: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run = tiny_run()
    quick: LossFunction = TinyTask(run).loss
    calls = itertools.count(1)

    def failing(model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        if next(calls) > 2:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
        return quick(model, batch, step)

    losses: list[LossFunction] = [quick, quick]
    losses[lost] = failing
    host = Host(run, 2, losses, in_step)
    given = {0: 0, 1: 0}
    while not caplog.messages:
        for number in host.turn():
            given[number] += MICROBATCH
    (told,) = caplog.messages
    assert told.endswith("(cpu) is left out, the others go on: CUDA error: an illegal memory access was encountered")
    for _ in range(3):
        assert host.turn() == {1 - lost}
    assert host.gradients.counter.samples == given[1 - lost] + 3 * MICROBATCH
    assert host.outgoing().norm() > 0
    host.cards.close()


def test_what_a_card_computes_is_prepared_once_it_has_been_split() -> None:
    run, prepared = tiny_run(), list[int]()

    def prepare(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        prepared.append(len(batch["x"]))
        return {**batch, "samples": torch.tensor([len(batch["x"])])}  # which cannot be split

    def loss(model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        assert batch["samples"].tolist() == [len(batch["x"])]
        if len(batch["x"]) > MICROBATCH // 2:
            raise torch.OutOfMemoryError
        return quick(model, batch, step)

    quick: LossFunction = TinyTask(run).loss
    host = Host(run, 1, [loss], prepare=prepare)
    for _ in range(4):
        host.turn()
    assert prepared == [MICROBATCH, *3 * [MICROBATCH // 2]]
    assert host.cards.recompute(wanted(host, 2)) is not None
    assert prepared[-1] == 2


def test_with_the_last_device_fails_the_volunteer(caplog: pytest.LogCaptureFixture) -> None:
    def failing(model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        raise torch.OutOfMemoryError

    host = Host(tiny_run(), 2, [failing, failing])
    with pytest.raises(UserError, match="not even with one sample at once"):
        list(iter(host.turn, {0, 1}))
    assert sum("is left out" in text for text in caplog.messages) == 1
    host.cards.close()


def test_no_local_step_is_taken_without_the_device_that_takes_them() -> None:
    run = tiny_run(averaging=LOCAL)
    quick: LossFunction = TinyTask(run).loss

    def failing(model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        raise RuntimeError("CUDA error: unspecified launch failure")

    host = Host(run, 2, [failing, quick])
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        host.turn()
    host.cards.close()


def test_each_device_tries_what_its_memory_holds_and_one_that_holds_nothing_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = tiny_run()
    quick: LossFunction = TinyTask(run).loss

    def holding(most: int) -> LossFunction:
        def loss(model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
            if len(batch["x"]) > most:
                raise torch.OutOfMemoryError
            return quick(model, batch, step)

        return loss

    host = Host(run, 3, [holding(2), holding(0), holding(1)])
    assert host.cards.find_sizes() in ([2, 1], [1, 1])  # a busy machine may find one sample as fast
    assert ["is left out" in text for text in caplog.messages] == [True]
    assert host.turn() == {0, 2}
    host.cards.close()


def wanted(host: Host, samples: int) -> Wanted:
    """Of so many samples, with parameters of step 7."""
    size = host.state.layout.size
    return Wanted({"x": torch.ones(samples, WIDTH)}, torch.linspace(-1, 1, size), 7, 3, size - 2)


def test_a_device_computes_again_what_suits_it_and_goes_on_as_if_nothing_had_been() -> None:
    run = tiny_run()
    steps = list[int]()

    def telling(model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        steps.append(step)
        return quick(model, batch, step)

    quick: LossFunction = TinyTask(run).loss
    disturbed, other = Host(run, 1, [telling]), Host(run, 1)
    assert disturbed.cards.recompute(wanted(disturbed, 1)) is None, "it is not known what it takes"
    for _ in range(3):
        disturbed.turn(), other.turn()
        assert disturbed.cards.recompute(wanted(disturbed, MOST_TIMES * MICROBATCH)) is not None
        assert disturbed.cards.recompute(wanted(disturbed, MOST_TIMES * MICROBATCH + 1)) is None
    assert steps == [0, 7] * 3
    assert torch.equal(disturbed.outgoing(), other.outgoing())
    disturbed.cards.close()


def test_a_device_that_waits_computes_again_what_others_do_not_have_to_stop_for() -> None:
    run, held, running = tiny_run(), threading.Event(), threading.Event()
    quick: LossFunction = TinyTask(run).loss

    def slow(model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        running.set()
        held.wait(60)
        return quick(model, batch, step)

    host = Host(run, 2, [slow, quick], in_step=False)
    assert host.turn() == {1}
    running.wait(60)
    assert host.cards.recompute(wanted(host, MICROBATCH)) is not None
    held.set()
    host.cards.close()


def test_a_device_that_fails_while_it_computes_again_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    run = tiny_run()
    quick: LossFunction = TinyTask(run).loss

    def failing(model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        if step == 7:
            raise RuntimeError("CUDA error: unspecified launch failure")
        return quick(model, batch, step)

    host = Host(run, 2, [failing, quick])
    assert host.turn() == {0, 1}
    assert host.cards.recompute(wanted(host, MICROBATCH)) is None
    assert ["is left out" in text for text in caplog.messages] == [True]
    assert host.turn() == {1}
    host.cards.close()
