"""Servers of a tiny model in one process, and its ends, whose `generate` goes through them from another thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from dedloc_kit.blocks.ends import ends
from dedloc_kit.blocks.past import Past
from dedloc_kit.blocks.plans.plan import LayerRange, Server
from dedloc_kit.blocks.span import Span
from dedloc_kit.swarm.serving.client.client import RemoteSession, SessionConfig
from dedloc_kit.swarm.serving.server.computing import Computing
from dedloc_kit.swarm.serving.server.server import SpanService
from dedloc_kit.swarm.serving.server.sessions import Budget, Held, room_for
from tests.hang import HANG
from tests.swarm.local_network import LocalEndpoint, LocalNetwork

VERSION = "ab" * 32
TOKENS = 4096
"""That a server remembers."""

T = TypeVar("T")


class Swarm:
    """A network whose loop runs in a thread of its own."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole
        self.network = LocalNetwork()
        self.computing = Computing(chunk=8)
        self.services: dict[str, SpanService] = {}
        self.slow: set[str] = set()
        self.before_step: Callable[[int], None] = lambda number: None
        self.sessions: list[RemoteSession] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(HANG)

    def add(self, name: str, begin: int, end: int, computing: Computing | None = None) -> SpanService:
        """A server of these layers."""
        endpoint = self.network.endpoint(name)
        held = Held(Span.of(self.whole, begin, end), VERSION)
        room = room_for(TOKENS, self.whole.config.hidden_size)
        service = SpanService(endpoint, (held,), computing or self.computing, Budget(TOKENS), room)
        self.services[name] = service

        async def begin_to_serve() -> None:
            await endpoint.add(service)
            await endpoint.add(service.push)

        self.run(begin_to_serve())
        return service

    def known(self, name: str) -> LocalEndpoint:
        """A peer that serves nothing; strangers open nothing."""
        endpoint = self.network.endpoint(name)
        service = SpanService(endpoint, (), self.computing, Budget(0), room_for(0, 0))

        async def register() -> None:
            await endpoint.add(service)
            await endpoint.add(service.push)

        self.run(register())
        return endpoint

    def replace(self, name: str, other: str) -> None:
        """Another comes, slower, so that it is used once the first one is gone."""
        (held,) = self.services[name].held
        self.add(other, held.begin, held.end)
        self.slow.add(other)

    def cut(self, name: str) -> None:
        async def cut() -> None:
            self.network.cut(name)

        self.run(cut())

    def servers(self) -> list[Server]:
        """Also those that are gone: records live longer."""
        return [
            Server(name, LayerRange(held.begin, held.end), 1.0 if name in self.slow else 100.0)
            for name, service in self.services.items()
            for held in service.held[:1]
        ]

    def remote(self, me: str = "me", **changed: Any) -> RemoteSession:
        endpoint = self.known(me)
        settings = {"length": 64, "form": "float32", **changed}
        config = SessionConfig(VERSION, self.whole.config.num_hidden_layers, self.whole.config.hidden_size, **settings)
        session = RemoteSession(endpoint, me, self.servers, dict, config)
        self.sessions.append(session)
        return session

    def model(self, **changed: Any) -> Any:
        """The ends of the model."""
        tensors = self.whole.state_dict()
        outside = Span(self.whole.config, 0, 1).layout.outside(tensors)
        return ends(
            self.whole.config,
            {name: tensors[name] for name in outside},
            lambda length: _Through(self, self.remote(**changed)),
        )

    def close(self) -> None:
        for session in self.sessions:
            self.run(session.close())
        self.computing.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class At(Computing):
    """Does something in the loop before its call of this number."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        super().__init__(chunk=8)
        self._number, self._act = number, act
        self.calls = 0

    async def run(self, priority: int, function: Callable[[], T]) -> T:
        self.calls += 1
        if self.calls == self._number:
            self._act()
        return await super().run(priority, function)


class _Through:
    def __init__(self, swarm: Swarm, session: RemoteSession) -> None:
        self._swarm, self._session = swarm, session
        self._steps = 0

    def __call__(
        self,
        hidden: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        past: Past | None,
    ) -> torch.Tensor:
        self._steps += 1
        self._swarm.before_step(self._steps)
        given = hidden, attention_mask, position_ids
        if past is None:
            return self._swarm.run(self._session.forward(*given))[0]
        return self._swarm.run(self._session.step(*given, past))

    def close(self) -> None:
        """Tests look at the session afterwards; `Swarm.close` ends it."""


@contextmanager
def two_servers(whole: Any) -> Iterator[Swarm]:
    """Of a model of four layers: the servers `a` and `b` have two each."""
    swarm = Swarm(whole)
    try:
        swarm.add("a", 0, 2)
        swarm.add("b", 2, 4)
        yield swarm
    finally:
        swarm.close()
