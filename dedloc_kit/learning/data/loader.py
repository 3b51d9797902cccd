"""Batches made ahead of their use: by a forked process, through shared memory, or where that cannot be by a thread."""

import os
import sys
from types import TracebackType
from typing import Any, Protocol, Self

import torch

from dedloc_kit.learning.data.batch_process import BatchProcess, Make, Warn
from dedloc_kit.learning.data.slots import Batch, Lent
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
    """

    def __init__(self, make: Make, warn: Warn, ahead: int = 4, fork: bool | None = None) -> None:
        self._way: _Way = (BatchProcess if (can_fork() if fork is None else fork) else _Threaded)(make, warn, ahead)

    def start(self, *arguments: Any) -> Self:
        """Make the batches of `make(warn, *arguments)` from now on; those that were made before are dropped.

        Raises what `make` itself raises, before there is an iterator.
        """
        self._way.start(arguments)
        return self

    def take(self) -> Lent:
        """The next batch, without a copy. Raises StopIteration at the end, what `make` raised, or `LoaderDied`."""
        return self._way.take()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        """The next batch, in memory of its own; otherwise as `take`."""
        lent = self.take()
        batch = self._way.kept(lent.batch)
        lent.give_back()
        return batch

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
    return sys.platform == "linux" and hasattr(os, "memfd_create") and not torch.cuda.is_initialized()


class _Way(Protocol):
    def start(self, arguments: tuple[Any, ...]) -> None: ...

    def take(self) -> Lent: ...

    def kept(self, batch: Batch) -> Batch: ...

    def close(self) -> None: ...


class _Threaded:
    def __init__(self, make: Make, warn: Warn, ahead: int) -> None:
        self._make, self._warn, self._ahead = make, warn, ahead
        self._batches: Prefetch[Batch] | None = None

    def start(self, arguments: tuple[Any, ...]) -> None:
        self.close()
        self._batches = Prefetch(self._make(self._warn, *arguments), self._ahead)

    def take(self) -> Lent:
        assert self._batches is not None, "call `start` first"
        return Lent(next(self._batches), lambda: None)

    def kept(self, batch: Batch) -> Batch:
        return batch

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()
