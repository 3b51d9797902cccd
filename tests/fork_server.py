"""Processes of `python -m MODULE` that need not import torch and hivemind: each is forked from one that has.

That takes four seconds of a core, and the tests start hundreds of them. What is forked is a process in a session of its
own like any other: only what reads the environment as it is imported, or before Python begins, has that of the server.
"""

import gc
import json
import multiprocessing
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from dedloc_kit import worker
from dedloc_kit.machine.isolation import isolated
from dedloc_kit.worker import KEPT_MEMORY, Role

IMPORTED = (
    *("dedloc_kit.roles.volunteer", "dedloc_kit.coordinator.coordinator", "dedloc_kit.roles.collector"),
    *("dedloc_kit.cli.main", "dedloc_kit.organizer.launch", "torch._dynamo"),
)
"""What most of them need (torch's compiler is imported where a model of stages or experts is outlined); nothing of the
Hub, whose place is in the environment."""
OF_SERVED_MODELS = ("dedloc_kit.roles.server", "dedloc_kit.roles.user", "transformers.models.llama.modeling_llama")
"""What the roles `server` and `user` need besides: they are forked from a process of their own, for with transformers
comes the Hub."""
_CHECKOUT = str(Path(__file__).parents[1])
_MOST_BYTES = 2**17
"""Of what is asked for: the environment above all."""
_HANDLES = 4
"""That one may keep open."""
_FREE = 500
"""From this number on no file is open."""
_asking = threading.Lock()
_way: socket.socket | None = None
"""To the server that has forked this process: what it starts is forked there too, and imports nothing either."""


class Forked:
    """As `subprocess.Popen` of `python -m` or `-c`, as far as a starter of ours uses it; in a session of its own."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], errors: IO[bytes], handles: Sequence[int] = ()
    ) -> None:
        """
        :param command: a module and its arguments, or `-c` and code
        :param handles: of files that are open in it, with the same numbers
        """
        asked = {
            "command": command,
            "environment": dict(environment),
            "folder": os.getcwd(),
            "handles": list(handles),
        }
        (stdin, to), (from_, stdout), (told, tell) = os.pipe(), os.pipe(), os.pipe()
        try:
            serves = list(command) in (["dedloc_kit.worker", "server"], ["dedloc_kit.worker", "user"])
            with _asking:
                way = _way or _server(serves)[1]
                given = [stdin, stdout, errors.fileno(), tell, way.fileno(), *handles]
                socket.send_fds(way, [json.dumps(asked).encode()], given)
        finally:
            for end in (stdin, stdout, tell):
                os.close(end)
        self.stdin, self.stdout = os.fdopen(to, "wb"), os.fdopen(from_, "rb")
        self.returncode: int | None = None
        self._told = os.fdopen(told, "rb")
        self.pid = int(self._told.readline())
        self._ended = threading.Event()
        threading.Thread(target=self._await_end, daemon=True).start()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def _await_end(self) -> None:
        with self._told:
            self.returncode = int(self._told.readline() or -signal.SIGKILL)
        self._ended.set()


def worker_process(role: Role, environment: Mapping[str, str], log: IO[bytes], handles: Sequence[int]) -> Forked:
    """Instead of the one that `dedloc_kit.worker` starts."""
    return Forked(["dedloc_kit.worker", role], isolated(environment), log, handles)


def said_by(code: str, returncode: int = 0, **environment: str) -> str:
    """What Python code prints in a process of its own; what torch looks up when it first computes is its own too."""
    with tempfile.TemporaryFile() as errors:
        process = Forked(["-c", code], {**os.environ, **environment}, errors)
        process.stdin.close()
        said, ended = process.stdout.read().decode(), process.wait(250.0)
        errors.seek(0)
        assert ended == returncode, errors.read().decode()
    return said


@cache
def _server(serves: bool) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """A server of this process, and the way to it; it ends when nobody holds that any more: not this process, and
    nothing that it has forked.

    :param serves: has it imported what those need that serve a model?
    """
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.fork_server", *(OF_SERVED_MODELS if serves else ())],
        stdin=its.fileno(),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env={**KEPT_MEMORY, **isolated({"PYTHONPATH": _CHECKOUT})},
    )
    its.close()
    return server, ours


# What follows runs in the server, and in what it forks.


def _serve() -> dict[str, Any]:
    """Fork for everyone who asks; returns in the child, with what was asked for."""
    control, ends = socket.socket(fileno=os.dup(0)), dict[int, tuple[int, int]]()
    with selectors.DefaultSelector() as selector, control:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not control:
                    pid, tell = ends.pop(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    with suppress(BrokenPipeError):  # whoever started it has ended before
                        _tell(tell, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    os.close(tell)
                    continue
                asked, given, _, _ = socket.recv_fds(control, _MOST_BYTES, 5 + _HANDLES)
                if not asked:
                    os._exit(0)  # whoever started us is gone, and so is all that we forked
                pid = os.fork()
                standard, tell, kept = given[:3], given[3], given[4:]
                if not pid:
                    os.setsid()
                    for number, end in enumerate(standard):
                        os.dup2(end, number)
                    for number, end in enumerate(kept, _FREE):
                        os.dup2(end, number, inheritable=False)
                    _tell(tell, os.getpid())
                    for left in (*given, *ends, *(tell for _, tell in ends.values())):
                        os.close(left)
                    return dict(json.loads(asked))
                for end in (*standard, *kept):
                    os.close(end)
                ends[watched := os.pidfd_open(pid)] = pid, tell
                selector.register(watched, selectors.EVENT_READ)


def _tell(tell: int, number: int) -> None:
    os.write(tell, f"{number}\n".encode())


def _renew_locks() -> None:
    """hivemind's would be the same ones in all that is forked, and whoever is killed while it holds one stops them."""
    from hivemind.utils import MPFuture
    from hivemind.utils.asyncio import _AsyncContextWrapper

    MPFuture.reset_backend()
    _AsyncContextWrapper.EXECUTOR_LOCK = multiprocessing.Lock()


def main() -> None:
    from tests import fork_server  # by the name under which what is forked may import it

    gc.disable()
    for module in (*IMPORTED, *sys.argv[1:]):
        import_module(module)
    gc.freeze()
    gc.enable()
    asked = _serve()
    fork_server._way = socket.socket(fileno=_FREE)
    worker._start = fork_server.worker_process  # type: ignore[assignment]
    for moved, number in enumerate(asked["handles"], _FREE + 1):
        os.dup2(moved, number)
        os.close(moved)
    _renew_locks()
    # A shell lets what it starts in the background ignore interrupts, and so all that is started by that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None  # it was looked up in the environment of the server
    os.chdir(asked["folder"])
    more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder for folder in more if folder and folder not in sys.path]
    module, *arguments = asked["command"]
    sys.argv = [module, *arguments]
    if module == "-c":
        exec(arguments[0], {"__name__": "__main__"})
        return
    sys.modules.pop(module, None)  # as `__main__` it begins anew
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
