"""Stage peers and drivers of a tiny model of linear layers, in one process over pairs of sockets."""

import asyncio
import copy
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dedloc_kit.records.stages import Begun, StageOffer
from dedloc_kit.swarm.pipeline.begun import Drivers, wanted
from dedloc_kit.swarm.pipeline.computing import Given, StageComputer
from dedloc_kit.swarm.pipeline.driver import Driver, Settings
from dedloc_kit.swarm.pipeline.service import Limits, StageService
from dedloc_kit.swarm.remote.lines import Opener
from dedloc_kit.swarm.remote.loop import Loop
from dedloc_kit.swarm.remote.own import WithOwn
from dedloc_kit.swarm.remote.turns import Turns
from tests.hang import HANG
from tests.swarm.local_network import LocalNetwork

WIDTH, VOCABULARY, ROWS, LENGTH, STAGES = 8, 11, 2, 3, 3
LEARNING_RATE = 0.1
RUN_ID = "tiny-0123456789abcdef"

T = TypeVar("T")
Batch = dict[str, Tensor]


class LinearStage:
    """Embeds at the beginning, a loss at the end, one linear layer in each."""

    count, width = STAGES, WIDTH

    def __init__(self, number: int) -> None:
        self.number = number
        names = ("input_ids",) * (number == 0), ("labels",) * (number == STAGES - 1)
        self.takes = names[0] + names[1]

    def model(self) -> nn.Module:
        torch.manual_seed(self.number)
        parts: dict[str, nn.Module] = {"layer": nn.Linear(WIDTH, WIDTH)}
        if self.number == 0:
            parts["embedding"] = nn.Embedding(VOCABULARY, WIDTH)
        if self.number == STAGES - 1:
            parts["head"] = nn.Linear(WIDTH, VOCABULARY)
        return nn.ModuleDict(parts)

    def check(self, batch: Batch) -> None:
        for name, values in batch.items():
            if not (int(values.min()) >= 0 and int(values.max()) < VOCABULARY):
                raise ValueError(f"{name} out of the vocabulary")

    def forward(self, model: Any, hidden: Tensor | None, batch: Batch) -> Tensor:
        hidden = model["embedding"](batch["input_ids"]) if hidden is None else hidden
        hidden = model["layer"](hidden).tanh() + hidden
        if self.number < STAGES - 1:
            return hidden
        logits = model["head"](hidden)
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def microbatches(count: int, seed: int = 0) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)

    def ids() -> Tensor:
        return torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=generator)

    return [{"input_ids": ids(), "labels": ids()} for _ in range(count)]


def plain_sum(batches: Sequence[Batch], parameters: Sequence[Sequence[Tensor]] | None = None) -> list[list[Tensor]]:
    """The gradients of these, weighted by samples, that one process computes, stage by stage."""
    stages = [LinearStage(number) for number in range(STAGES)]
    models = [stage.model() for stage in stages]
    for model, given in zip(models, parameters or (), strict=False):
        for mine, theirs in zip(model.parameters(), given, strict=True):
            mine.data.copy_(theirs)
    for batch in batches:
        hidden: Tensor | None = None
        for stage, model in zip(stages, models, strict=True):
            hidden = stage.forward(model, hidden, batch)
        assert hidden is not None
        (hidden * ROWS).backward()
    return [[p.grad for p in model.parameters() if p.grad is not None] for model in models]


class Sums:
    """Where a stage peer's gradients go."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.step, self.closed, self.sketch = 0, False, (1.0, 2.0)
        self.samples, self.loss = 0, 0.0
        self.gradients = [torch.zeros_like(p) for p in model.parameters()]

    def accumulate(self, loss: float, samples: int) -> bool:
        for mine, parameter in zip(self.gradients, self.model.parameters(), strict=True):
            assert parameter.grad is not None
            mine.add_(parameter.grad, alpha=samples)
            parameter.grad = None
        self.samples, self.loss = self.samples + samples, self.loss + loss * samples
        return True

    def forget(self) -> bool:
        self.samples, self.loss = 0, 0.0
        torch._foreach_zero_(self.gradients)
        return True


class Peer(StageComputer):
    """A stage peer; a thread of its own takes its calls.

    :ivar before: called in it before each call
    """

    def __init__(self, name: str, stage: LinearStage, offers: Callable[[], dict[str, StageOffer]]) -> None:
        self.name, self.model = name, stage.model()
        self.sums = Sums(self.model)
        super().__init__(stage, self.model, self.sums, most=1000)
        self.turns, self.drivers = Turns(), Drivers(offers, most=1000)
        self.service = StageService(self, self.turns, Limits(tokens=2 * ROWS * LENGTH), "float32", self.drivers)
        self.before: Callable[[Given], object] = lambda given: None
        self.calls: list[Given] = []
        self._over = False
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def compute(self, given: Given) -> Any:
        self.before(given)
        self.calls.append(given)
        return super().compute(given)

    def end(self) -> None:
        self._over = True
        self._thread.join()

    def _work(self) -> None:
        torch.set_num_threads(1)
        while not self._over:
            self.turns.take(0.02)


class Pipeline:
    """Stage peers `0a`, `0b`, `1a`, ... and drivers."""

    def __init__(self, global_batch: int, peers: int = 2) -> None:
        self.global_batch = global_batch
        self.network = LocalNetwork()
        self.loop = Loop()
        self.loop.__enter__()
        self.stages = [LinearStage(number) for number in range(STAGES)]
        self.peers: dict[str, Peer] = {}
        self.drivers: dict[str, Driver] = {}
        self.gone: list[str] = []
        self.losses: list[float] = []
        self._running: list[Any] = []
        for stage in self.stages:
            for letter in "abcdef"[:peers]:
                self.add(f"{stage.number}{letter}", stage.number)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, HANG), self.loop._loop).result()

    def add(self, name: str, stage: int) -> Peer:
        peer = self.peers[name] = Peer(name, self.stages[stage], self.offers)
        endpoint = self.network.endpoint(name)

        async def serve() -> None:
            await endpoint.add(peer.service)
            await endpoint.add(peer.service.following)

        self.run(serve())
        return peer

    def offers(self) -> dict[str, StageOffer]:
        """Also of those that are gone: records live longer."""
        names = dict.fromkeys([*self.peers, *self.drivers])
        return {name: self._offer(self.peers.get(name), self.drivers.get(name)) for name in names}

    def _offer(self, peer: Peer | None, driver: Driver | None) -> StageOffer:
        return offer(stage=None if peer is None else peer.stage.number, begun=None if driver is None else driver.begun)

    def endpoint(self, name: str) -> Opener:
        """Of a peer that serves nothing, if it is not one of the stage peers."""
        endpoint = self.network.endpoint(name)
        if name in self.peers:
            own = self.peers[name].service
            return WithOwn(endpoint, name, [own, own.following])
        service = StageService(None, Turns(), Limits(1), "float32", Drivers(dict, 1))

        async def register() -> None:
            await endpoint.add(service)
            await endpoint.add(service.following)

        self.run(register())
        return endpoint

    def drive(
        self,
        name: str,
        batches: Sequence[Batch],
        in_flight: int = 4,
        *,
        claims: Callable[[], Mapping[str, Begun]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> Driver:
        """Begin to drive these, in this order.

        :param claims: of drivers that are not there
        """
        left = list(batches)

        async def next_batch() -> Batch:
            if not left:
                await asyncio.Event().wait()
            return left.pop(0)

        def told() -> dict[str, Begun]:
            return {**{other: driver.begun for other, driver in self.drivers.items()}, **claims()}

        settings = Settings(name, self.global_batch, "float32", in_flight, Path(tempfile.gettempdir()))

        def done(loss: float, samples: int) -> None:
            self.losses.append(loss)

        driver = Driver(self.endpoint(name), self.stages, settings, self.offers, told, self.gone.append, done, clock)
        self.drivers[name] = driver
        self._running.append(self.loop.start(driver.run(next_batch)))
        return driver

    def slow(self, name: str) -> None:
        """The other peers of its stage get most of the work."""
        self.peers[name].before = lambda given: time.sleep(0.1)

    def cut(self, name: str) -> None:
        """This peer is gone."""

        async def cut() -> None:
            self.network.cut(name)

        self.run(cut())

    def until(self, condition: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not condition():
                self.failed()
                await asyncio.sleep(0.01)

        self.run(wait())

    def failed(self) -> None:
        for running in self._running:
            if running.done():
                running.result()

    def full(self, but: Sequence[str] = (), step: int = 0) -> bool:
        """Have all stages all of the batch, by what the drivers say?"""
        told = [driver.begun for driver in self.drivers.values()]
        return all(
            sum(peer.sums.samples for peer in self.of(stage, but)) >= wanted(told, step, self.global_batch)
            for stage in range(STAGES)
        )

    def of(self, stage: int, but: Sequence[str] = ()) -> list[Peer]:
        return [peer for name, peer in self.peers.items() if peer.stage.number == stage and name not in but]

    def sums(self, but: Sequence[str] = ()) -> list[list[Tensor]]:
        """Of the gradients of all peers of each stage."""
        return [
            [
                torch.stack(each).sum(0)
                for each in zip(*(peer.sums.gradients for peer in self.of(stage, but)), strict=True)
            ]
            for stage in range(STAGES)
        ]

    def samples(self, but: Sequence[str] = ()) -> list[int]:
        return [sum(peer.sums.samples for peer in self.of(stage, but)) for stage in range(STAGES)]

    def added(self, name: str) -> int:
        """How many microbatches this peer has added."""
        return sum(given.call.what == "backward" for given in self.peers[name].calls)

    def step(self, but: Sequence[str] = ()) -> None:
        """All stages take the global step, and begin anew."""
        for stage in range(STAGES):
            peers, total = self.of(stage, but), sum(peer.sums.samples for peer in self.of(stage, but))
            mean = [gradient / total for gradient in self.sums(but)[stage]]
            for peer in peers:
                with torch.no_grad():
                    for parameter, gradient in zip(peer.model.parameters(), mean, strict=True):
                        parameter.sub_(gradient, alpha=LEARNING_RATE)
                for gradient in peer.sums.gradients:
                    gradient.zero_()
                peer.sums.samples, peer.sums.step = 0, peer.sums.step + 1

    def close(self) -> None:
        for running in self._running:
            running.cancel()
        self.loop.__exit__(None, None, None)
        for peer in self.peers.values():
            peer.end()


def offer(stage: int | None, begun: Begun | None = None, **fields: Any) -> StageOffer:
    plain = {"state": "online", "client_mode": True, "addresses": (), "device": "cpu", "name": "p", "time": 1.0}
    return StageOffer(run_id=RUN_ID, stage=stage, begun=begun, **{**plain, **fields})


def close(found: list[list[Tensor]], right: list[list[Tensor]]) -> bool:
    pairs = [(a, b) for one, other in zip(found, right, strict=True) for a, b in zip(one, other, strict=True)]
    return all(torch.allclose(a, b, rtol=0, atol=1e-5) for a, b in pairs)


def copied(parameters: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    return [[copy.deepcopy(each.detach()) for each in stage] for stage in parameters]
