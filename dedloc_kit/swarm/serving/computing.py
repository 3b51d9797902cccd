"""One call at a time: single tokens first, then prompts, then training."""

import asyncio
import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from enum import IntEnum
from typing import Any, TypeVar

T = TypeVar("T")


class Priority(IntEnum):
    """The lowest number goes first."""

    TOKEN = 0
    PROMPT = 1
    TRAINING = 2
    _END = 3


FEW_TOKENS = 16
"""Up to so many, rows times new ones, are no prompt: those of beams, and some that are only guessed."""


class Computing:
    """A thread that computes. Of equal priority who comes first goes first.

    :param chunk: longer calls are divided into such with so many tokens in all rows together, and between two of them
        whoever is before them in priority has its turn
    """

    def __init__(self, chunk: int = 256) -> None:
        self.chunk = chunk
        self._waiting: queue.PriorityQueue[tuple[Priority, int, Callable[[], Any], Future[Any]]]
        self._waiting = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._work, name="computing", daemon=True)
        self._thread.start()

    async def run(self, priority: Priority, function: Callable[[], T]) -> T:
        """What the function returns or raises; it is not called any more once nobody waits for it."""
        done: Future[T] = Future()
        self._waiting.put((priority, next(self._numbers), function, done))
        return await asyncio.wrap_future(done)

    def close(self) -> None:
        """End after what waits."""
        self._waiting.put((Priority._END, next(self._numbers), _nothing, Future()))
        self._thread.join()

    def _work(self) -> None:
        while True:
            priority, _, function, done = self._waiting.get()
            if priority is Priority._END:
                return
            if not done.set_running_or_notify_cancel():
                continue
            try:
                done.set_result(function())
            except BaseException as error:  # it is the caller's
                done.set_exception(error)
            del function, done


def _nothing() -> None: ...
