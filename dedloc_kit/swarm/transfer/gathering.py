"""Many contents at once from several donors, each named by its hash: whichever stream is free takes the next block.

A content with a wrong hash that came from one donor convicts it. If several have given to it, one of these lies, and
from then on each of them gives whole contents, until one is convicted.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dedloc_kit.swarm.network.service import Stream
from dedloc_kit.swarm.transfer.addressed import ExpectedContent
from dedloc_kit.swarm.transfer.download import PATIENCE_SECONDS, PAUSE_SECONDS, STREAMS, OpenStream
from dedloc_kit.swarm.transfer.protocol import Download
from dedloc_kit.swarm.transfer.store import Part, Store

MAX_FAILURES = 3
"""One after the other, and the stream is not opened again."""
LOOK_SECONDS = 0.1
"""How often a stream that has nothing to take looks again."""
TAKE_OVER_SECONDS = 5.0
"""After so long without anything to take a stream gets the block at which another donor is slow."""
REPORT_SECONDS = 0.25

_log = logging.getLogger(__name__)


class _Piece:
    """One content."""

    def __init__(self, digest: str, size: int) -> None:
        self.digest, self.size = digest, size
        self.givers: set[str] = set()
        """Donors whose bytes may be in it."""
        self.refused: set[str] = set()
        """Donors that do not have it."""
        self.streams = 0
        """That bring it now."""
        self.complete = False
        self._part: Part | None = None
        self._download: Download | None = None

    @property
    def received(self) -> int:
        return self.size if self.complete else self._download.received if self._download else 0

    @property
    def arrived(self) -> bool:
        return self._download is not None and self._download.complete

    def open_to(self, donor: str) -> bool:
        """Is there a block that this donor may be asked for?"""
        if donor in self.refused:
            return False
        if self._download is None or not self._download.begun.is_set():
            return not self.streams
        return self._download.wants_more

    def download(self, store: Store) -> Download:
        """Where it goes."""
        if self._download is None:
            self._part = store.begin(self.digest, self.size)
            self._download = Download(ExpectedContent(self.digest, self.size), self._part.buffer)
        return self._download

    async def keep(self) -> bool:
        """All of it is there: is it right?"""
        assert self._part is not None
        self.complete = await asyncio.to_thread(self._part.keep)
        if self.complete:
            self._part = self._download = None
        return self.complete

    def restart(self) -> None:
        """Forget what has come."""
        self.givers.clear()
        if self._download:
            self._download.discard()

    def drop(self) -> None:
        """It is of no use any more."""
        if self._part:
            self._part.drop()


@dataclass(eq=False)
class _Take:
    """A stream that brings a piece."""

    donor: str
    piece: _Piece
    limit: asyncio.Timeout

    interrupted: bool = False

    def interrupt(self) -> None:
        if not self.interrupted:
            self.interrupted = True
            self.limit.reschedule(asyncio.get_running_loop().time())


class Gathering:
    """Fetches contents into a store.

    :param wanted: their sizes by their hashes, none empty
    :param open_stream: to a donor's ContentService
    """

    def __init__(self, store: Store, wanted: Mapping[str, int], donors: Sequence[str], open_stream: OpenStream) -> None:
        self._store, self._donors, self._open_stream = store, donors, open_stream
        self._pieces = [_Piece(digest, size) for digest, size in wanted.items()]
        self._missing = list(self._pieces)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._takes: list[_Take] = []
        self._banned: set[str] = set()
        self._suspects: set[str] = set()
        """One of them has sent what is wrong."""
        self._slow: set[str] = set()
        """Something was taken over from them; they take over nothing."""
        self._warned: set[str] = set()

    async def complete(self, on_progress: Callable[[int], None]) -> set[str]:
        """Ask the donors until everything is there, or none of them gives the rest; returns the hashes of that.

        :param on_progress: called some times a second with the bytes that have come

        Raises UserError if it cannot be written.
        """
        self._tasks |= {asyncio.create_task(self._work(donor)) for donor in self._donors for _ in range(STREAMS)}
        furthest, progressed = 0, time.monotonic()
        try:
            while self._tasks and time.monotonic() < progressed + PATIENCE_SECONDS:
                done, _ = await asyncio.wait(self._tasks, timeout=REPORT_SECONDS)
                self._tasks -= done
                for task in done:
                    task.result()
                received = sum(piece.received for piece in self._pieces)
                if received > furthest:  # what was wrong and comes again does not count
                    furthest, progressed = received, time.monotonic()
                    on_progress(furthest)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for piece in self._missing:
                piece.drop()
        return {piece.digest for piece in self._missing}

    async def _work(self, donor: str) -> None:
        """One stream to a donor, opened again when it has ended."""
        failures, idle_since = 0, time.monotonic()
        while failures < MAX_FAILURES and self._may_give(donor):
            if self._next(donor) is None:
                if time.monotonic() > idle_since + TAKE_OVER_SECONDS:
                    self._take_over(donor)
                await asyncio.sleep(LOOK_SECONDS)
                continue
            pause = 0.0
            try:
                async with self._open_stream(donor) as stream:
                    while not pause and (piece := self._next(donor)):
                        if await self._take(piece, donor, stream):
                            failures = 0
                        else:
                            pause = random.uniform(*PAUSE_SECONDS)
            except ValueError as error:
                self._ban(donor, str(error))
            except (OSError, EOFError) as error:
                self._warn(donor, f"does not deliver: {str(error) or repr(error):.80}")
                failures, pause = failures + 1, random.uniform(*PAUSE_SECONDS)
            await asyncio.sleep(pause)
            idle_since = time.monotonic()

    async def _take(self, piece: _Piece, donor: str, stream: Stream) -> bool:
        """As much of a piece as there is to take; False if the donor is busy."""
        if self._would_mix(piece, donor):
            piece.restart()
        piece.givers.add(donor)
        piece.streams += 1
        take = _Take(donor, piece, asyncio.timeout(None))
        self._takes.append(take)
        try:
            async with take.limit:
                answer = await piece.download(self._store).take_from(stream)
        finally:
            self._takes.remove(take)
            piece.streams -= 1
            if piece.arrived and not piece.streams:
                self._tasks.add(asyncio.create_task(self._check(piece)))
        if answer in ("nothing", "other"):
            piece.refused.add(donor)
        return answer != "busy"

    async def _check(self, piece: _Piece) -> None:
        givers = set(piece.givers)
        if await piece.keep():
            self._missing.remove(piece)
            return
        piece.restart()
        if len(givers) == 1:
            self._ban(givers.pop(), "its content has another hash")
        elif not givers & self._banned:
            self._suspects |= givers

    def _may_give(self, donor: str) -> bool:
        """Is there anything missing that this donor may have?"""
        return donor not in self._banned and any(donor not in piece.refused for piece in self._missing)

    def _next(self, donor: str) -> _Piece | None:
        if donor in self._banned:
            return None
        pieces = (piece for piece in self._missing if piece.open_to(donor))
        return next((piece for piece in pieces if not (piece.streams and self._would_mix(piece, donor))), None)

    def _would_mix(self, piece: _Piece, donor: str) -> bool:
        """Would a donor's bytes come beside those of another, though one of the two is not trusted?"""
        others = piece.givers - {donor}
        return bool(others and (self._suspects & {donor, *others} or self._banned & others))

    def _take_over(self, donor: str) -> None:
        """From the donor whose stream has been at a piece for the longest time: nobody waits for its last block."""
        takes = (take for take in self._takes if take.donor != donor and donor not in take.piece.refused)
        if donor not in self._slow and (take := next((take for take in takes if not take.interrupted), None)):
            self._slow.add(take.donor)
            take.interrupt()

    def _ban(self, donor: str, reason: str) -> None:
        self._warn(donor, f"sends what cannot be right ({reason:.100}); it is not asked again")
        self._banned.add(donor)
        self._suspects.clear()  # it was this one
        for take in self._takes:
            if take.donor == donor:
                take.interrupt()

    def _warn(self, donor: str, reason: str) -> None:
        if donor not in self._warned:
            self._warned.add(donor)
            _log.warning("%s %s", donor, reason)
