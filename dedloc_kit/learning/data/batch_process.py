"""A forked process that makes batches, and hands them over in shared memory."""

import gc
import logging
import math
import mmap
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from logging.handlers import QueueHandler
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.data_issues import Loss, Losses

Batch = dict[str, Tensor]
Make = Callable[..., Iterator[Batch]]
Warn = Callable[[str], None]

SLOT = 2**27
"""Bytes that are reserved for a batch; memory is taken only of those that are used. A larger batch goes through the
pipe."""
_ALIGNED = 64
"""Bytes, to which each tensor of a slot is aligned."""
_WATCH_SECONDS = 0.5
"""Between two looks whether the parent process is alive."""
_OURS = "dedloc_kit"
"""The logger whose records go to the parent process."""


class LoaderDied(RuntimeError):
    """The process that makes the batches has ended without being asked to."""


class _Part(NamedTuple):
    """Where a tensor lies in a slot."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    """Bytes from the slot's beginning."""


class BatchProcess:
    """The parent's end of the worker process; see `Loader` for what each method promises."""

    def __init__(self, make: Make, warn: Warn, ahead: int, copy: Callable[[Tensor], Tensor] | None) -> None:
        context = get_context("fork")
        self._slots = [torch.frombuffer(mmap.mmap(-1, SLOT), dtype=torch.uint8) for _ in range(ahead)]
        self._pipe, far = context.Pipe()
        self._process = context.Process(
            target=_live, args=(make, far, self._pipe, self._slots, os.getpid()), name="batches", daemon=True
        )
        with _quiet_tokenizers():
            self._process.start()
        far.close()
        self._warn, self._copy = warn, copy
        self._losses: list[Losses] = []
        self._generation, self._begun, self._over, self._closed = 0, 0, False, False
        self._taking, self._sending = threading.Lock(), threading.Lock()

    def start(self, arguments: tuple[Any, ...]) -> None:
        with self._taking:
            self._generation, self._over = self._generation + 1, False
            self._send(("start", self._generation, arguments))
            while self._begun < self._generation and not self._closed:
                self._heard(self._receive())

    def take(self) -> Batch:
        with self._taking:
            while not (self._over or self._closed):
                if (batch := self._heard(self._receive())) is not None:
                    return batch
        raise StopIteration

    def close(self) -> None:
        self._closed = True
        self._process.kill()  # it holds nothing that it would have to save
        self._process.join()
        with self._taking:
            self._pipe.close()
            self._slots.clear()

    def _receive(self) -> Any:
        try:
            *message, counts = self._pipe.recv()
        except (EOFError, OSError):
            if self._closed:
                return ["end", self._generation]
            self._process.join()
            code = self._process.exitcode or 0
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            raise LoaderDied(
                f"the process that makes batches {how}; probably memory was short: close other programs"
            ) from None
        for number, (dataset, files, unreadable, bad_rows) in enumerate(counts):
            if number == len(self._losses):
                self._losses.append(Losses(dataset, files, self._warn))
            losses = self._losses[number]
            losses.unreadable = {path: UserError(reason) for path, reason in unreadable.items()}
            losses.bad_rows = bad_rows
        return message

    def _heard(self, message: Any) -> Batch | None:
        match message:
            case "batch", generation, slot, parts, large:
                memory = torch.frombuffer(bytearray(self._pipe.recv_bytes()), dtype=torch.uint8) if large else None
                batch = _batch_in(self._slots[slot] if memory is None else memory, parts)
                found = {name: self._kept(values) for name, values in batch.items()}
                self._send(("free", slot))
                return found if generation == self._generation else None
            case "begun", generation:
                self._begun = generation
            case "warning", text, number:
                self._warn(text if number is None else Loss.of(text, self._losses[number]))
            case "log", record:
                logging.getLogger(record.name).handle(record)
            case "end", generation:
                self._over = generation == self._generation
            case "error", generation, text, expected if generation == self._generation:
                self._over = True
                raise UserError(text) if expected else RuntimeError(text)
        return None

    def _kept(self, values: Tensor) -> Tensor:
        """A copy that stays as it is."""
        if self._copy is not None:
            return self._copy(values)
        # A GPU takes it from pinned memory, into which it would have to be copied again otherwise.
        return values.pin_memory() if torch.cuda.is_initialized() else values.clone()

    def _send(self, message: Any) -> None:
        with self._sending, suppress(OSError):  # it is dead, which `take` tells
            self._pipe.send(message)


def _laid_out(batch: Batch) -> tuple[list[_Part], int]:
    """Where the tensors of a batch lie in a slot, and how many bytes they take together."""
    parts, end = [], 0
    for name, values in batch.items():
        parts.append(_Part(name, values.dtype, tuple(values.shape), end))
        end += -(-values.nbytes // _ALIGNED) * _ALIGNED
    return parts, end


def _batch_in(slot: Tensor, parts: list[_Part]) -> Batch:
    """The tensors of a slot; they share its memory. uint8 [bytes]"""
    found = {}
    for part in parts:
        size = part.dtype.itemsize * math.prod(part.shape)
        found[part.name] = slot[part.begin : part.begin + size].view(part.dtype).view(part.shape)
    return found


@contextmanager
def _quiet_tokenizers() -> Iterator[None]:
    """Within the block a fork does not make `tokenizers` warn that its threads are gone."""
    name = "TOKENIZERS_PARALLELISM"
    if name in os.environ:
        yield
        return
    os.environ[name] = "false"
    try:
        yield
    finally:
        del os.environ[name]


class _Parent:
    """The worker's end of the pipe to its parent process; a message ends with how much data cannot be used."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self._sending = threading.Lock()
        self._losses: list[Losses] = []

    def send(self, *message: Any, content: Any = None) -> None:
        with self._sending:
            counts = []
            for losses in self._losses:
                unreadable = {path: str(error) for path, error in dict(losses.unreadable).items()}
                counts.append((losses.dataset, losses.files, unreadable, losses.bad_rows))
            self.pipe.send((*message, counts))
            if content is not None:
                self.pipe.send_bytes(content)

    def warn(self, text: str) -> None:
        number = None
        if isinstance(text, Loss):
            if text.losses not in self._losses:
                self._losses.append(text.losses)
            number = self._losses.index(text.losses)
        self.send("warning", str(text), number)


class _PipeHandler(QueueHandler):
    """Sends log records to the parent process."""

    def __init__(self, parent: _Parent) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self._parent = parent

    def enqueue(self, record: logging.LogRecord) -> None:
        self._parent.send("log", record)


def _live(make: Make, pipe: Connection, far: Connection, slots: list[Tensor], parent: int) -> None:
    """The worker's main function, until the parent kills it or is gone."""
    far.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()  # what is shared stays shared
    with suppress(OSError):
        os.nice(5)  # the thread that feeds a GPU comes first
    # Not in the main thread: torch's thread pool of before the fork is of no use there.
    thread = threading.Thread(target=_serve, args=(make, pipe, slots), name="batches", daemon=True)
    thread.start()
    while thread.is_alive() and os.getppid() == parent:
        thread.join(_WATCH_SECONDS)
    os._exit(0)


def _serve(make: Make, pipe: Connection, slots: list[Tensor]) -> None:
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parent = _Parent(pipe)
    ours = logging.getLogger(_OURS)
    ours.handlers, ours.propagate = [_PipeHandler(parent)], False
    with suppress(EOFError, OSError):  # the parent process is gone
        _make(make, parent, slots)


def _make(make: Make, parent: _Parent, slots: list[Tensor]) -> None:
    free = deque(range(len(slots)))
    batches: Iterator[Batch] | None = None
    generation = 0
    while True:
        while batches is None or not free or parent.pipe.poll():
            match parent.pipe.recv():
                case "free", number:
                    free.append(number)
                case "start", generation, arguments:
                    batches = None
                    with _told(parent, generation):
                        batches = iter(make(parent.warn, *arguments))
                    if batches is not None:
                        parent.send("begun", generation)
        batch, over = None, False
        with _told(parent, generation):
            batch = next(batches, None)
            over = batch is None
        if batch is None:
            if over:
                parent.send("end", generation)
            batches = None
            continue
        number = free.popleft()
        parts, size = _laid_out(batch)
        large = torch.empty(size, dtype=torch.uint8) if size > SLOT else None
        for name, place in _batch_in(slots[number] if large is None else large, parts).items():
            place.copy_(batch[name])
        content = None if large is None else large.numpy()
        parent.send("batch", generation, number, parts, large is not None, content=content)


@contextmanager
def _told(parent: _Parent, generation: int) -> Iterator[None]:
    """The parent is told of an error in the block, as a text: not every error can be sent."""
    try:
        yield
    except BaseException as error:
        expected = isinstance(error, UserError)
        if not expected:
            logging.getLogger(__name__).error("making batches failed", exc_info=error)
        text = str(error) if expected else f"{type(error).__name__}: {error}"
        parent.send("error", generation, text, expected)
