"""What a server remembers of its clients' sessions, and how much of it there may be."""

import asyncio
from collections import Counter
from functools import lru_cache
from typing import Any

from torch import Tensor

from dedloc_kit.blocks.adapters import adapted
from dedloc_kit.blocks.adapters.adapters import Adapter
from dedloc_kit.blocks.span import CachedSpan, Span
from dedloc_kit.swarm.network.bounds import ByteBudget
from dedloc_kit.swarm.network.service import Stream
from dedloc_kit.swarm.remote.lines import Line
from dedloc_kit.swarm.serving.protocol import Call, Neighbours, Open, Refusal, Step, request_bytes

SESSIONS_OF_A_PEER = 32
SPARED = 4
"""One part in so many of the room no peer takes with its further sessions."""
_PARTS = 8
UNUSED_SECONDS, SILENT_SECONDS = 30.0, 600.0
"""After which a session is over that has not begun, and one of which nothing is heard."""
_TENSORS = 3
"""Of a call are in memory: what comes, with it the gradient in a backward call, and the answer."""


def call_bytes(rows: int, tokens: int, width: int) -> int:
    """What a call takes at most while it is received, computed and answered."""
    return 4 * _TENSORS * rows * tokens * width


def room_for(cache_tokens: int, width: int) -> ByteBudget:
    """For the calls of all sessions: a call of as many tokens as there may be takes half of it, and so has room while
    there is no other."""
    return ByteBudget(2 * call_bytes(1, cache_tokens, width))


class Budget:
    """Room for the caches of all sessions, in tokens."""

    def __init__(self, tokens: int, sessions_of_a_peer: int = SESSIONS_OF_A_PEER) -> None:
        self.tokens, self.free = tokens, tokens
        self._sessions_of_a_peer = sessions_of_a_peer
        self._sessions: Counter[str] = Counter()
        self._held: Counter[str] = Counter()  # tokens of each peer

    def reserve(self, peer: str, tokens: int) -> "Reservation":
        """Raises Refusal if there is no room now."""
        if self._sessions[peer] >= self._sessions_of_a_peer:
            raise Refusal("full", f"{self._sessions[peer]} sessions of one peer are enough")
        reservation = Reservation(self, peer)
        reservation.grow(tokens)
        self._sessions[peer] += 1
        return reservation

    def _take(self, peer: str, tokens: int) -> None:
        # Who has something already leaves a part of the room to others.
        free = self.free - (self.tokens // SPARED if self._held[peer] else 0)
        if tokens > free:
            raise Refusal("full", f"{max(0, free)} cache tokens are free, not {tokens}")
        self.free -= tokens
        self._held[peer] += tokens

    def _give_back(self, peer: str, tokens: int) -> None:
        self.free += tokens
        self._held[peer] -= tokens
        if not self._held[peer]:
            del self._held[peer]
        self._sessions[peer] -= 1
        if not self._sessions[peer]:
            del self._sessions[peer]


class Reservation:
    """A session's part of the budget."""

    def __init__(self, budget: Budget, peer: str) -> None:
        self._budget, self._peer = budget, peer
        self._tokens = 0

    def grow(self, tokens: int) -> None:
        """Have at least so many; raises Refusal if there is no room for them."""
        if tokens > self._tokens:
            self._budget._take(self._peer, tokens - self._tokens)
            self._tokens = tokens

    def close(self) -> None:
        self._budget._give_back(self._peer, self._tokens)


class Held:
    """What a server serves: a span with its weights, of a version."""

    def __init__(self, span: Span, version: str) -> None:
        self.span, self.version = span, version
        self.begin, self.end = span.begin, span.end
        self.part = lru_cache(_PARTS)(self._part)

    def _part(self, begin: int, end: int) -> Span:
        """Some of its layers; raises ValueError if it does not have them."""
        return self.span if (begin, end) == (self.begin, self.end) else self.span.part(begin, end)


class Session:
    """One client's on one server.

    :ivar adapter: with which everything is computed
    :ivar lock: whoever computes for it, answers its client or changes it
    :ivar kept: the last step and its output
    :ivar over: when it is, unless something is heard
    :ivar pushing: takes what the server before it pushes
    """

    def __init__(self, peer: str, stream: Stream, opened: Open, held: Held, reservation: Reservation) -> None:
        self.peer, self.stream = peer, stream
        self.opened, self.held = opened, held
        self.neighbours: Neighbours = opened.neighbours
        self.span = held.part(opened.begin, opened.end)
        self.adapter: Adapter | None = None
        self.past = CachedSpan(self.span, self.forward)
        self.request_bytes = request_bytes(opened.rows, opened.length)
        self.lock = asyncio.Lock()
        self.kept: tuple[Step, Tensor] | None = None
        self.line: Line | None = None
        self.over: asyncio.Timeout | None = None
        self.pushing: asyncio.Future[None] | None = None
        self.dismissed = False
        self._reservation = reservation

    def forward(
        self, hidden: Tensor, mask: Tensor | None, positions: Tensor | None, cache: Any | None = None
    ) -> Tensor:
        """As `Span.forward`."""
        return adapted.forward(self.span, hidden, mask, positions, cache, self.adapter)

    def without_past(self, call: Call) -> CachedSpan:
        """For the chunks of one call; raises Refusal if there is no room beside what this session remembers."""
        own = self.past.rows * self.opened.length if self.past.tokens else 0
        self._reservation.grow(own + call.rows * call.tokens)
        return CachedSpan(self.span, self.forward)

    def pushed_by(self, pushing: "asyncio.Future[None] | None") -> None:
        """From now on by this alone, or by nobody any more."""
        if self.pushing is not None:
            self.pushing.cancel()
        self.pushing = pushing

    def heard(self) -> None:
        if self.over is not None and not self.over.expired():
            self.over.reschedule(asyncio.get_running_loop().time() + SILENT_SECONDS)

    def check(self, step: Step) -> None:
        """Raises Refusal for a step that does not follow, before anything of it is taken."""
        number, length = self.kept[0].number if self.kept else 0, self.opened.length
        if step.number and step.number <= number:
            if self.kept is None or step != self.kept[0]:
                raise Refusal("order", f"step {step.number} after step {number}")
            return
        if self.dismissed:
            raise Refusal("moving", "these layers are about to be served by others")
        rows = len(step.past_rows) // 2 or (self.past.rows if step.past else step.rows)
        if rows != step.rows:
            raise Refusal("shape", f"{step.rows} rows after {rows}")
        if step.past > self.past.tokens:
            raise Refusal("past", f"{step.past} tokens of the past where there are {self.past.tokens}")
        step.check(rows, length)
        self._reservation.grow(rows * length)

    def known(self, step: Step) -> Tensor | None:
        """The output of a step that comes a second time: its rows would be moved twice."""
        return self.kept[1] if self.kept and step.number and step == self.kept[0] else None
