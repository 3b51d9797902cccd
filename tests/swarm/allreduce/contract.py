"""What the contract tests need of an all-reduce: a group in one process whose members and lines can fail.

An engine has an adapter with an `Engine`: it makes a `Party` from a `Setup` and passes both ends of each stream through
`Trace.wrap`. Nothing else of the engine is used. A fault happens at a `Moment`: after the n-th message of a kind from
one member to another was delivered. So each moment of an undisturbed round can be swept.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor

T = TypeVar("T")
Outcome = Literal["stepped", "too few", "failed", "gone"]
"""Of one member: it has the average; the group has too few samples; it could not complete the round; it was killed or
never came."""
COORDINATOR = 0
HANG = 60.0
"""Seconds of real time; a round that takes longer waits for something that never comes."""


@dataclass(frozen=True)
class Setup:
    """A group. Member 0 is the coordinator.

    :ivar samples: of each member; votes weigh alike, or by samples
    :ivar size: of the vector
    :ivar minimum: samples of a batch
    :ivar firewalled: so many members, the last ones, cannot be reached; they open all of their streams
    :ivar row: members of a row on average; all have one if it is 0
    :ivar patience: seconds of silence after which a member counts as gone, by the engine's clock. A broken stream is
        noticed at once, and costs none of it
    """

    samples: Sequence[int] = (0, 4, 5, 3, 4)
    size: int = 300_000
    minimum: int = 1
    compression: str = "none"
    firewalled: int = 0
    row: int = 0
    patience: float = 1_000.0

    @property
    def members(self) -> range:
        return range(len(self.samples))

    @property
    def gradients(self) -> list[Tensor]:
        """Of each member, float32 [size]; always the same."""
        generator = torch.Generator().manual_seed(len(self.samples))
        return [torch.randn(self.size, generator=generator) for _ in self.samples]

    def mean(self, counted: Collection[int]) -> Tensor:
        """By samples, of these members: what the average has to be."""
        gradients, weights = self.gradients, [self.samples[member] for member in sorted(counted)]
        total = torch.zeros(self.size)
        for member, weight in zip(sorted(counted), weights, strict=True):
            total += weight * gradients[member]
        return total / max(1, sum(weights))


class Party(Protocol):
    """The members of one round. What it says of a member is final after `end`."""

    async def begin(self, but: Collection[int] = ()) -> None:
        """Let all members take part; these never come, and nobody reaches them."""

    async def end(self) -> None:
        """Wait until the round is over for each member, however it ends."""

    async def over(self, member: int) -> None:
        """Wait until the round is over for this member."""

    def kill(self, member: int) -> None:
        """Nothing of this member goes on, and its streams break."""

    def cut(self, some: Collection[int], others: Collection[int]) -> None:
        """Streams between these break, and no new one opens."""

    def freeze(self, member: int) -> None:
        """Nothing that this member sends leaves it, and it reads nothing, until `thaw`; its streams stay open."""

    def thaw(self, member: int) -> None: ...

    @property
    def averages(self) -> Sequence[Tensor]:
        """Of each member, float32 [size]; of use for those that have stepped."""

    @property
    def outcomes(self) -> Sequence[Outcome]: ...

    def counted(self, member: int) -> Set[int]:
        """Whose samples are in the average, as this member knows it that has stepped."""

    def blamed(self, member: int) -> Set[int]:
        """Whom this member holds for dead, silent or wrong, by what it saw or was told."""


class Engine(Protocol):
    """An implementation of the all-reduce."""

    def kind(self, message: bytes) -> str:
        """The kind of a message; empty for one that depends on time alone, such as a sign of life."""

    def party(self, setup: Setup, trace: "Trace") -> Party:
        """A group that has not begun; called in the loop that `run` runs."""

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        """Run this to its end in an event loop of its own."""


class Moment(NamedTuple):
    """The `number`-th message (from 1) of a kind from one member to another was delivered: its receiver has it, and
    handles it before anything else happens there."""

    sender: int
    receiver: int
    kind: str
    number: int


class Trace:
    """The messages of a round, as they are delivered.

    :param kind: `Engine.kind`
    :param delay: turns of the event loop by which a message from one member to another is late
    """

    def __init__(self, kind: Callable[[bytes], str], delay: Callable[[int, int], int] = lambda *_: 0) -> None:
        self._kind, self._delay = kind, delay
        self.moments: list[Moment] = []
        """Those that have been, in their order."""
        self._counts: Counter[tuple[int, int, str]] = Counter()
        self._acts: dict[Moment, Callable[[], None]] = {}
        self._held: dict[int, asyncio.Event] = {}

    def at(self, moment: Moment, act: Callable[[], None]) -> None:
        """Do this then."""
        self._acts[moment] = act

    def hold(self, member: int) -> None:
        """Let nothing come to or leave this member."""
        self._held[member] = asyncio.Event()

    def release(self, member: int) -> None:
        if (event := self._held.pop(member, None)) is not None:
            event.set()

    async def passing(self, member: int) -> None:
        """Wait while this member is held."""
        while (event := self._held.get(member)) is not None:
            await event.wait()

    async def late(self, sender: int, receiver: int) -> None:
        """Wait as long as a message between these is late."""
        for _ in range(self._delay(sender, receiver)):
            await asyncio.sleep(0)

    def delivered(self, sender: int, receiver: int, message: bytes) -> None:
        """A message is delivered now."""
        kind = self._kind(message)
        if kind:
            self._counts[sender, receiver, kind] += 1
            moment = Moment(sender, receiver, kind, self._counts[sender, receiver, kind])
            self.moments.append(moment)
            if moment in self._acts:
                self._acts.pop(moment)()

    def wrap(self, stream: T, here: int, there: int) -> T:
        """A member's end of a stream to another one; its `send` and `receive` go through this trace."""
        return cast(T, _Traced(stream, self, here, there))


class _Traced:
    def __init__(self, stream: Any, trace: Trace, here: int, there: int) -> None:
        self._stream, self._trace, self._here, self._there = stream, trace, here, there
        self._came: bytes | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def send(self, content: bytes | memoryview) -> None:
        await self._trace.passing(self._here)
        await self._stream.send(content)

    async def receive(self, limit: int) -> bytes:
        if self._came is None:  # else the last call was cancelled before its message was delivered
            self._came = await self._stream.receive(limit)
        await self._trace.late(self._there, self._here)
        await self._trace.passing(self._here)
        message, self._came = self._came, None
        assert message is not None
        self._trace.delivered(self._there, self._here, message)
        return message
