"""A peer gets experts from those who keep them, and follows their steps; see `copies` for what travels."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.experts.keeping import Keeping, State
from dedloc_kit.experts.refused import Refused
from dedloc_kit.learning.train.computing.device import out_of_memory
from dedloc_kit.records.record import Digest
from dedloc_kit.swarm.experts.client import CallFailed
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
    digest_of,
    receive_head,
    send_sums,
)
from dedloc_kit.swarm.experts.placing import Holder
from dedloc_kit.swarm.network.service import Stream, encode
from dedloc_kit.swarm.remote.lines import Opener
from dedloc_kit.swarm.remote.listening import Listening

SILENT_SECONDS, MAX_SILENT_SECONDS = 6.0, 20.0
"""For which a keeper that says nothing is still there."""
PASS_ON_SECONDS = 0.1
"""After which a keeper hears what a follower was told: before it takes its step, which is that of a whole swarm."""
FETCH_SECONDS = 300.0
"""For all that is fetched of a peer to come."""
UNFIT_SECONDS = 60.0
"""For which an expert that this machine had no memory for is not asked for again."""
COMPARE_SECONDS = 30.0
"""After which the next expert of a keeper is compared with its copy here."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class NoCopies(Exception):
    """A peer does not give what it was asked for, or no longer."""


class Following:
    """Everything happens in one loop.

    :param failed: told which peer has not given what it has, or what cannot be right
    :ivar live: those that are followed right now
    :ivar arriving: those that are still to come
    :ivar moved: those whose keeper has said that it is somebody else now
    :ivar givers: who has given those that are kept here, and when
    :ivar renewed: how often a keeper's tensors were taken over that were rounded otherwise
    """

    def __init__(
        self, keeping: Keeping, opener: Opener, coder: Coder, failed: Callable[[str, CallFailed], object]
    ) -> None:
        self._keeping, self._names, self._opener, self._coder = keeping, keeping.names, opener, coder
        self._failed = failed
        self.renewed = 0
        self._numbers = {name: number for number, name in enumerate(keeping.names)}
        # One thread for all that takes as much memory as an expert: each thread's allocator keeps what was freed there.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="experts that come")
        self.live: set[ExpertName] = set()
        self.arriving: set[ExpertName] = set()
        self.moved: set[ExpertName] = set()
        self.givers: dict[ExpertName, tuple[str, float]] = {}
        self._unfit: dict[ExpertName, float] = {}
        """Until when those are not asked for that there was no memory for."""

    async def fetch(
        self,
        peer: str,
        names: Sequence[ExpertName],
        step: int,
        take: Callable[[ExpertName, State], object],
        had: Sequence[Digest] = (),
    ) -> None:
        """Take those of these that a peer has as they were after this step, one after the other; raises NoCopies.

        :param had: digests of each of them, if they are here: what is the same does not come
        """
        wanted = self._wanted(dict.fromkeys(names, step), follow=False, had=had)
        with _failing(peer):
            async with self._opener.open(peer, CopyService, encode(wanted)) as stream:
                listening = Listening(stream, SILENT_SECONDS, MAX_SILENT_SECONDS)
                for name in names:
                    head = await listening.heard(receive_head(stream))
                    self._check_asked(head, [name])
                    if isinstance(head, CopyHead):
                        if head.step != step or not (head.here or had):
                            raise ValueError("an expert of another step")
                        if not head.here:
                            continue
                        tensors = await listening.heard(self._coder.receive_state(stream))
                        await self._apart(self._keeping.bank.check, name, tensors)
                        await self._apart(take, name, (tensors, step))

    async def gather(
        self, of_peers: Mapping[str, Sequence[ExpertName]], step: int, take: Callable[[ExpertName, State], object]
    ) -> None:
        """The same of several peers at once, as far as they give them."""

        async def fetch(peer: str, names: Sequence[ExpertName]) -> None:
            try:
                async with asyncio.timeout(FETCH_SECONDS):
                    await self.fetch(peer, names, step, take)
            except (NoCopies, TimeoutError) as failure:
                self._failed(peer, CallFailed("gone", str(failure) or "it takes too long to give its experts"))

        await asyncio.gather(*(fetch(peer, names) for peer, names in of_peers.items()))

    def fits(self, name: ExpertName) -> bool:
        """Has there been memory for this expert, as far as is known?"""
        return time.monotonic() > self._unfit.get(name, 0.0)

    async def follow(self, peer: str, names: Sequence[ExpertName]) -> None:
        """Get these from whoever keeps them, and follow until all are given or gone; raises NoCopies."""
        held = {name: step + 1 for name in names for step in self._keeping.bank.steps([name])}
        wanted, left = self._wanted({name: held.get(name, 0) for name in names}, follow=True), set(names)
        came = set[ExpertName]()
        self.arriving |= left
        try:
            with _failing(peer):
                async with self._opener.open(peer, CopyService, encode(wanted)) as stream:
                    work = self._pass_on(came, stream), self._compare(peer, names, came)
                    beside = [asyncio.create_task(each) for each in work]
                    try:
                        listening = Listening(stream, SILENT_SECONDS, MAX_SILENT_SECONDS)
                        while left:
                            head = await listening.heard(receive_head(stream))
                            self._check_asked(head, left)
                            left -= await self._take(peer, head, held, came, listening, stream)
                    finally:
                        for task in beside:
                            task.cancel()
        finally:
            self.live -= came
            for those in (self.arriving, self.moved):
                those -= left

    async def _take(
        self,
        peer: str,
        head: Head,
        held: Mapping[ExpertName, int],
        came: set[ExpertName],
        listening: Listening,
        stream: Stream,
    ) -> set[ExpertName]:
        """What is said of an expert; returns it if nothing more is to come of it.

        :param came: those that are followed on this stream: of others, it says nothing
        """
        name, keeping = self._names[head.expert], self._keeping
        if isinstance(head, CopyHead):
            if name in self.live or name in keeping.kept:
                raise ValueError("an expert that is here already")
            if head.here:
                await self._take_copy(name, head.step, listening, stream)
            elif held.get(name) != head.step + 1:
                raise ValueError("an expert that is not here is not sent")
            came.add(name)
            self.live.add(name)
            self.arriving.discard(name)
            self.moved.discard(name)
            return set()
        if isinstance(head, GoneHead):
            if name in came or name not in self.live:
                self._end(name, came)
                self.arriving.discard(name)
                self.moved.add(name)
            return {name}
        if name not in came:
            raise ValueError("of an expert that has not come")
        if isinstance(head, StepHead):
            mean = await listening.heard(self._coder.receive_mean(stream, head.exponent))
            await self._apart(keeping.follow, name, head.step, mean, head.rate)
            return set()
        assert isinstance(head, GivenHead)
        sums = await listening.heard(self._coder.receive_sums(stream, head))
        self.givers[name] = peer, time.monotonic()
        await self._apart(keeping.keep, name, sums, peer)
        self._end(name, came)
        return {name}

    def _end(self, name: ExpertName, came: set[ExpertName]) -> None:
        self.live.discard(name)
        came.discard(name)

    async def _take_copy(self, name: ExpertName, step: int, listening: Listening, stream: Stream) -> None:
        try:
            tensors = await listening.heard(self._coder.receive_state(stream))
            await self._apart(self._keeping.bank.check, name, tensors)
            await self._apart(self._keeping.hold, name, (tensors, step))
        except (MemoryError, RuntimeError) as error:
            if out_of_memory(error):
                self._unfit[name] = time.monotonic() + UNFIT_SECONDS
                _log.warning("no memory for the expert %s: not asked for again for %.0f s", name, UNFIT_SECONDS)
            raise

    async def _pass_on(self, came: Collection[ExpertName], stream: Stream) -> None:
        """Let the keeper of these know what they are told here."""
        with suppress(OSError):  # whoever reads the stream finds out
            while True:
                await asyncio.sleep(PASS_ON_SECONDS)
                for name in sorted(came):
                    if sums := self._keeping.told(name):
                        try:
                            await send_sums(stream, ToldHead, self._numbers[name], sums)
                        except OSError:
                            self._keeping.add(name, sums)
                            raise

    async def _compare(self, peer: str, names: Collection[ExpertName], came: Collection[ExpertName]) -> None:
        """Have the bits of whoever keeps these, one after the other: processors that round differently come to others
        with the same steps."""
        for name in itertools.cycle(sorted(names)):
            await asyncio.sleep(COMPARE_SECONDS)
            if name in came:
                try:
                    with _failing(peer):
                        await self._renew(peer, name)
                except (NoCopies, Refused) as failure:  # it has gone on, or is somebody else's
                    _log.info("the expert %s is not compared: %s", name, failure)

    async def _renew(self, peer: str, name: ExpertName) -> None:
        found, bank = dict[ExpertName, State](), self._keeping.bank
        tensors, step = await self._apart(bank.state, name)
        await self.fetch(peer, [name], step, found.__setitem__, [await self._apart(digest_of, tensors)])
        if name in found:
            try:
                taken = await self._apart(self._keeping.renew, name, found[name])
            except ValueError as error:
                self._failed(peer, CallFailed("unlike", str(error)))
                return
            self.renewed += taken
            _log.info("%s has rounded the expert %s otherwise: %d taken over so far", peer, name, self.renewed)

    async def _apart(self, work: Callable[..., T], *given: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *given))

    def _check_asked(self, head: Head, names: Collection[ExpertName]) -> None:
        """Raises ValueError if this is of another expert."""
        if head.expert >= len(self._names) or self._names[head.expert] not in names:
            raise ValueError("of an expert that was not asked for")

    def _wanted(self, steps: Mapping[ExpertName, int], follow: bool, had: Sequence[Digest] = ()) -> Wanted:
        experts = tuple(self._numbers[name] for name in steps)
        return Wanted(experts=experts, steps=tuple(steps.values()), follow=follow, digests=tuple(had))


def whom_to_ask(
    names: Iterable[ExpertName], holders: Mapping[str, Holder], there: Collection[str]
) -> dict[str, list[ExpertName]]:
    """Of which peer each of these experts is to be fetched that any has: of its keeper, but before that of anybody who
    is there, for the record of one who is gone lives on for a while.

    :param there: those of the peers who have answered since they last failed
    """
    found = dict[str, list[ExpertName]]()
    for name in names:
        having = [
            (peer not in there, name not in host.keeps, peer)
            for peer, host in holders.items()
            if name in host.keeps or name in host.copies
        ]
        if having:
            *_, first = min(having)
            found.setdefault(first, []).append(name)
    return found


@contextmanager
def _failing(peer: str) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, ValueError) as error:
        raise NoCopies(f"{peer} gives no experts: {str(error) or repr(error):.200}") from None
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise NoCopies(f"no memory for what {peer} gives") from None
