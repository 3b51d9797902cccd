"""A forked process that makes batches, and hands them over in shared memory."""

import gc
import logging
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from logging.handlers import QueueHandler
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.slots import Batch, Lent, batch_in, laid_out, mapped, new_memory
from dedloc_kit.learning.data.sources.losses import Loss, Losses

Make = Callable[..., Iterator[Batch]]
Warn = Callable[[str], None]

_GROWTH = 1.25
"""By at least this factor a slot grows that is too small."""
_WATCH_SECONDS = 0.5
"""Between two looks whether the parent process is alive."""
_OURS = "dedloc_kit"
"""The logger whose records go to the parent process."""


class LoaderDied(RuntimeError):
    """The process that makes the batches has ended without being asked to."""


class BatchProcess:
    """The parent's end of the worker process; see `Loader` for what each method promises."""

    def __init__(self, make: Make, warn: Warn, ahead: int) -> None:
        context = get_context("fork")
        self._pipe, far = context.Pipe()
        self._process = context.Process(
            target=_live, args=(make, far, self._pipe, ahead, os.getpid()), name="batches", daemon=True
        )
        with _quiet_tokenizers():
            self._process.start()
        far.close()
        self._warn = warn
        self._slots: dict[int, Tensor] = {}
        self._losses: list[Losses] = []
        self._generation, self._begun, self._over, self._closed = 0, 0, False, False
        self._taking, self._sending = threading.Lock(), threading.Lock()

    def start(self, arguments: tuple[Any, ...]) -> None:
        with self._taking:
            self._generation, self._over = self._generation + 1, False
            self._send(("start", self._generation, arguments))
            while self._begun < self._generation and not self._closed:
                self._heard(self._receive())

    def take(self) -> Lent:
        with self._taking:
            while not (self._over or self._closed):
                if (lent := self._heard(self._receive())) is not None:
                    return lent
        raise StopIteration

    def kept(self, batch: Batch) -> Batch:
        # A GPU takes it from pinned memory, into which it would have to be copied again otherwise.
        pinned = torch.cuda.is_initialized()
        return {name: values.pin_memory() if pinned else values.clone() for name, values in batch.items()}

    def close(self) -> None:
        self._closed = True
        self._process.kill()  # it holds nothing that it would have to save
        self._process.join()
        with self._taking:
            self._pipe.close()
            self._slots.clear()

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            pass
        if self._closed:
            return ("end", self._generation)
        self._process.join()
        code = self._process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        raise LoaderDied(f"the process that makes batches {how}; probably memory was short: close other programs")

    def _heard(self, message: Any) -> Lent | None:
        match message:
            case "slot", number, size:
                handle = recv_handle(self._pipe)
                self._slots[number] = mapped(handle, size)
            case "batch", generation, number, parts, counts:
                self._count(counts)
                give_back = _Once(lambda: self._send(("free", number)))
                if generation == self._generation:
                    return Lent(batch_in(self._slots[number], parts), give_back)
                give_back()
            case "begun", generation:
                self._begun = generation
            case "warning", text, number, counts:
                self._count(counts)
                self._warn(text if number is None else Loss.of(text, self._losses[number]))
            case "log", record:
                logging.getLogger(record.name).handle(record)
            case "end", generation:
                self._over = generation == self._generation
            case "error", generation, text, expected, counts:
                self._count(counts)
                if generation == self._generation:
                    self._over = True
                    raise UserError(text) if expected else RuntimeError(text)
        return None

    def _count(self, counts: "list[_Count]") -> None:
        for count in counts:
            if count.number == len(self._losses):
                self._losses.append(Losses(count.dataset, count.files, self._warn))
            losses = self._losses[count.number]
            losses.unreadable = {path: UserError(reason) for path, reason in count.unreadable.items()}
            losses.bad_rows = count.bad_rows

    def _send(self, message: Any) -> None:
        with self._sending, suppress(OSError):  # it is dead, which `take` tells
            self._pipe.send(message)


class _Once:
    """Calls a function the first time that it is called itself."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._calls = [call]

    def __call__(self) -> None:
        with suppress(IndexError):
            self._calls.pop()()


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


class _Count(NamedTuple):
    """How much of a source's data cannot be used."""

    number: int
    dataset: str
    files: int
    unreadable: dict[str, str]
    bad_rows: int


class _Parent:
    """The worker's end of the pipe to its parent process."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self._sending = threading.Lock()
        self._losses: list[Losses] = []
        self._told: list[tuple[int, int]] = []

    def send(self, *message: Any, handle: int | None = None) -> None:
        with self._sending:
            self.pipe.send(message)
            if handle is not None:
                send_handle(self.pipe, handle, None)

    def warn(self, text: str) -> None:
        number = None
        if isinstance(text, Loss):
            if text.losses not in self._losses:
                self._losses.append(text.losses)
                self._told.append((-1, -1))
            number = self._losses.index(text.losses)
        self.send("warning", str(text), number, self.counts())

    def counts(self) -> list[_Count]:
        """What has changed since it was asked for last."""
        found = []
        for number, losses in enumerate(list(self._losses)):
            unreadable = dict(losses.unreadable)
            state = len(unreadable), losses.bad_rows
            if state != self._told[number]:
                self._told[number] = state
                reasons = {path: str(error) for path, error in unreadable.items()}
                found.append(_Count(number, losses.dataset, losses.files, reasons, state[1]))
        return found


class _PipeHandler(QueueHandler):
    """Sends log records to the parent process."""

    def __init__(self, parent: _Parent) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self._parent = parent

    def enqueue(self, record: logging.LogRecord) -> None:
        self._parent.send("log", record)


def _live(make: Make, pipe: Connection, far: Connection, ahead: int, parent: int) -> None:
    """The worker's main function, until the parent kills it or is gone."""
    far.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()  # what is shared stays shared
    with suppress(OSError):
        os.nice(5)  # the thread that feeds a GPU comes first
    # Not in the main thread: torch's thread pool of before the fork is of no use there.
    thread = threading.Thread(target=_serve, args=(make, pipe, ahead), name="batches", daemon=True)
    thread.start()
    while thread.is_alive() and os.getppid() == parent:
        thread.join(_WATCH_SECONDS)
    os._exit(0)


def _serve(make: Make, pipe: Connection, ahead: int) -> None:
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parent = _Parent(pipe)
    ours = logging.getLogger(_OURS)
    ours.handlers, ours.propagate = [_PipeHandler(parent)], False
    with suppress(EOFError, OSError):  # the parent process is gone
        _make(make, parent, ahead)


def _make(make: Make, parent: _Parent, ahead: int) -> None:
    free, slots = deque(range(ahead)), dict[int, Tensor]()
    batches: Iterator[Batch] | None = None
    generation = 0
    while True:
        while batches is None or not free or parent.pipe.poll():
            match parent.pipe.recv():
                case "free", number:
                    free.append(number)
                case "start", generation, arguments:
                    batches = _begun(make, parent, generation, arguments)
        try:
            batch = next(batches)
        except StopIteration:
            parent.send("end", generation)
            batches = None
        except BaseException as error:
            _tell_error(parent, generation, error)
            batches = None
        else:
            number = free.popleft()
            parts, size = laid_out(batch)
            before = len(slots[number]) if number in slots else 0
            if size > before or not before:
                slots[number] = _new_slot(parent, number, max(size, int(_GROWTH * before)))
            for name, place in batch_in(slots[number], parts).items():
                place.copy_(batch[name])
            parent.send("batch", generation, number, parts, parent.counts())


def _begun(make: Make, parent: _Parent, generation: int, arguments: tuple[Any, ...]) -> Iterator[Batch] | None:
    try:
        batches = iter(make(parent.warn, *arguments))
    except BaseException as error:
        _tell_error(parent, generation, error)
        return None
    parent.send("begun", generation)
    return batches


def _new_slot(parent: _Parent, number: int, size: int) -> Tensor:
    handle, memory = new_memory(size)
    try:
        parent.send("slot", number, len(memory), handle=handle)
    finally:
        os.close(handle)
    return memory


def _tell_error(parent: _Parent, generation: int, error: BaseException) -> None:
    """As a text: not every error can be sent."""
    expected = isinstance(error, UserError)
    if not expected:
        logging.getLogger(__name__).error("making batches failed", exc_info=error)
    text = str(error) if expected else f"{type(error).__name__}: {error}"
    parent.send("error", generation, text, expected, parent.counts())
