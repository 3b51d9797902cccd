"""One call at a time: single tokens first, then prompts, then training."""

import threading
from enum import IntEnum

from dedloc_kit.swarm.remote.turns import Turns


class Priority(IntEnum):
    """The lowest number goes first."""

    TOKEN = 0
    PROMPT = 1
    TRAINING = 2


FEW_TOKENS = 16
"""Up to so many, rows times new ones, are no prompt: those of beams, and some that are only guessed."""


class Computing(Turns):
    """A thread that computes. Of equal priority who comes first goes first.

    :param chunk: longer calls are divided into such with so many tokens in all rows together, and between two of them
        whoever is before them in priority has its turn
    """

    def __init__(self, chunk: int = 256) -> None:
        super().__init__()
        self.chunk = chunk
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="computing", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after what waits."""
        self.last(self._end)
        self._thread.join()

    def _work(self) -> None:
        while not self._closed:
            self.take()

    def _end(self) -> None:
        self._closed = True
