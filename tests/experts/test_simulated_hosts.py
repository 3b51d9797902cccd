"""Hosts in simulated time, with which `benchmarks/experts.py` measures."""

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from benchmarks.lib.simulated_hosts import Trouble, simulated
from dedloc_kit.experts.bank import Bank
from dedloc_kit.experts.calls import Cell, Experts, Microbatch, counting
from tests.experts.mixed_run import WIDTH, mixed_run

RUN = mixed_run()
LAYER = 2
TOKENS = {
    Cell(row, column): torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(3 * row + column))
    for row in range(2)
    for column in range(3)
}


def bank() -> Bank:
    made = Bank(RUN)
    made.hold_all()
    return made


def learn(experts: Experts) -> tuple[Mapping[Cell, Tensor], Mapping[Cell, Tensor]]:
    with counting(Microbatch(1, 4)):
        answers = experts.forward(LAYER, TOKENS, keep=True)
    return answers.outputs, experts.backward(LAYER, answers.ticket, {cell: TOKENS[cell] for cell in answers.outputs})


def test_hosts_without_trouble_answer_as_their_experts_do_and_take_what_is_added_of_simulated_time_alone() -> None:
    plain = learn(bank())
    with simulated(RUN, bank(), "float32", Trouble(seconds=2.0)) as hosts:
        while not hosts.experts.alive(LAYER).all():
            hosts.microbatch_begins()
        began = time.monotonic()
        answered = learn(hosts.experts)
        assert 4.0 <= time.monotonic() - began < 4.1
    for mine, theirs in zip(plain, answered, strict=True):
        assert mine.keys() == theirs.keys() == TOKENS.keys()
        assert all(torch.allclose(mine[cell], theirs[cell], rtol=0, atol=1e-6) for cell in TOKENS)


def test_calls_that_are_never_answered_end_at_their_deadline_and_those_hosts_are_left_out_for_a_while() -> None:
    with simulated(RUN, bank(), "float32", Trouble(seconds=0.3, failing=0.4)) as hosts:
        while not hosts.experts.alive(LAYER).all():
            hosts.microbatch_begins()
        began = time.monotonic()
        outputs, _ = learn(hosts.experts)
        assert 0 < len(outputs) < len(TOKENS)
        assert time.monotonic() - began > 1.0
        assert not hosts.experts.alive(LAYER).all()
        while not hosts.experts.alive(LAYER).all():
            hosts.microbatch_begins()
