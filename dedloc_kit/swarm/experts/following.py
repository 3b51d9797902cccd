"""A peer gets experts from those who keep them, and follows their steps; see `copies` for what travels."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.experts.keeping import Keeping, State
from dedloc_kit.swarm.experts.copies import (
    Coder,
    CopyHead,
    CopyService,
    GivenHead,
    GoneHead,
    Head,
    StepHead,
    ToldHead,
    Wanted,
    receive_head,
    send_sums,
)
from dedloc_kit.swarm.network.service import Stream, encode
from dedloc_kit.swarm.remote.lines import Opener
from dedloc_kit.swarm.remote.listening import Listening

SILENT_SECONDS, MAX_SILENT_SECONDS = 6.0, 20.0
"""For which a keeper that says nothing is still there."""
PASS_ON_SECONDS = 0.1
"""After which a keeper hears what a follower was told: before it takes its step, which is that of a whole swarm."""

_log = logging.getLogger(__name__)


class NoCopies(Exception):
    """A peer does not give what it was asked for, or no longer."""


class Following:
    """Everything happens in one loop.

    :ivar live: those that are followed right now
    :ivar arriving: those that are still to come
    :ivar moved: those whose keeper has said that it is somebody else now
    """

    def __init__(self, keeping: Keeping, opener: Opener, coder: Coder) -> None:
        self._keeping, self._names, self._opener, self._coder = keeping, keeping.names, opener, coder
        self._numbers = {name: number for number, name in enumerate(keeping.names)}
        # One thread for all that takes as much memory as an expert: each thread's allocator keeps what was freed there.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="experts that come")
        self.live: set[ExpertName] = set()
        self.arriving: set[ExpertName] = set()
        self.moved: set[ExpertName] = set()

    async def fetch(
        self, peer: str, names: Sequence[ExpertName], step: int, take: Callable[[ExpertName, State], object]
    ) -> None:
        """Take those of these that a peer has as they were after this step, one after the other; raises NoCopies."""
        wanted = self._wanted(dict.fromkeys(names, step), follow=False)
        with _failing(peer):
            async with self._opener.open(peer, CopyService, encode(wanted)) as stream:
                listening = Listening(stream, SILENT_SECONDS, MAX_SILENT_SECONDS)
                for name in names:
                    head = await listening.heard(receive_head(stream))
                    self._check_asked(head, [name])
                    if isinstance(head, CopyHead):
                        if head.step != step or not head.here:
                            raise ValueError("an expert of another step")
                        tensors = await listening.heard(self._coder.receive_state(stream))
                        await self._apart(self._keeping.bank.check, name, tensors)
                        await self._apart(take, name, (tensors, step))

    async def follow(self, peer: str, names: Sequence[ExpertName]) -> None:
        """Get these from whoever keeps them, and follow until all are given or gone; raises NoCopies."""
        held = {name: step + 1 for name in names for step in self._keeping.bank.steps([name])}
        wanted, left = self._wanted({name: held.get(name, 0) for name in names}, follow=True), set(names)
        self.arriving |= left
        try:
            with _failing(peer):
                async with self._opener.open(peer, CopyService, encode(wanted)) as stream:
                    passing_on = asyncio.create_task(self._pass_on(left, stream))
                    try:
                        listening = Listening(stream, SILENT_SECONDS, MAX_SILENT_SECONDS)
                        while left:
                            head = await listening.heard(receive_head(stream))
                            self._check_asked(head, left)
                            left -= await self._take(head, held, listening, stream)
                    finally:
                        passing_on.cancel()
        finally:
            for those in (self.live, self.arriving, self.moved):
                those -= left

    async def _take(
        self, head: Head, held: Mapping[ExpertName, int], listening: Listening, stream: Stream
    ) -> set[ExpertName]:
        """What is said of an expert; returns it if nothing more is to come of it."""
        name, keeping = self._names[head.expert], self._keeping
        if isinstance(head, CopyHead):
            if name in self.live or name in keeping.kept:
                raise ValueError("an expert that is here already")
            if head.here:
                tensors = await listening.heard(self._coder.receive_state(stream))
                await self._apart(keeping.bank.check, name, tensors)
                await self._apart(keeping.hold, name, (tensors, head.step))
            elif held.get(name) != head.step + 1:
                raise ValueError("an expert that is not here is not sent")
            self.live.add(name)
            self.arriving.discard(name)
            self.moved.discard(name)
            return set()
        if isinstance(head, GoneHead):
            self.live.discard(name)
            self.arriving.discard(name)
            self.moved.add(name)
            return {name}
        if name not in self.live:
            raise ValueError("of an expert that has not come")
        if isinstance(head, StepHead):
            mean = await listening.heard(self._coder.receive_mean(stream, head.exponent))
            await self._apart(keeping.follow, name, head.step, mean, head.rate)
            return set()
        assert isinstance(head, GivenHead)
        sums = await listening.heard(self._coder.receive_sums(stream, head.sums))
        await self._apart(keeping.keep, name, sums)
        self.live.discard(name)
        return {name}

    async def _pass_on(self, names: set[ExpertName], stream: Stream) -> None:
        """Let the keeper of these know what they are told here."""
        with suppress(OSError):  # whoever reads the stream finds out
            while True:
                await asyncio.sleep(PASS_ON_SECONDS)
                for name in sorted(names & self.live):
                    if sums := self._keeping.told(name):
                        head = ToldHead(expert=self._numbers[name], sums=tuple(sums))
                        try:
                            await send_sums(stream, head, sums)
                        except OSError:
                            self._keeping.add(name, sums)
                            raise

    async def _apart(self, work: Callable[..., object], *given: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *given))

    def _check_asked(self, head: Head, names: Collection[ExpertName]) -> None:
        """Raises ValueError if this is of another expert."""
        if head.expert >= len(self._names) or self._names[head.expert] not in names:
            raise ValueError("of an expert that was not asked for")

    def _wanted(self, steps: Mapping[ExpertName, int], follow: bool) -> Wanted:
        experts = tuple(self._numbers[name] for name in steps)
        return Wanted(experts=experts, steps=tuple(steps.values()), follow=follow)


@contextmanager
def _failing(peer: str) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, ValueError) as error:
        raise NoCopies(f"{peer} gives no experts: {str(error) or repr(error):.200}") from None
