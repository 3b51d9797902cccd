"""What hosts answer is what the experts of one process would."""

from collections.abc import Iterator

import pytest
import torch

from dedloc_kit.experts.bank import Bank
from dedloc_kit.experts.calls import Experts
from tests.swarm.experts.local_hosts import CELLS, RUN, Swarm, learn, parameters, swarm

RATE = 0.02


@pytest.fixture
def two() -> Iterator[Swarm]:
    with swarm() as made:
        yield made


def near(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], atol: float = 1e-6) -> bool:
    assert one.keys() == other.keys()
    return all(torch.allclose(one[key], other[key], rtol=0, atol=atol) for key in one)


def test_two_trainers_and_two_hosts_learn_what_one_process_does(two: Swarm) -> None:
    plain = Bank(RUN)
    plain.hold_all()
    remote: list[Experts] = [two.trainer("t"), two.trainer("u")]
    for step in (1, 2, 3):
        for number, (trainer, samples) in enumerate(zip(remote, (5, 2), strict=True)):
            seed = 10 * step + number
            for mine, right in zip(learn(trainer, seed, samples, step), learn(plain, seed, samples, step), strict=True):
                assert list(mine) == list(right) == CELLS or set(mine) == set(right) == set(CELLS)
                assert all(torch.allclose(mine[cell], right[cell], rtol=0, atol=1e-6) for cell in CELLS)
        for bank in (plain, *(host.bank for host in two.hosts.values())):
            bank.take(step, 7, RATE)
        found = parameters(two.hosts["a"].bank) | parameters(two.hosts["b"].bank)
        assert near(found, parameters(plain)), step
    assert not two.failed
    assert [host.refused for host in two.hosts.values()] == [{}, {}]
