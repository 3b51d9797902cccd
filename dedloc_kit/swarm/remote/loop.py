"""An event loop in a thread of its own, for a role whose other threads compute."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

T = TypeVar("T")

STOP_SECONDS = 10.0

_log = logging.getLogger(__name__)


class Loop:
    """Runs while it is entered; at the end what still runs in it is cancelled."""

    def __enter__(self) -> Self:
        started = threading.Event()

        def run() -> None:
            self._loop = uvloop.new_event_loop()  # not for the whole process, as hivemind's way would
            asyncio.set_event_loop(self._loop)
            self._loop.call_soon(started.set)
            self._loop.run_forever()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            rest = asyncio.gather(*asyncio.all_tasks(self._loop), return_exceptions=True)
            self._loop.run_until_complete(asyncio.wait_for(asyncio.shield(rest), STOP_SECONDS))
            self._loop.close()

        self._thread = threading.Thread(target=run, name="loop", daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)

    def start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Begin it there; from any other thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def keep(self, work: Coroutine[Any, Any, None]) -> "Future[None]":
        """Begin there what goes on until it is cancelled; if it ends by a fault, the log says so."""
        kept = self.start(work)
        kept.add_done_callback(_tell)
        return kept

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result, from any other thread."""
        return self.start(work).result()

    def soon(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call this there."""
        self._loop.call_soon_threadsafe(call, *arguments)


def _tell(ended: "Future[None]") -> None:
    if not ended.cancelled() and (error := ended.exception()) is not None:
        _log.error("a part of this peer has ended by a fault", exc_info=error)
