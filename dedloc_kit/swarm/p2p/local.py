"""Clock and disk of a real peer."""

import asyncio
import math
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from hivemind.utils import get_dht_time

from dedloc_kit.machine.private import make_private, open_private

T = TypeVar("T")

_NAME = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]{0,99}", re.ASCII)


class SystemClock:
    """`Clock` of this machine; its common time is hivemind's."""

    def now(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return float(get_dht_time())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def deadline(self, at: float) -> AbstractAsyncContextManager[object]:
        return asyncio.timeout(None if at == math.inf else at - self.now())


class FolderDisk:
    """`Disk` in a folder for its owner alone. One thread of its own writes, so writes keep their order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="disk")

    async def read(self, name: str, limit: int, /) -> bytes | None:
        path = self._path(name)

        def read() -> bytes | None:
            try:
                with path.open("rb") as file:
                    return file.read(limit + 1)
            except FileNotFoundError:
                return None

        content = await self._run(read)
        if content is not None and len(content) > limit:
            raise ValueError(f"{name} has more than {limit} bytes")
        return content

    async def write(self, name: str, content: bytes, /) -> None:
        await self._run(partial(_replace, self._path(name), content))

    async def remove(self, name: str, /) -> None:
        await self._run(partial(self._path(name).unlink, missing_ok=True))

    def close(self) -> None:
        """Wait for the last write."""
        self._thread.shutdown()

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r:.120} is not the name of a file")
        return self._folder / name


def _replace(path: Path, content: bytes) -> None:
    make_private(path.parent)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open_private(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
