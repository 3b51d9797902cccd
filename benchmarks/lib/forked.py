"""Many peers on one machine: forked from a process that has imported everything, so that they share its memory.

They may talk over a loopback of their own, whose counters tell their traffic from the machine's other traffic.
"""

import functools
import json
import mmap
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy
from hivemind.dht.protocol import DHTProtocol
from hivemind.utils.mpfuture import MPFuture, SharedBytes

from benchmarks.lib.peers import Event
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Failed, LocalProgress, Peers

COORDINATOR = 0
"""The slot of the coordinator; the volunteers have 1, 2 ..."""
POLL_SECONDS = 0.2
_PRIVATE = "BENCH_OWN_LOOPBACK"
_TICKS = os.sysconf("SC_CLK_TCK")

Play = Callable[[Callable[[AnyEvent], None], threading.Event], object]


class Swarm:
    """A coordinator and volunteers, each forked from here into a session of its own; the end of the context kills
    them, and so does the end of this process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.events = folder, list[Event]()
        self.pids: dict[int, int] = {}
        self._life, self._mine = os.pipe()
        self._writing = os.open(folder / "events.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._reading: IO[str] = (folder / "events.jsonl").open(encoding="utf-8")
        self._rest = ""

    def __enter__(self) -> "Swarm":
        return self

    def __exit__(self, *error: object) -> None:
        for pid in self.pids.values():
            os.killpg(pid, signal.SIGKILL) if _alive(pid) else None
        for pid in self.pids.values():
            os.waitpid(pid, 0)
        for descriptor in (self._life, self._mine, self._writing):
            os.close(descriptor)
        self._reading.close()

    def fork(self, slot: int, play: Play) -> None:
        """Start a peer."""
        pid = os.fork()
        if pid:
            self.pids[slot] = pid
            while os.getsid(pid) != pid:  # from then on killing its group reaches it
                time.sleep(0.001)
            return
        try:
            self._live(slot, play)
        finally:
            os._exit(0)

    def _live(self, slot: int, play: Play) -> None:
        os.setsid()
        os.close(self._mine)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        log = os.open(self.folder / f"peer{slot}.log", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        _be_another_process(slot)
        threading.Thread(target=self._die_with_parent, daemon=True).start()

        def emit(event: AnyEvent) -> None:
            if not isinstance(event, LocalProgress | Peers):
                values = event.model_dump(mode="json", exclude={"contributions"})
                line = json.dumps({**values, "slot": slot, "at": time.monotonic()})
                os.write(self._writing, line.encode() + b"\n")

        try:
            play(emit, threading.Event())
        except UserError as error:
            emit(Failed(text=str(error)))
        except Exception as error:
            traceback.print_exc()
            emit(Failed(text=f"an unexpected error ended this peer: {error!r:.300}"))

    def _die_with_parent(self) -> None:
        os.read(self._life, 1)
        os.killpg(0, signal.SIGKILL)

    def wait_for(self, kind: str, number: int, deadline: float, slot: int | None = None) -> list[Event]:
        """So many events of this kind, or those that came by the deadline (monotonic seconds)."""
        while True:
            self._read()
            found = [e for e in self.events if e["event"] == kind and slot in (None, e["slot"])]
            failed = any(e["event"] == "failed" and slot == e["slot"] for e in self.events)
            if len(found) >= number or failed or time.monotonic() > deadline:
                return found[:number]
            time.sleep(POLL_SECONDS)

    def _read(self) -> None:
        *lines, self._rest = (self._rest + self._reading.read()).split("\n")
        self.events += map(json.loads, lines)

    @staticmethod
    def forget_calls() -> None:
        """Count what the directory answers from zero."""
        _tally[:] = memoryview(bytes(len(_tally) * 8)).cast("q")

    def troubles(self) -> dict[str, int]:
        """Warnings and failures, peers' names and numbers left out so that the same ones add up."""
        self._read()
        kinds = Counter(_general(e["text"]) for e in self.events if e["event"] in ("warning", "failed"))
        return dict(kinds.most_common(12))


def _be_another_process(slot: int) -> None:
    """What a process of its own would have for itself: hivemind's locks, numpy's random numbers, a counter."""
    global _slot
    _slot = slot
    MPFuture._initialization_lock, MPFuture._update_lock = multiprocessing.Lock(), multiprocessing.Lock()
    SharedBytes._lock = multiprocessing.Lock()
    numpy.random.seed(int.from_bytes(os.urandom(4), "big"))


_slot = COORDINATOR
_tally = memoryview(mmap.mmap(-1, 1 << 16)).cast("q")
"""For each slot the directory's finds, stores and their bytes; every slot is written by one process."""


def count_calls() -> None:
    """Let every peer's node count what it answers. Pings are left out: it also calls those itself."""
    for column, name in enumerate(("rpc_find", "rpc_store")):
        setattr(DHTProtocol, name, _counted(getattr(DHTProtocol, name), column))


def _counted(method: Any, column: int) -> Any:
    @functools.wraps(method)
    async def counted(self: Any, request: Any, context: Any) -> Any:
        response = await method(self, request, context)
        _tally[3 * _slot + column] += 1
        _tally[3 * _slot + 2] += request.ByteSize() + response.ByteSize()
        return response

    return counted


@dataclass(frozen=True)
class Snapshot:
    at: float
    cpu: dict[int, float]
    finds: int
    stores: int
    size: int
    wire: tuple[int, int] | None


def snapshot(swarm: Swarm) -> Snapshot:
    sessions = {pid: slot for slot, pid in swarm.pids.items()}
    cpu = dict.fromkeys(swarm.pids, 0.0)
    for _, session, seconds in processes():
        if session in sessions:
            cpu[sessions[session]] += seconds
    finds, stores, size = (sum(_tally.tolist()[column::3]) for column in range(3))
    return Snapshot(time.monotonic(), cpu, finds, stores, size, _on_loopback())


def processes() -> list[tuple[int, int, float]]:
    """Every process with its session and its CPU seconds."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            found.append((int(entry.name), int(fields[3]), (int(fields[11]) + int(fields[12])) / _TICKS))
    return found


def _on_loopback() -> tuple[int, int] | None:
    """Bytes and packets so far; none if others use the same loopback."""
    if _PRIVATE not in os.environ:
        return None
    lines = Path("/proc/net/dev").read_text().splitlines()
    received = next(line.split(":")[1].split() for line in lines if line.strip().startswith("lo:"))
    return int(received[0]), int(received[1])


def memory_of(swarm: Swarm) -> float:
    """Mean bytes of a volunteer's processes."""
    volunteers = {pid for slot, pid in swarm.pids.items() if slot != COORDINATOR}
    return session_memory(volunteers) / max(1, len(volunteers))


def session_memory(sessions: Collection[int], kind: str = "Pss") -> int:
    """Bytes of all processes of these sessions; what several processes share counts once for all.

    :param kind: as in /proc/PID/smaps_rollup; `Pss_File` is what lies on the disk as well
    """
    total = 0
    for pid, session, _ in processes():
        if session in sessions:
            try:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue  # it has just ended
            total += 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:"))
    return total


def free_memory() -> int:
    """Bytes that the machine can still give."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def _alive(pid: int) -> bool:
    """Is anything left of this session?"""
    return any(session == pid for _, session, _ in processes())


def _general(text: str) -> str:
    """A message without what names one case of it."""
    return " ".join("..." if any(c.isdigit() for c in word) else word for word in text.split())[:160]


def has_own_loopback() -> bool:
    """Can nothing but the peers be on the loopback?"""
    return _PRIVATE in os.environ


def own_loopback() -> None:
    """Begin again in a network namespace that has nothing but a loopback, if this machine lets us."""
    if _PRIVATE in os.environ:
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # no library may have threads when the peers are forked
    isolate = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    isolate += ["--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    possible = shutil.which("unshare") and subprocess.run([*isolate, "true"], capture_output=True).returncode == 0
    if possible:
        os.execvpe(isolate[0], [*isolate, *sys.orig_argv], {**os.environ, _PRIVATE: "1"})
    print("no loopback of its own (needs unshare and ip): traffic is not counted", file=sys.stderr)
