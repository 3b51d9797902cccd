"""Runs a role in a process of its own, reads its events, and makes sure that nothing of it is left behind.

A role is a child process in its own session: an interrupt in a notebook or terminal does not reach it, a crash can
be seen and the memory is free afterwards. Its job comes as one JSON line on standard input, which stays open: when
it closes, whoever started the worker is gone and the worker leaves too. Its events go out on standard output.
hivemind's own processes outlive a killed parent, so a small guardian in the same session kills what is left.

Importing torch, hivemind and transformers takes seconds: a worker does that while its starter still finds out what
the job is.
"""

import contextlib
import gc
import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Literal, cast

from dedloc_kit.config.machine import CoordinatorConfig, JoinOptions, PeerConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import NotWelcome, UserError
from dedloc_kit.events import AnyEvent, Failed, State, Warned, parse_event
from dedloc_kit.fetching import tell_downloads
from dedloc_kit.machine.account import CODE
from dedloc_kit.machine.isolation import isolated
from dedloc_kit.machine.logs import Warnings
from dedloc_kit.machine.preflight import check_surroundings
from dedloc_kit.machine.private import make_private, open_private
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.serving.config import ServerConfig

Role = Literal["coordinator", "volunteer", "collector", "rehearsal", "reach", "server", "user"]
NOT_WELCOME = 3
"""The exit code of a worker that must not be started again."""
LEAVE_SECONDS = 30.0
"""How long a role may take to leave before it is killed; a last push to the Hub takes its own time."""
PARENT_SECONDS = 1.0
"""How often a worker looks whether its starter is still there."""
KEPT_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
"""Environment in which glibc keeps freed memory. Else the activations of each microbatch go back to the kernel and are
faulted in anew, which costs a CPU a few per cent of its time (benchmarks/README.md)."""


_RUNNING = set["Worker"]()


def kill_all() -> None:
    """Kill every worker that this process has started, as `Worker.kill` does."""
    for worker in tuple(_RUNNING):
        worker.kill()


class Worker:
    """A role running in its own process, seen from the process that started it."""

    def __init__(
        self,
        role: Role,
        job: Mapping[str, Any] | None = None,
        *,
        folder: Path,
        on_event: Callable[[AnyEvent], None],
        environment: Mapping[str, str] | None = None,
        handles: Sequence[int] = (),
    ) -> None:
        """Start the process. `on_event` is called from a thread of its own, in the order of the events.

        Without a job it gets ready and waits for `begin`. Raises UserError if the folder cannot be written or
        something else in the surroundings would end it.

        :param handles: of this process's files that stay open in it
        """
        check_surroundings()
        self.failure: str | None = None
        """The one line that explains why the worker could not go on."""
        self._on_event = on_event
        self._stopping = False
        self.log = folder / "logs" / f"{role}-{time.strftime('%Y%m%d-%H%M%S')}.log"
        try:
            make_private(folder)
            make_private(self.log.parent)
            log = open_private(self.log, "ab")
        except OSError as error:
            raise UserError(f"{folder} cannot be written ({error.strerror}); choose another with --folder") from None
        with log:
            self._process = _start(role, {"TOKENIZERS_PARALLELISM": "false", **(environment or {})}, log, handles)
        _RUNNING.add(self)
        if job is not None:
            self.begin(job)
        self._reader = threading.Thread(target=self._read, name=f"{role} events", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def begin(self, job: Mapping[str, Any]) -> None:
        """Give it its job; once. Its `environment` holds variables that are secret, such as a token."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # it ended already, or was asked to leave
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()

    def leave(self) -> None:
        """Ask the role to leave; returns at once."""
        self._stopping = True
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it may have just ended by itself
            self._process.stdin.close()

    def stop(self, timeout: float = LEAVE_SECONDS + 5.0) -> int:
        """Ask the role to leave, wait, and kill it if it does not; returns its exit code."""
        self.leave()
        try:
            return self.wait(timeout)
        except TimeoutError:
            self.kill()
            return self.wait(10.0)

    def kill(self) -> None:
        """End the role and all its processes now, as a power cut would."""
        with contextlib.suppress(ProcessLookupError):  # nothing may be left of it
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the role's end and its last event, for ever if need be; raises TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the worker (process {self.pid}) is still running") from None
        self._reader.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return code

    def _note(self) -> None:
        """Let the log say as well why the worker could not go on; one that was killed cannot do so itself."""
        with contextlib.suppress(OSError), open_private(self.log, "a") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self.failure}\n")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                event = parse_event(line)
            except ValueError:
                continue  # a half-written line of a killed process
            if isinstance(event, Failed):
                self.failure = event.text
                self._note()
            self._on_event(event)
        code = self._process.wait()
        _RUNNING.discard(self)
        if code != 0 and self.failure is None and not self._stopping:
            self.failure = f"the worker ended unexpectedly ({_cause(code)}); its log is {self.log}"
            self._note()
            self._on_event(Failed(text=self.failure))


def _start(
    role: Role, environment: Mapping[str, str], log: IO[bytes], handles: Sequence[int]
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "dedloc_kit.worker", role],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
        pass_fds=handles,
        env={**KEPT_MEMORY, **isolated(environment)},
    )


def coordinator_job(run: RunConfig, peer: PeerConfig) -> dict[str, Any]:
    """What a coordinator, or a rehearsal, needs to know, as plain values."""
    return {"run": run.model_dump(mode="json"), "peer": peer.model_dump(mode="json")}


def volunteer_job(invitation: Invitation, peer: PeerConfig, stopped: str = "") -> dict[str, Any]:
    """What a volunteer needs to know, as plain values; `stopped` says why the training ended, if it starts again."""
    return {
        "invitation": invitation.model_dump(mode="json"),
        "peer": peer.model_dump(mode="json"),
        "stopped": stopped,
    }


def collector_job(invitation: Invitation, peer: PeerConfig, repository: str | None, code: str) -> dict[str, Any]:
    """What a collector needs to know, as plain values; `repository` is the run's on the Hub, if it is known."""
    return {**volunteer_job(invitation, peer), "repository": repository, "environment": {CODE: code} if code else {}}


def reach_job(run_id: str, peers: Sequence[str], folder: Path, port: int) -> dict[str, Any]:
    """Whom of a run to ask whether they reach this machine at this port (0: any), as plain values."""
    peer = PeerConfig(folder=folder, swarm_port=port)
    return {"run_id": run_id, "peers": list(peers), "peer": peer.model_dump(mode="json")}


def beginning_job(begin: Mapping[str, str], peer: ServerConfig) -> dict[str, Any]:
    """What the server needs to know that begins a serving swarm, as plain values; see `swarm.serving.beginning`."""
    return {"begin": dict(begin), "peer": peer.model_dump(mode="json")}


def server_job(invitation: Invitation, peer: ServerConfig) -> dict[str, Any]:
    """What a server needs to know that joins one."""
    return {"invitation": invitation.model_dump(mode="json"), "peer": peer.model_dump(mode="json")}


def user_job(invitation: Invitation, peer: PeerConfig, handle: int, code: str, activations: str) -> dict[str, Any]:
    """What a user's network side needs to know: also which file is the pipe to the user's process."""
    return {
        **volunteer_job(invitation, peer),
        "handle": handle,
        "activations": activations,
        "environment": {CODE: code} if code else {},
    }


def _cause(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


# What follows runs in the worker process.


def main() -> int:
    """The worker process: read the job, play the role, tell what happens."""
    role, *again = sys.argv[1:]
    if again:
        starter, job = map(int, again)
        return _play(cast(Role, role), starter, os.fdopen(job, "rb", buffering=0))
    starter = os.getppid()
    _start_guardian()
    return _play(cast(Role, role), starter, None)


def _play_again(role: Role, starter: int, job: Mapping[str, Any], commands: IO[bytes], events: IO[str]) -> None:
    """Begin anew with another job in this process, for whoever started it and for the guardian the same one.

    A process that has computed must not fork: torch's threads would be missing in what it forks, which then waits for
    them for ever (seen with two). And nothing of what it held is left.
    """
    with tempfile.TemporaryFile() as file:  # no pipe holds any job, and arguments can be seen by others
        file.write(json.dumps(job).encode())
        file.seek(0)
        os.set_inheritable(file.fileno(), True)
        os.dup2(commands.fileno(), 0)
        os.dup2(events.fileno(), 1)
        logging.shutdown()
        command = [sys.executable, "-m", "dedloc_kit.worker", role, str(starter), str(file.fileno())]
        os.execve(sys.executable, command, isolated())


def _start_guardian() -> None:
    """Fork a process that kills what is left of the session once this one has ended, in whatever way.

    Fork first of all: then it stays small.
    """
    worker = os.getpid()
    if os.fork():
        return
    # It must hold neither end of the pipes, or nobody would see them close.
    for stream in (0, 1):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while os.getppid() == worker:
        time.sleep(0.2)
    os.killpg(0, signal.SIGKILL)


def _play(role: Role, starter: int, again: IO[bytes] | None) -> int:
    """:param again: holds its job if this process begins anew"""
    # Only events may go to standard output: everything else that prints goes to the log. Standard input is ours too:
    # forked processes close sys.stdin, which hangs if a thread was reading it when they were forked.
    events = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    commands = os.fdopen(os.dup(0), "rb", buffering=0)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    writing = threading.Lock()

    def emit(event: AnyEvent) -> None:
        with writing:
            try:
                events.write(event.model_dump_json() + "\n")
            except BrokenPipeError:
                stop.set()  # nobody listens any more

    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    Warnings(lambda text: emit(Warned(text=text)))
    tell_downloads(lambda line, share: emit(State(text=f"downloading {line}", share=share)))
    try:
        if again is None:
            emit(State(text="getting ready"))
        gc.disable()  # nothing that is imported becomes garbage, and looking for it takes a tenth of the time
        play = _role(role)
        if again is None:
            line = _job(commands, starter)
        else:
            with again:
                line = again.read()
        gc.enable()
        if not line:
            return 0  # whoever started us has changed its mind, or is gone
        job = json.loads(line)
        os.environ.update(job.get("environment", {}))
        peer = _CONFIGURATIONS.get(role, JoinOptions).model_validate_json(json.dumps(job["peer"]))
        patience = LEAVE_SECONDS + peer.last_push_seconds
        threading.Thread(target=_leave_with_parent, args=(commands, starter, stop, patience), daemon=True).start()
        if (more := play(job, peer, emit, stop)) is not None:
            _play_again(role, starter, {**job, **more}, commands, events)
        return 0
    except UserError as error:
        emit(Failed(text=str(error)))
        return NOT_WELCOME if isinstance(error, NotWelcome) else 2
    except Exception as error:
        with contextlib.suppress(OSError):  # the disk may be full
            traceback.print_exc()
        emit(Failed(text=f"an unexpected error ended this worker: {type(error).__name__}: {error}"[:500]))
        return 1


_CONFIGURATIONS: dict[Role, type[PeerConfig]] = {"coordinator": CoordinatorConfig, "server": ServerConfig}


_Emit = Callable[[AnyEvent], None]
_Job = dict[str, Any]


def _role(role: Role) -> Callable[[_Job, PeerConfig, _Emit, threading.Event], _Job | None]:
    """Import what the role needs; takes seconds. What it returns changes its job, with which it is to begin anew."""
    if role == "coordinator":
        from dedloc_kit.coordinator.coordinator import coordinator

        def coordinate(
            job: dict[str, Any], peer: PeerConfig, emit: Callable[[AnyEvent], None], stop: threading.Event
        ) -> None:
            assert isinstance(peer, CoordinatorConfig)
            coordinator(RunConfig.model_validate_json(json.dumps(job["run"])), peer, emit, stop)

        return coordinate

    if role == "collector":
        from dedloc_kit.roles.collector import collector

        return lambda job, peer, emit, stop: collector(
            Invitation.model_validate_json(json.dumps(job["invitation"])), peer, job["repository"], emit, stop
        )

    if role == "rehearsal":
        from dedloc_kit.roles.rehearsal import rehearse

        def try_out(job: _Job, peer: PeerConfig, emit: _Emit, stop: threading.Event) -> None:
            assert isinstance(peer, JoinOptions)
            rehearse(RunConfig.model_validate_json(json.dumps(job["run"])), peer, emit, stop)

        return try_out

    if role == "reach":
        from dedloc_kit.swarm.network.bootstrap import find_reach

        return lambda job, peer, emit, stop: emit(find_reach(peer, job["run_id"], job["peers"]))

    if role == "server":
        from dedloc_kit.roles.server import server
        from dedloc_kit.swarm.serving.beginning import Beginning

        def serve(
            job: dict[str, Any], peer: PeerConfig, emit: Callable[[AnyEvent], None], stop: threading.Event
        ) -> None:
            assert isinstance(peer, ServerConfig)
            if "begin" in job:
                server(Beginning.parse(job["begin"]), peer, emit, stop)
            else:
                server(Invitation.model_validate_json(json.dumps(job["invitation"])), peer, emit, stop)

        return serve

    if role == "user":
        from dedloc_kit.pipe import inherited
        from dedloc_kit.roles.user import user

        return lambda job, peer, emit, stop: user(
            Invitation.model_validate_json(json.dumps(job["invitation"])),
            *(peer, inherited(job["handle"]), job["activations"], emit, stop),
        )

    from dedloc_kit.roles.volunteer import volunteer
    from dedloc_kit.swarm.pipeline.moving import Mover

    def train(job: _Job, peer: PeerConfig, emit: _Emit, stop: threading.Event) -> _Job | None:
        assert isinstance(peer, JoinOptions)
        invitation = Invitation.model_validate_json(json.dumps(job["invitation"]))
        mover = Mover.model_validate(job["mover"]) if "mover" in job else None
        moves = volunteer(invitation, peer, emit, stop, job["stopped"], mover)
        return None if moves is None else {"mover": moves.model_dump(), "stopped": ""}

    return train


def _job(commands: IO[bytes], starter: int) -> bytes:
    """The job's line; empty if none comes any more. Until it comes, import what most tasks will need."""
    for module in ("transformers.modeling_utils", "datasets"):
        if not select.select([commands], [], [], 0)[0]:
            import_module(module)
    while os.getppid() == starter:
        if select.select([commands], [], [], PARENT_SECONDS)[0]:
            return commands.readline()
    return b""


def _leave_with_parent(commands: IO[bytes], starter: int, stop: threading.Event, patience: float) -> None:
    """Whoever started us closes our standard input to make us leave, also by dying.

    A copy of its end may live on in a process that a notebook has forked: so look for the parent as well.
    """
    while os.getppid() == starter:
        ready, _, _ = select.select([commands], [], [], PARENT_SECONDS)
        if ready and not commands.read(4096):
            break
    stop.set()
    time.sleep(patience)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    code = main()
    # All is saved and closed; an evaluation that still goes on, minutes on a slow machine, must not hold up the end.
    logging.shutdown()
    os._exit(code)
