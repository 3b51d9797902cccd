"""Hosts of experts that answer wrongly, late or not at all: they are left out and named, others are asked."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from torch import Tensor

from dedloc_kit.records.experts import LayerCells
from dedloc_kit.swarm.experts import hosts as hosts_module
from tests.swarm.experts.local_hosts import CELLS, LAYER, NAMES, Swarm, honest, learn, swarm, tokens

HELD = {name.cell for name in NAMES[::2] if name.layer == LAYER}
"""Of host `a`."""


@pytest.fixture
def two() -> Iterator[Swarm]:
    with swarm() as made:
        yield made


def nan(made: Tensor) -> Tensor:
    return made * float("nan")


def other_shape(made: Tensor) -> Tensor:
    return made[:, :2]


def fewer(made: Tensor) -> Tensor:
    return made[:-1]


def constant(made: Tensor) -> Tensor:
    return made[:1].expand_as(made)


def huge(made: Tensor) -> Tensor:
    return made * 1e6


def lie(two: Swarm, change: Callable[[Tensor], Tensor], what: str = "output") -> None:
    """Of host `a`, from now on."""
    bank = two.hosts["a"].bank
    right = getattr(bank, what)
    setattr(bank, what, lambda *given: change(right(*given)))


@pytest.mark.parametrize(
    ("change", "kind", "what"),
    [
        (nan, "values", "output"),
        (other_shape, "shape", "output"),
        (fewer, "shape", "output"),
        (constant, "constant", "output"),
        (huge, "absurd", "output"),
        (nan, "values", "learn"),
        (fewer, "shape", "learn"),
        (huge, "absurd", "learn"),
    ],
)
def test_a_host_that_answers_wrongly_is_left_out_and_named(
    two: Swarm, change: Callable[[Tensor], Tensor], kind: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_module, "AVOIDED_SECONDS", 0.05)  # a host that only fails is soon asked again
    trainer = two.trainer("t")
    for seed in range(4):
        learn(trainer, seed, 2)
    lie(two, change, what)
    outputs, gradients = learn(trainer, 5, 2)
    assert gradients.keys() == set(CELLS) - HELD
    assert outputs.keys() == (set(CELLS) - HELD if what == "output" else set(CELLS))
    two.until(lambda: bool(two.failed))
    assert two.failed == [("a", kind)]
    assert not any(trainer.alive(LAYER)[cell] for cell in HELD)
    assert all(trainer.alive(LAYER)[cell] for cell in set(CELLS) - HELD)
    time.sleep(0.3)
    honest_ones = learn(trainer, 6, 2)
    assert [set(each) for each in honest_ones] == [set(CELLS) - HELD] * 2
    assert len(two.failed) == 1, "it is not asked again"


def test_a_host_that_has_answered_wrongly_is_not_asked_if_it_leaves_and_comes_again(two: Swarm) -> None:
    trainer = two.trainer("t")
    lie(two, nan)
    learn(trainer, 1, 2)
    offer = two.offers.pop("a")
    two.until(lambda: "a" not in trainer._hosts._hosts)
    two.offers["a"] = offer
    two.until(lambda: "a" in trainer._hosts._hosts)
    time.sleep(0.3)
    assert learn(trainer, 2, 2)[0].keys() == set(CELLS) - HELD
    assert two.failed == [("a", "values")]


def test_a_host_that_answers_another_call_is_left_out_and_named(two: Swarm) -> None:
    trainer, host = two.trainer("t"), two.hosts["a"].service
    right = host._forward
    host._forward = lambda *call: right(*call)._replace(answered=[1, 0, 2])  # type: ignore[method-assign]
    outputs, _ = learn(trainer, 5, 2)
    assert outputs.keys() == set(CELLS) - HELD
    assert two.failed == [("a", "nonsense")]


@pytest.mark.parametrize("what", ["output", "learn"])
def test_a_host_that_falls_silent_costs_one_deadline(two: Swarm, what: str) -> None:
    trainer = two.trainer("t")
    for seed in range(4):
        learn(trainer, seed, 2)
    free = threading.Event()
    bank = two.hosts["a"].bank
    right = getattr(bank, what)
    setattr(bank, what, lambda *given: free.wait(3) and right(*given))
    began = time.monotonic()
    _, gradients = learn(trainer, 5, 2)
    again = [learn(trainer, seed, 2)[0].keys() for seed in (6, 7)]
    took = time.monotonic() - began
    free.set()
    assert gradients.keys() == set(CELLS) - HELD
    assert again == [set(CELLS) - HELD] * 2
    assert two.failed == [("a", "late")]
    assert took < 5.0


def test_a_host_that_is_cut_off_is_left_out_and_asked_again_when_it_is_back(
    two: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_module, "AVOIDED_SECONDS", 0.2)
    trainer = two.trainer("t")
    learn(trainer, 1, 2)
    two.cut("a")
    outputs, _ = learn(trainer, 2, 2)
    assert outputs.keys() == set(CELLS) - HELD
    assert two.failed == [("a", "gone")]
    two.run(two.network.endpoint("a").add(two.hosts["a"].service))
    two.until(lambda: bool(trainer.alive(LAYER).all()))
    assert learn(trainer, 3, 2)[0].keys() == set(CELLS)
    assert len(two.failed) == 1


def test_an_expert_that_does_not_answer_is_left_out_and_not_asked_for_some_seconds(
    two: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, gone = two.trainer("t"), NAMES[::2][-1]
    two.hosts["a"].bank.drop(gone)
    for seed in (1, 2):
        assert [set(each) for each in learn(trainer, seed, 2)] == [set(CELLS) - {gone.cell}] * 2
    assert two.hosts["a"].refused == {"unknown": 1}
    assert trainer.alive(0).all(), "its cell in another layer is another expert's"
    monkeypatch.setattr(hosts_module, "AVOIDED_SECONDS", 0.0)
    two.hosts["a"].bank.hold([gone])
    two.until(lambda: bool(trainer.alive(LAYER).all()))
    assert learn(trainer, 3, 2)[0].keys() == set(CELLS)


def test_a_record_of_another_grid_is_not_believed(two: Swarm) -> None:
    trainer = two.trainer("t")
    two.offers["a"] = two.offers["a"].model_copy(update={"layers": (LayerCells(layer=LAYER, cells=bytes([255])),)})
    two.until(lambda: not trainer.alive(LAYER)[0, 0])
    assert trainer._hosts.failures.all() == {"record": 1}
    assert learn(trainer, 1, 2)[0].keys() == set(CELLS) - HELD


def test_tokens_of_a_trainer_that_are_not_finite_bar_it_nowhere(two: Swarm) -> None:
    trainer = two.trainer("t")
    for number in (float("nan"), float("inf")):
        broken = {cell: each * number for cell, each in tokens(1).items()}
        assert not trainer.forward(LAYER, broken, keep=True).outputs
    honest(two)
    assert [host.refused for host in two.hosts.values()] == [{}, {}]
