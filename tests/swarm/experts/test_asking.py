"""What hosts answer is what the experts of one process would."""

import threading
import time
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
import torch

from dedloc_kit.experts.bank import Bank
from dedloc_kit.experts.calls import Experts
from dedloc_kit.swarm.experts import asking, hosts, service
from dedloc_kit.swarm.experts.deadline import MIN_SECONDS
from dedloc_kit.swarm.experts.protocol import Forward
from dedloc_kit.swarm.experts.service import Limits
from tests.swarm.experts.local_hosts import CELLS, LAYER, NAMES, RUN, Swarm, learn, parameters, sums, swarm, tokens

RATE = 0.02


@pytest.fixture
def two() -> Iterator[Swarm]:
    with swarm() as made:
        yield made


def near(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], atol: float = 1e-6) -> bool:
    assert one.keys() == other.keys()
    return all(torch.allclose(one[key], other[key], rtol=0, atol=atol) for key in one)


def full() -> Bank:
    bank = Bank(RUN)
    bank.hold_all()
    return bank


def test_two_trainers_and_two_hosts_learn_what_one_process_does(two: Swarm) -> None:
    plain, (a, b) = full(), (host.bank for host in two.hosts.values())
    remote: list[Experts] = [two.trainer("t"), two.trainer("u")]
    for step in (1, 2, 3):
        for number, (trainer, samples) in enumerate(zip(remote, (5, 2), strict=True)):
            seed = 10 * step + number
            for mine, right in zip(learn(trainer, seed, samples, step), learn(plain, seed, samples, step), strict=True):
                assert mine.keys() == right.keys() == set(CELLS)
                assert all(torch.allclose(mine[cell], right[cell], rtol=0, atol=1e-6) for cell in CELLS)
        assert near(sums(a) | sums(b), sums(plain))
        for bank in (plain, a, b):
            bank.take(step, 7, RATE)
        assert near(parameters(a) | parameters(b), parameters(plain))
    assert not two.failed
    assert [host.refused for host in two.hosts.values()] == [{}, {}]


def test_what_trainers_tell_hosts_counts_by_samples(two: Swarm) -> None:
    alone = [full(), full()]
    for seed, samples in enumerate((5, 2)):
        learn(two.trainer(f"t{seed}"), seed, samples)
        learn(alone[seed], seed, 1)
    one, other = map(sums, alone)
    right = {key: 5 * one[key] + 2 * other[key] for key in one}
    assert near(sums(two.hosts["a"].bank) | sums(two.hosts["b"].bank), right)


@pytest.mark.parametrize(("form", "error"), [("float16", 1e-3), ("8bit", 0.05)])
def test_less_is_sent_with_little_error(form: str, error: float) -> None:
    with swarm(form=form) as made:
        answers = learn(made.trainer("t"), 1, 2), learn(full(), 1, 2)
    for mine, right in zip(*answers, strict=True):
        for cell in CELLS:
            assert float((mine[cell] - right[cell]).norm() / right[cell].norm()) < error


def test_a_trainer_counts_for_each_host_what_it_answered_both_ways(two: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = two.trainer("t")
    learn(trainer, 1, 2)
    rows = {cell: len(each) for cell, each in tokens(1).items()}
    held = {"a": CELLS[::2], "b": CELLS[1::2]}  # a layer of six
    once = {host: sum(rows[cell] for cell in cells) for host, cells in held.items()}
    assert trainer.answered(1) == once
    assert {name: host.service.load.for_others for name, host in two.hosts.items()} == once
    two.cut("b")
    learn(trainer, 2, 2, 2)
    assert trainer.answered(2) == {"a": 2 * once["a"], "b": once["b"]}
    monkeypatch.setattr(asking, "MAX_CONFIRMED", 1)
    assert [list(trainer.answered(turn)) for turn in (2, 3, 4)] == [["a"], ["b"], ["a"]]


def test_calls_of_no_microbatch_are_answered_and_add_nothing(two: Swarm) -> None:
    trainer, given = two.trainer("t"), tokens(1)
    assert trainer.forward(LAYER, given, keep=False).ticket is None
    answers = trainer.forward(LAYER, given, keep=True)
    assert trainer.backward(LAYER, answers.ticket, given).keys() == set(CELLS)
    assert not any(sums(host.bank) for host in two.hosts.values())
    assert trainer.answered(1) == {}


def test_a_call_that_comes_before_the_step_it_is_for_waits_for_it(two: Swarm) -> None:
    trainer, plain = two.trainer("t"), full()
    for each in (plain, trainer):
        learn(each, 1, 2)
    plain.take(1, 2, RATE)

    def late() -> None:
        time.sleep(0.3)
        for host in two.hosts.values():
            host.bank.take(1, 2, RATE)

    taking = threading.Thread(target=late)
    taking.start()
    outputs = learn(trainer, 2, 2, step=2)[0]
    taking.join()
    right = learn(plain, 2, 2, step=2)[0]
    assert all(torch.allclose(outputs[cell], right[cell], rtol=0, atol=1e-6) for cell in CELLS)


def test_a_host_that_does_not_take_the_step_answers_as_it_is(two: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "STEP_SECONDS", 1.5)  # longer than calls that take no time may take
    trainer = two.trainer("t")
    for seed in (1, 2):
        learn(trainer, seed, 2)
    assert [set(each) for each in learn(trainer, 3, 2, step=2)] == [set(CELLS)] * 2
    assert not two.failed
    forward = trainer._hosts._hosts["a"].client._deadlines[Forward]
    assert forward.seconds(1) == MIN_SECONDS, "what it waited for the step is not what its calls take"


def test_a_call_for_which_a_host_has_no_memory_is_refused_and_the_next_one_answered(
    two: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "AVOIDED_SECONDS", 0.1)
    trainer, host = two.trainer("t"), two.hosts["a"]
    with monkeypatch.context() as full:
        full.setattr(host.bank, "output", Mock(side_effect=MemoryError))
        assert all(set(each) == set(CELLS[1::2]) for each in learn(trainer, 1, 2))
    assert host.refused == {"full": 1}
    two.until(lambda: bool(trainer.alive(LAYER).all()))
    with monkeypatch.context() as full:
        full.setattr(service, "receive_tensor", Mock(side_effect=MemoryError))
        assert learn(trainer, 2, 2) == ({}, {})
    assert host.refused == {"full": 2}
    two.until(lambda: bool(trainer.alive(LAYER).all()))
    assert all(set(each) == set(CELLS) for each in learn(trainer, 3, 2))


def test_of_two_hosts_of_an_expert_all_trainers_ask_the_same_one(two: Swarm) -> None:
    two.add("aa", NAMES, Limits())
    trainers = [two.trainer("t"), two.trainer("u")]
    two.until(lambda: all("aa" in trainer._hosts._hosts for trainer in trainers))
    two.until(lambda: all(trainer._hosts._hosts["aa"].there for trainer in trainers))
    for trainer in trainers:
        learn(trainer, 1, 2)
    told = {name: {key.split()[0] for key in sums(host.bank)} for name, host in two.hosts.items()}
    in_layer = [name for name in NAMES if name.layer == LAYER]
    assert told == {
        "a": {str(name) for name in NAMES[::2] if name in in_layer},
        "aa": {str(name) for name in NAMES[1::2] if name in in_layer},
        "b": set(),
    }
