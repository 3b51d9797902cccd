"""Questions about the state that a peer holds: a sketch of it under the signs that the asking side has drawn.

A newcomer compares with it what others have sent. Each answer costs a pass over the state, so there is a budget.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import torch
from hivemind.utils import MSGPackSerializer

from dedloc_kit.learning.train.state.sketch import Sketch, sketch
from dedloc_kit.swarm.transfer.contents import Content, StateLayout
from dedloc_kit.swarm.transfer.protocol import Header, Request

SHARE = 0.2
"""Of the time that answers may take, whoever asks."""
PEER_SECONDS = 5.0
"""Between two answers to the same peer."""
REMEMBERED_PEERS = 1000


class Budget:
    """Allows so many answers to each peer, and a share of the time to all of them.

    :param clock: seconds
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at = 0.0
        self._answered: dict[str, float] = {}

    def allows(self, peer: str) -> bool:
        """May this peer's question be answered now?"""
        now = self._clock()
        return now >= max(self._free_at, self._answered.get(peer, -PEER_SECONDS) + PEER_SECONDS)

    @contextmanager
    def spend(self) -> Iterator[None]:
        """While an answer is made; it takes as long as it takes."""
        began = self._clock()
        try:
            yield
        finally:
            ended = self._clock()
            self._free_at = ended + (ended - began) * (1 / SHARE - 1)

    def answered(self, peer: str) -> None:
        """This peer has got what it asked for."""
        self._answered.pop(peer, None)
        self._answered[peer] = self._clock()
        if len(self._answered) > REMEMBERED_PEERS:
            del self._answered[next(iter(self._answered))]


class Answering:
    """Answers questions.

    :param layout: of the state
    :param find: the state of this version, or another one that this peer holds instead; None if it holds none
    """

    def __init__(self, layout: StateLayout, find: Callable[[str], Awaitable[Content | None]]) -> None:
        self._layout, self._find = layout, find
        self._budget = Budget()
        self._making: asyncio.Task[Header] | None = None

    async def answer(self, peer: str, request: Request) -> Header:
        """What this peer says to the question."""
        making = self._making is not None and not self._making.done()
        if making or not self._budget.allows(peer):
            return Header(answer="busy")
        # To its end, though the other side may go away: the thread goes on as well.
        self._making = asyncio.create_task(self._make(peer, request))
        return await asyncio.shield(self._making)

    async def _make(self, peer: str, request: Request) -> Header:
        with self._budget.spend():
            content = await self._find(request.version)
            if content is None or content.version != request.version:
                return Header(answer="nothing", version=content.version if content else "")
            self._budget.answered(peer)
            with content.in_use():
                made = await asyncio.get_running_loop().run_in_executor(None, self._sketch, content, request.seed)
        return Header(answer="here", version=content.version, metadata=MSGPackSerializer.dumps(made))

    def _sketch(self, content: Content, seed: bytes) -> Sketch:
        return sketch(self._layout.views(torch.frombuffer(content.data, dtype=torch.uint8)), seed)
