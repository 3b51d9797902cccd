"""The step with which a run goes back to an earlier state: of several parts of a run it is the same."""

import threading
from collections.abc import Callable

BEYOND = 10
"""Steps that stages may take before all of their peers have heard of it: what was begun for one of these is refused by
who has gone back, while one number for two states would let the two mix."""


class Together:
    """Lets parts of a run go back with the same step, once all could.

    :param after: the step has a higher number than this
    :param newest: the step of the part that is furthest
    """

    def __init__(self, after: int, newest: Callable[[], int], parts: int = 1) -> None:
        self._after, self._newest, self._lock = after, newest, threading.Lock()
        self._able = [False] * parts
        self._step: int | None = None

    def agree(self, part: int, able: bool, done: int = 0) -> int | None:
        """The step with which all go back; none while one of them cannot.

        :param able: whether this part could go back now
        :param done: the step with which it has gone back already; 0: with none
        """
        with self._lock:
            self._able[part] = able
            if self._step is None and done:
                self._step = done
            if self._step is None and all(self._able):
                self._step = max(self._after, self._newest()) + 1 + BEYOND * (len(self._able) > 1)
            return self._step
