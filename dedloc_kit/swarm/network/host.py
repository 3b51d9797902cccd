"""A process beside the training in which objects live that answer peers, and calls into it."""

import asyncio
import ctypes
import itertools
import pickle
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from inspect import isawaitable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from hivemind.utils.asyncio import switch_to_uvloop

STOP_SECONDS, CANCEL_SECONDS = 5.0, 2.0
"""Until the process is killed that does not end; for what goes on in it when it is told to end."""
_START = 0

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
_forked = get_context("fork")
Make = Callable[["Owner"], AbstractAsyncContextManager[Sequence[object]]]


class Line:
    """A host's end of the pipe to its owner. It has threads of its own: a pipe takes 64 KiB and then waits until the
    other side reads, and what it brings may come in pieces, but the event loop must wait for neither."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sending = ThreadPoolExecutor(max_workers=1, thread_name_prefix="line")

    def send(self, *message: Any) -> None:
        """Does not wait until it is sent."""
        with suppress(RuntimeError):  # it is closed: a call that was under way at the end is cancelled after that
            self._sending.submit(self._send, message)

    def listen(self, heard: Callable[[Any], None]) -> None:
        """Call this in the event loop for every message, and at the end for none."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            message: Any = True
            while message is not None:
                try:
                    message = self._pipe.recv()
                except (EOFError, OSError):
                    message = None  # nobody is there any more
                loop.call_soon_threadsafe(heard, message)

        threading.Thread(target=read, name="line", daemon=True).start()

    def close(self) -> None:
        self._sending.shutdown()

    def _send(self, message: tuple[Any, ...]) -> None:
        with suppress(OSError):  # nobody is there any more
            try:
                self._pipe.send(message)
            except (TypeError, AttributeError, pickle.PicklingError) as error:
                self._pipe.send(("done", message[1], False, RuntimeError(repr(error))))


class Owner:
    """The process that started a host, as the objects in that see it."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}

    async def query(self, question: Any) -> Any:
        """What the `answer` that the host was made with gives for this."""
        number = next(self._numbers)
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._line.send("ask", number, question)
            return await future
        finally:
            del self._asked[number]

    def told(self, number: int, right: bool, value: Any) -> None:
        future = self._asked.get(number)
        if future is not None and not future.done():
            (future.set_result if right else future.set_exception)(value)


class Host:
    """Starts the process and waits until its objects are made; it ends with the process that started it.

    Call it in a process's main thread: it forks. Whatever goes wrong in `make` is raised here.

    :param make: entered in the new process; gives the objects that live there
    :param answer: answers what they ask of their owner, in a thread of this process
    """

    def __init__(self, make: Make, answer: Callable[[Any], Any] | None = None) -> None:
        self._answer = answer
        self._numbers = itertools.count(_START + 1)
        self._calls: dict[int, Future[Any]] = {_START: Future()}
        started = self._calls[_START]
        self._lock = threading.Lock()
        self._pipe, far = _forked.Pipe()
        _give_back_freed()
        self._process = _forked.Process(target=_live, args=(make, far, self._pipe), daemon=True)
        self._process.start()
        far.close()
        self._answering = ThreadPoolExecutor(max_workers=1, thread_name_prefix="host")
        threading.Thread(target=self._read, name="host", daemon=True).start()
        started.result()

    @overload
    def call(
        self, method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]], /, *arguments: P.args, **named: P.kwargs
    ) -> Future[T]: ...

    @overload
    def call(self, method: Callable[Concatenate[S, P], T], /, *arguments: P.args, **named: P.kwargs) -> Future[T]: ...

    def call(self, method: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Call a method of the object of its class.

        The future gets what it returns or raises; RuntimeError if the process has died.
        """
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._calls[number] = future
            try:
                self._pipe.send(("call", number, method, arguments, named))
            except OSError:
                self._calls.pop(number, None)
                future.set_exception(_died())
        return future

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def stop(self) -> None:
        """Leave `make`, and end the process. A second call does nothing."""
        with self._lock, suppress(OSError):
            self._pipe.send(None)
        self._process.join(STOP_SECONDS)
        if self._process.is_alive():
            self._process.kill()
        self._answering.shutdown(wait=False)

    def _read(self) -> None:
        while True:
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                break
            if message[0] == "ask":
                self._answering.submit(self._reply, *message[1:])
            else:
                _, number, right, value = message
                future = self._calls.pop(number)
                if future.set_running_or_notify_cancel():
                    (future.set_result if right else future.set_exception)(value)
                del value
            del message  # what it holds may be large, and the next may be long in coming
        with self._lock:
            for future in self._calls.values():
                if future.set_running_or_notify_cancel():
                    future.set_exception(_died())
            self._calls.clear()

    def _reply(self, number: int, question: Any) -> None:
        assert self._answer is not None
        try:
            message = ("answer", number, True, self._answer(question))
        except Exception as error:
            message = ("answer", number, False, error)
        with self._lock, suppress(OSError):
            self._pipe.send(message)


def _give_back_freed() -> None:
    """Of pages that hold nothing any more, but may again, a forked process would keep a copy (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _died() -> RuntimeError:
    return RuntimeError("a background process of the swarm has died")


def _live(make: Make, pipe: Connection, owners_end: Connection) -> None:
    owners_end.close()  # so that the end of the other process is seen here
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run() -> None:
        loop = switch_to_uvloop()
        loop.run_until_complete(_serve(make, pipe))
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:  # else asyncio complains of each
            loop.run_until_complete(asyncio.wait(left, timeout=CANCEL_SECONDS))
        loop.close()

    # Not in the main thread: torch's thread pool of before the fork is of no use there.
    thread = threading.Thread(target=run, name="host")
    thread.start()
    thread.join()


async def _serve(make: Make, pipe: Connection) -> None:
    line = Line(pipe)
    owner = Owner(line)
    async with AsyncExitStack() as stack:
        stack.callback(line.close)
        try:
            living = await stack.enter_async_context(make(owner))
        except Exception as error:
            line.send("done", _START, False, error)
            return
        await _take_calls(owner, living, line)


async def _take_calls(owner: Owner, living: Sequence[object], line: Line) -> None:
    calls: set[asyncio.Task[None]] = set()  # asyncio's own references are weak
    over = asyncio.Event()

    def take(message: Any) -> None:
        if message is None:
            over.set()
        elif message[0] == "answer":
            owner.told(*message[1:])
        else:
            task = asyncio.create_task(_run(living, line, *message[1:]))
            calls.add(task)
            task.add_done_callback(calls.discard)

    line.listen(take)
    line.send("done", _START, True, None)
    await over.wait()
    for task in calls:
        task.cancel()


async def _run(
    living: Sequence[object],
    line: Line,
    number: int,
    method: Callable[..., Any],
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> None:
    try:
        kind = method.__qualname__.partition(".")[0]
        one = next(one for one in living if kind in (parent.__qualname__ for parent in type(one).__mro__))
        result = method(one, *arguments, **named)
        line.send("done", number, True, await result if isawaitable(result) else result)
    except asyncio.CancelledError:
        line.send("done", number, False, RuntimeError("the call was cancelled"))
    except Exception as error:
        line.send("done", number, False, error)
