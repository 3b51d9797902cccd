"""Peers of a benchmark: each a process of its own on a host of the network, heard through its events."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar

from dedloc_kit.config.machine import CoordinatorConfig, JoinOptions, PeerConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.worker import KEPT_MEMORY, coordinator_job, volunteer_job

C = TypeVar("C", bound=PeerConfig)
_CHECKOUT = Path(__file__).parents[2]
_TICKS = os.sysconf("SC_CLK_TCK")

Event = dict[str, Any]


class Peer:
    """A role in its own process and session; closing the context kills what is left of it.

    :param module: what `python -m` runs, with its arguments; it reads its job from standard input as one JSON line,
        leaves when that closes, and writes its events to standard output as JSON lines
    :param prefix: what comes before the command, such as `network.run_in(host)`
    """

    def __init__(
        self,
        module: str,
        job: Mapping[str, Any],
        *,
        name: str,
        folder: Path,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        self.events: list[Event] = []
        """Each as the peer sent it, with the monotonic time `at` which it came."""
        self._news = threading.Condition()
        self._ended = False
        folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", *module.split()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={
                    **KEPT_MEMORY,  # as ours start, for all systems alike
                    **os.environ,
                    "PYTHONPATH": str(_CHECKOUT),
                    "OMP_NUM_THREADS": "1",  # every peer has the two cores' fair share, not all of them
                    "TOKENIZERS_PARALLELISM": "false",
                    **(environment or {}),
                },
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.send(job)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def send(self, line: Mapping[str, Any]) -> None:
        """A further line of standard input, for modules that take some."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # if it has ended already, its log says why
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()

    def leave(self) -> None:
        """Ask it to leave; returns at once. `wait` says when it has."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def wait(self, deadline: float = 60.0) -> int:
        """Wait for its end; returns its exit code and raises subprocess.TimeoutExpired."""
        return self._process.wait(deadline)

    def kill(self) -> None:
        """End all of its processes now, as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait_for(
        self, kind: str, that: Callable[[Event], bool] = lambda _: True, deadline: float = 120.0, number: int = 0
    ) -> Event:
        """An event of this kind for which `that` holds, past or to come: the first, or the one after `number` of them.

        Raises UserError if it does not come.
        """

        def found() -> Event | None:
            matching = (event for event in self.events if event["event"] == kind and that(event))
            return next(islice(matching, number, None), None)

        with self._news:
            self._news.wait_for(lambda: found() is not None or self._ended, timeout=deadline)
            event = found()
        if event is None:
            why = self._failure() or ("it ended" if self._ended else f"nothing came in {deadline:.0f} s")
            raise UserError(f"{self.name} did not get to '{kind}' ({why}); its log is {self.log}")
        return event

    def wait_for_step(self, step: int, deadline: float = 120.0) -> Event:
        """The event of the first global step from this one on."""
        return self.wait_for("step", lambda event: step_of(event) >= step, deadline)

    def steps(self) -> list[Event]:
        """The events of all global steps so far."""
        with self._news:
            return [event for event in self.events if event["event"] == "step"]

    def cpu_seconds(self) -> float:
        """CPU time of all living processes of this peer so far."""
        return sum(_cpu_seconds(pid, session=self.pid) for pid in _processes())

    def _failure(self) -> str | None:
        return next((event["text"] for event in self.events if event["event"] == "failed"), None)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # half a line of a killed process
            with self._news:
                self.events.append({**event, "at": time.monotonic()})
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


def end_on_signal() -> None:
    """Let a benchmark that is told to end leave its contexts, which end its peers."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def step_of(event: Event) -> int:
    """The number of the global step that an event tells of, ours or the baseline's."""
    step = event["step"]
    return int(step["step"] if isinstance(step, dict) else step)


def start_coordinator(
    run: RunConfig, folder: Path, *, prefix: Sequence[str] = (), host: str = "127.0.0.1", **settings: Any
) -> Peer:
    """Our coordinator; its event `joined` has the addresses for `invitation`."""
    job = {
        "role": "coordinator",
        **coordinator_job(run, _config(CoordinatorConfig, folder, "coordinator", host, settings)),
    }
    return Peer("dedloc_kit.worker coordinator", job, name="coordinator", folder=folder, prefix=prefix)


def start_volunteer(
    invitation: Invitation,
    folder: Path,
    name: str,
    *,
    prefix: Sequence[str] = (),
    host: str = "127.0.0.1",
    environment: Mapping[str, str] | None = None,
    **settings: Any,
) -> Peer:
    """One of our volunteers."""
    job = {"role": "volunteer", **volunteer_job(invitation, _config(JoinOptions, folder, name, host, settings))}
    return Peer("dedloc_kit.worker volunteer", job, name=name, folder=folder, prefix=prefix, environment=environment)


def _config(kind: type[C], folder: Path, name: str, host: str, settings: Mapping[str, Any]) -> C:
    defaults = {"devices": "cpu", "threads": 1, "task_module": "benchmarks.lib.task"}
    return kind(folder=folder / name, name=name, swarm_host=host, **{**defaults, **settings})


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _cpu_seconds(pid: int, session: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it has just ended
    return (int(fields[11]) + int(fields[12])) / _TICKS if int(fields[3]) == session else 0.0
