"""Hosts of a tiny mixture and trainers that call them, in one process over pairs of sockets."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from dedloc_kit.experts.bank import Bank, names_of
from dedloc_kit.experts.calls import Cell, ExpertName, Experts, Microbatch, counting
from dedloc_kit.records.experts import HostOffer
from dedloc_kit.swarm.experts.asking import RemoteExperts
from dedloc_kit.swarm.experts.checking import Checks
from dedloc_kit.swarm.experts.computing import Computing
from dedloc_kit.swarm.experts.hosts import Hosts
from dedloc_kit.swarm.experts.offer import layers_of
from dedloc_kit.swarm.experts.service import ExpertService, Limits
from dedloc_kit.swarm.network.service import Endpoint
from dedloc_kit.swarm.remote.loop import Loop
from dedloc_kit.swarm.remote.tensors import Form
from dedloc_kit.swarm.remote.turns import Turns
from tests.experts.mixed_run import WIDTH, mixed_run
from tests.hang import HANG
from tests.swarm.local_network import LocalNetwork

RUN = mixed_run()
assert RUN.experts is not None
GRID = RUN.experts.grid
NAMES = names_of(RUN.experts)
CELLS = [Cell(row, column) for row in range(GRID[0]) for column in range(GRID[1])]
LAYER = 2

T = TypeVar("T")


class Host:
    """It computes in a thread of its own."""

    def __init__(self, names: Collection[ExpertName], limits: Limits, form: Form) -> None:
        self.bank, self.turns = Bank(RUN), Turns()
        self.bank.hold(names)
        self.service = ExpertService(RUN, self.bank, self.turns, form, limits)
        self._computing = Computing(self.turns)
        self._computing.start()
        self._computing.ready.wait()

    @property
    def refused(self) -> dict[str, int]:
        return dict(self.service.rejections.all())

    def end(self) -> None:
        self._computing.stop()


class Swarm:
    """Host `a` holds every second expert, host `b` the others."""

    def __init__(self, limits: Limits | None = None, form: Form = "float32") -> None:
        self.network, self.loop, self.form = LocalNetwork(), Loop(), form
        self.loop.__enter__()
        self.hosts: dict[str, Host] = {}
        self.offers: dict[str, HostOffer] = {}
        self.failed: list[tuple[str, str]] = []
        self._following: list[Any] = []
        for name, held in {"a": NAMES[::2], "b": NAMES[1::2]}.items():
            self.add(name, held, limits or Limits())

    def add(self, name: str, held: Collection[ExpertName], limits: Limits) -> Host:
        host = self.hosts[name] = Host(held, limits, self.form)
        self.run(self.network.endpoint(name).add(host.service))
        self.offers[name] = offer(held)
        return host

    def endpoint(self, name: str) -> Endpoint:
        """Of a peer that hosts nothing."""
        endpoint = self.network.endpoint(name)
        self.run(endpoint.add(ExpertService(RUN, Bank(RUN), Turns(), self.form, Limits(1))))
        return endpoint

    def trainer(self, name: str, holds: str = "") -> RemoteExperts:
        """Once all experts that are offered are there.

        :param holds: the host that it is itself
        """
        assert RUN.experts is not None

        def failed(peer: str, kind: str) -> None:
            self.failed.append((peer, kind))

        hosts = Hosts(self.endpoint(name), RUN.experts, lambda: self.offers, failed)
        self._following.append(self.loop.start(hosts.follow()))
        checks = Checks(hosts, holds or name, GRID[1], self.form)
        trainer = RemoteExperts(self.loop, hosts, GRID[1], self.form, checks)
        self.until(lambda: bool(trainer.alive(LAYER).all()))
        return trainer

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(asyncio.wait_for(work, HANG))

    def cut(self, name: str) -> None:
        """This peer is gone; its record lives longer."""

        async def cut() -> None:
            self.network.cut(name)

        self.run(cut())

    def until(self, condition: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not condition():
                await asyncio.sleep(0.01)

        self.run(wait())

    def close(self) -> None:
        for following in self._following:
            following.cancel()
        self.loop.__exit__(None, None, None)
        for host in self.hosts.values():
            host.end()


@contextmanager
def swarm(**options: Any) -> Iterator[Swarm]:
    made = Swarm(**options)
    try:
        yield made
    finally:
        made.close()


def offer(names: Collection[ExpertName], **fields: Any) -> HostOffer:
    plain = {"state": "online", "client_mode": True, "addresses": (), "device": "cpu", "name": "p", "time": 1.0}
    return HostOffer(run_id=RUN.run_id, layers=layers_of(names, GRID), **{**plain, **fields})


def tokens(seed: int, count: int = 5, scale: float = 1.0) -> dict[Cell, Tensor]:
    """Some for each cell, of different numbers."""
    generator = torch.Generator().manual_seed(seed)
    return {cell: torch.randn(count + at, WIDTH, generator=generator) * scale for at, cell in enumerate(CELLS)}


def learn(experts: Experts, seed: int, samples: int, step: int = 1) -> tuple[dict[Cell, Tensor], dict[Cell, Tensor]]:
    """A microbatch through a layer: what came out, and the gradients of what went in."""
    with counting(Microbatch(step, samples)):
        answers = experts.forward(LAYER, tokens(seed), keep=True)
    gradients = {cell: each for cell, each in tokens(seed + 1000, scale=0.01).items() if cell in answers.outputs}
    return dict(answers.outputs), dict(experts.backward(LAYER, answers.ticket, gradients))


def parameters(bank: Bank) -> dict[str, Tensor]:
    return {f"{name} {key}": tensor for name in bank.names for key, tensor in bank.state(name)[0].items()}


def sums(bank: Bank) -> dict[str, Tensor]:
    """What experts have been told, by the step that it is for."""
    return {
        f"{name} {due}": each.total.clone()
        for name in bank.names
        for due, each in sorted(bank._experts[name]._sums.items())
    }


def honest(two: Swarm, step: int = 1) -> None:
    """Two trainers are answered rightly, and hosts hold what these have told them and nothing else."""
    plain = Bank(RUN)
    plain.hold_all()
    for each in range(1, step):
        plain.take(each, 1, 0.0)
    for name, samples in (("t", 5), ("u", 2)):
        answers = learn(two.trainer(name), samples, samples, step)
        for mine, right in zip(answers, learn(plain, samples, samples, step), strict=True):
            assert mine.keys() == right.keys() == set(CELLS)
            assert all(torch.allclose(mine[cell], right[cell], rtol=0, atol=1e-6) for cell in CELLS)
    found = {key: each for host in two.hosts.values() for key, each in sums(host.bank).items()}
    right_sums = sums(plain)
    assert found.keys() == right_sums.keys()
    assert all(torch.allclose(found[key], right_sums[key], rtol=0, atol=1e-6) for key in found)
    assert not two.failed
