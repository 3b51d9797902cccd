"""How long one waits for a peer that says nothing."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from dedloc_kit.swarm.network.service import Stream

T = TypeVar("T")

LOOK_SECONDS = 1.0
LATE_SECONDS = 0.5
"""By which this process notices that it has stood still itself: then what has come may not be read yet."""


class Listening:
    """To a stream whose other end says every second that it is still here. Time in which this process stands still
    itself does not count.

    :param least: seconds of silence after which it is taken for gone, or four times as long as it was silent before
    :param most: at most
    """

    def __init__(self, stream: Stream, least: float, most: float) -> None:
        self._stream, self._patience, self._most = stream, least, most

    async def heard(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of what reads the stream; raises TimeoutError if nothing comes for too long."""
        task, began = asyncio.ensure_future(work), time.monotonic()
        try:
            while not task.done():
                left = max(self._stream.heard, began) + self._patience - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"it has said nothing for {self._patience:.0f} s")
                asked = time.monotonic()
                await asyncio.wait({task}, timeout=min(left, LOOK_SECONDS))
                if time.monotonic() > asked + min(left, LOOK_SECONDS) + LATE_SECONDS:
                    began = time.monotonic()
            self._patience = min(max(self._patience, 4 * self._stream.silence), self._most)
            return task.result()
        finally:
            task.cancel()
