"""One call at a time, in a thread that somebody else has: the most urgent first, then in order of arrival."""

import asyncio
import itertools
import queue
import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Turns:
    """Calls that wait for the thread that takes them."""

    def __init__(self) -> None:
        self._calls: queue.PriorityQueue[tuple[int, int, Callable[[], Any], Future[Any]]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._unfinished = 0

    @property
    def waiting(self) -> int:
        """How many."""
        return self._calls.qsize()

    @property
    def unfinished(self) -> int:
        """How many calls wait or are being made; for the loop that has them made."""
        return self._unfinished

    async def run(self, priority: int, function: Callable[[], T]) -> T:
        """What the function returns or raises in that thread; it is not called any more once nobody waits for it.

        :param priority: the lowest number goes first
        """
        done: Future[T] = Future()
        self._calls.put((priority, next(self._numbers), function, done))
        self._unfinished += 1
        try:
            return await asyncio.wrap_future(done)
        finally:
            self._unfinished -= 1

    def last(self, function: Callable[[], object]) -> None:
        """Have this called in that thread once nothing waits before it."""
        self._calls.put((sys.maxsize, next(self._numbers), function, Future()))

    def take(self, seconds: float | None = None) -> bool:
        """Make the next call, in this thread; False if for so long there was none."""
        try:
            _, _, function, done = self._calls.get(timeout=seconds)
        except queue.Empty:
            return False
        if done.set_running_or_notify_cancel():
            try:
                done.set_result(function())
            except BaseException as error:  # it is the caller's
                done.set_exception(error)
        return True
