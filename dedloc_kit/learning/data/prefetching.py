"""Batches made ahead of their use: by a forked process, through shared memory, or where that cannot be by a thread."""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from dedloc_kit.learning.data.batch_process import Batch, BatchProcess, Make, Warn
from dedloc_kit.learning.data.sources.stream import Prefetch


class Loader:
    """An iterator over batches that are made in the background, at most `ahead` of them before they are taken.

    Where it can, it forks a process: so create it in the main thread, before other threads run and before a GPU is
    used; what `make` refers to is shared with the process. Errors, warnings and log records of the batches' making come
    in their order, when a batch is taken. Threads may take batches at the same time.

    :param make: called where the batches are made, with a function for what cannot be read, and with what `start` was
        given
    :param warn: gets the warnings of `make`; a `Loss` keeps its `losses`, which go on being counted
    :param fork: none: if this system can
    :param copy: makes a copy of what comes from the process; none: in pinned memory if a GPU is used
    """

    def __init__(
        self,
        make: Make,
        warn: Warn,
        ahead: int = 4,
        fork: bool | None = None,
        copy: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        forks = can_fork() if fork is None else fork
        self._way = BatchProcess(make, warn, ahead, copy) if forks else _Threaded(make, warn, ahead)

    def start(self, *arguments: Any) -> Self:
        """Make the batches of `make(warn, *arguments)` from now on; those that were made before are dropped.

        Raises what `make` itself raises, before there is an iterator.
        """
        self._way.start(arguments)
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        """The next batch. Raises StopIteration at the end, what `make` raised, or `LoaderDied`."""
        return self._way.take()

    def close(self) -> None:
        """End the making of batches, within seconds; whoever waits for one gets StopIteration."""
        self._way.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def can_fork() -> bool:
    """Whether a process that is forked now can compute. Of macOS's libraries some fail in a forked process."""
    return sys.platform == "linux" and not torch.cuda.is_initialized()


class _Threaded:
    def __init__(self, make: Make, warn: Warn, ahead: int) -> None:
        self._make, self._warn, self._ahead = make, warn, ahead
        self._batches: Prefetch[Batch] | None = None

    def start(self, arguments: tuple[Any, ...]) -> None:
        self.close()
        self._batches = Prefetch(self._make(self._warn, *arguments), self._ahead)

    def take(self) -> Batch:
        assert self._batches is not None, "call `start` first"
        return next(self._batches)

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()
