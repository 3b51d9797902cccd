"""A run's bucket as peers read it: several files at once, each with the hash that is its name."""

import asyncio
import hashlib
import itertools
import os
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from dedloc_kit.bucket.contents import MAX_INDEX_BYTES, Chunk, Index
from dedloc_kit.bucket.fetching import Refused, Room, Unavailable, fetch
from dedloc_kit.config.section import HUB_REPOSITORY

STREAMS = 6
"""One connection alone leaves a long line idle again and again."""
MAX_ATTEMPTS = 8
"""At one file."""
PAUSE_SECONDS = (0.3, 1.0)
"""After a failure."""
LEAST_BYTES, WINDOW_SECONDS = 2**18, 20.0
"""A server that sends less in this time is as good as gone: there are peers to ask."""
REPORT_SECONDS = 0.25


class BucketFailed(Exception):
    """It does not give what it should; says why."""


@dataclass(frozen=True)
class _File:
    """To be fetched."""

    digest: str
    room: Room


class Bucket:
    """Where a run's files lie.

    :param where: the run's `averaging.state_bucket`
    :param trusted: see `fetch`; the Hub's address, which this machine's owner may have changed, is so in any case
    """

    def __init__(self, where: str, run_id: str, trusted: Collection[str] = ()) -> None:
        self._run_id, self._trusted = run_id, tuple(trusted)
        if re.fullmatch(HUB_REPOSITORY, where):
            endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
            self._trusted += (f"{endpoint}/",)
            self._folder = f"{endpoint}/buckets/{where}/resolve/{run_id}%2F"  # one name for the Hub, slash and all
        else:
            self._folder = f"{where.rstrip('/')}/{run_id}/"

    def index(self, digest: str, stop: threading.Event) -> Index:
        """The index with this hash. Raises BucketFailed."""
        found = memoryview(b"")

        def room(size: int) -> memoryview:
            nonlocal found
            if not 0 < size <= MAX_INDEX_BYTES:
                raise ValueError(f"an index of {size} bytes")
            found = memoryview(bytearray(size))
            return found

        self._fetch([_File(digest, room)], stop, lambda _: None)
        try:
            index = Index.read(bytes(found))
        except ValueError as error:
            raise BucketFailed(f"gives what cannot be right ({error!s:.80})") from None
        if index.run_id != self._run_id:
            raise BucketFailed("holds another run")
        return index

    def read(
        self,
        chunks: Sequence[Chunk],
        buffer: memoryview,
        stop: threading.Event,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Fill the buffer, which is as long as these are, one after the other. Raises BucketFailed.

        :param on_progress: called some times a second with the bytes that have come
        """
        ends = itertools.accumulate(chunk.size for chunk in chunks)
        files = [
            _File(chunk.digest, partial(_exactly, buffer[end - chunk.size : end]))
            for chunk, end in zip(chunks, ends, strict=True)
        ]
        self._fetch(files, stop, lambda came: on_progress(min(came, len(buffer))))

    def _fetch(self, files: Sequence[_File], stop: threading.Event, on_progress: Callable[[int], None]) -> None:
        try:
            asyncio.run(_Fetching(self._folder, self._trusted, files).complete(stop, on_progress))
        except (Refused, Unavailable) as error:
            raise BucketFailed(str(error)) from None


def _exactly(view: memoryview, size: int) -> memoryview:
    if size != len(view):
        raise ValueError(f"{size} bytes where {len(view)} would be right")
    return view


class _Fetching:
    """Fetches files, each again if it fails, until all are there or it makes no sense any more."""

    def __init__(self, folder: str, trusted: Collection[str], files: Sequence[_File]) -> None:
        self._folder, self._trusted = folder, trusted
        self._waiting = deque(files)
        self._received = 0
        self._failure = ""

    async def complete(self, stop: threading.Event, on_progress: Callable[[int], None]) -> None:
        """Raises Refused or Unavailable."""
        tasks = {asyncio.create_task(self._work()) for _ in range(min(STREAMS, len(self._waiting)))}
        marked, since = 0, time.monotonic()
        try:
            while tasks:
                done, tasks = await asyncio.wait(tasks, timeout=REPORT_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
                on_progress(self._received)
                if stop.is_set():
                    raise Unavailable("is not needed any more")
                if time.monotonic() > since + WINDOW_SECONDS:
                    if tasks and self._received < marked + LEAST_BYTES:
                        raise Unavailable(self._failure or "is too slow")
                    marked, since = self._received, time.monotonic()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        while self._waiting:
            await self._take(self._waiting.popleft())

    async def _take(self, file: _File) -> None:
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                await asyncio.sleep(random.uniform(*PAUSE_SECONDS))
            try:
                content = await fetch(self._folder + file.digest, file.room, self._came, self._trusted)
            except Unavailable as error:
                self._failure = str(error)
                continue
            found = await asyncio.to_thread(hashlib.sha256, content)
            if found.hexdigest() != file.digest:
                raise Refused("gives other bytes than those that it should")
            return
        raise Unavailable(self._failure)

    def _came(self, count: int) -> None:
        self._received += count
