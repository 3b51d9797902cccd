"""Hosts of experts in one process and in simulated time: slow ones, some of whose calls are never answered.

Both sides are the package's: the layer, whom a trainer asks and for how long it waits, whom it leaves out and when it
asks again, what is sent, and the service that answers. Time passes while somebody waits for something that takes it: a
trainer's own computing, and what is added to a call; computing an expert takes none.
"""

import asyncio
import random
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest import mock

from dedloc_kit.config.run import RunConfig
from dedloc_kit.experts.bank import Bank, names_of
from dedloc_kit.records.experts import HostOffer
from dedloc_kit.swarm.experts.asking import RemoteExperts
from dedloc_kit.swarm.experts.hosts import Hosts
from dedloc_kit.swarm.experts.offer import layers_of
from dedloc_kit.swarm.experts.service import ExpertService, Limits
from dedloc_kit.swarm.network.service import Service, Stream
from dedloc_kit.swarm.remote.loop import Loop
from dedloc_kit.swarm.remote.tensors import Form
from dedloc_kit.swarm.remote.turns import Turns

HOSTS = 8
COMPUTING = 0.5
"""Seconds for which a trainer computes a microbatch, beside its calls."""
_TRAINER = "trainer"

T = TypeVar("T")


@dataclass(frozen=True)
class Trouble:
    """:ivar seconds: added to each call
    :ivar failing: share of calls that are never answered
    """

    seconds: float = 0.0
    failing: float = 0.0


class _Waiting(selectors.DefaultSelector):
    """Nobody waits for long: the time that there is nothing to do is over at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found:
            if timeout is None:
                raise RuntimeError("nothing will happen any more")
            self.now += timeout
        return found


class _Time(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._waiting = _Waiting()
        super().__init__(self._waiting)

    def time(self) -> float:
        return self._waiting.now


class _Loop(Loop):
    """It runs while somebody waits for its work."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop  # type: ignore[assignment]  # uvloop's keeps its own time

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


class _Troubled(Turns):
    """Calls are made at once, but for what is in the way."""

    def __init__(self, trouble: Trouble, chance: random.Random) -> None:
        super().__init__()
        self._trouble, self._chance = trouble, chance

    async def run(self, priority: int, function: Callable[[], T]) -> T:
        await asyncio.sleep(self._trouble.seconds)
        if self._chance.random() < self._trouble.failing:
            await asyncio.Event().wait()
        return function()


class _Way:
    """What is written comes out at the other end (`Writer`)."""

    def __init__(self, end: asyncio.StreamReader) -> None:
        self._end, self._closed = end, False

    @property
    def transport(self) -> asyncio.WriteTransport:
        raise NotImplementedError("there is no socket")

    def write(self, data: bytes | memoryview) -> None:
        self._end.feed_data(bytes(data))

    async def drain(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._end.feed_eof()


class SimulatedHosts:
    """Some, each with every so manyth expert of a bank.

    :ivar experts: as the trainer asks them
    """

    def __init__(
        self, run: RunConfig, bank: Bank, form: Form, trouble: Trouble, loop: asyncio.AbstractEventLoop
    ) -> None:
        assert run.experts is not None
        self._layers, self._loop, self._seconds = run.experts.layers, _Loop(loop), loop.time
        chance = random.Random(run.seed)
        turns = _Troubled(trouble, chance)
        self._services = {f"host {at}": ExpertService(run, bank, turns, form, Limits()) for at in range(HOSTS)}
        offers = {f"host {at}": _offer(run, at) for at in range(HOSTS)}
        self.hosts = Hosts(self, run.experts, lambda: offers, lambda *_: None)
        self.experts = RemoteExperts(self._loop, self.hosts, run.experts.grid[1], form)

    @property
    def seconds(self) -> float:
        """That have passed."""
        return self._seconds()

    def microbatch_begins(self) -> None:
        """The trainer computes, and waits while a layer has no expert that answers, as volunteers do."""
        self._loop.run(asyncio.sleep(COMPUTING))
        while not all(bool(self.experts.alive(layer).any()) for layer in self._layers):
            self._loop.run(asyncio.sleep(COMPUTING))

    @asynccontextmanager
    async def open(self, peer: str, service: Service | type[Service], first: bytes = b"") -> AsyncIterator[Stream]:
        """A stream to a host, as `Endpoint.open`."""
        here, there = asyncio.StreamReader(2**30), asyncio.StreamReader(2**30)
        mine, theirs = Stream(here, _Way(there)), Stream(there, _Way(here))
        serving = asyncio.create_task(self._serve(peer, theirs))
        try:
            yield mine
        finally:
            serving.cancel()

    async def _serve(self, peer: str, stream: Stream) -> None:
        try:
            await self._services[peer].serve(_TRAINER, stream)
        except (OSError, EOFError, ValueError):
            pass
        finally:
            stream.close()


@contextmanager
def simulated(run: RunConfig, bank: Bank, form: Form, trouble: Trouble) -> Iterator[SimulatedHosts]:
    """Time is simulated meanwhile, for everything in this process."""
    loop = _Time()
    with mock.patch("time.monotonic", loop.time):
        made = SimulatedHosts(run, bank, form, trouble, loop)
        following = loop.create_task(made.hosts.follow())
        try:
            yield made
        finally:
            following.cancel()
            loop.run_until_complete(_ended(loop))
            loop.close()


async def _ended(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _offer(run: RunConfig, at: int) -> HostOffer:
    assert run.experts is not None
    names: Sequence[Any] = names_of(run.experts)[at::HOSTS]
    return HostOffer(
        run_id=run.run_id,
        state="online",
        layers=layers_of(names, run.experts.grid),
        client_mode=False,
        addresses=(),
        device="cpu",
        name="host",
        time=1.0,
    )
