"""A role in its own process: what it tells, and that nothing of it is ever left behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dedloc_kit import worker
from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.events import AnyEvent, Failed, Joined, Left
from dedloc_kit.worker import KEPT_MEMORY, Worker, coordinator_job
from tests import fork_server
from tests.swarm.harness import Swarm, processes_of, wait_until
from tests.tiny import tiny_run

STARTER = """
import json, sys, time
from pathlib import Path
from dedloc_kit.worker import Worker
from dedloc_kit.events import Joined

def heard(event):
    if isinstance(event, Joined):
        print(worker.pid, flush=True)

worker = Worker("coordinator", json.loads(sys.argv[1]), folder=Path(sys.argv[2]), on_event=heard)
time.sleep(600)
"""

MICROBATCHES = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
for _ in range(20):
    activations = [libc.malloc(2**24) for _ in range(4)]
    for memory in activations:
        ctypes.memset(memory, 1, 2**24)
    for memory in reversed(activations):
        libc.free(ctypes.c_void_p(memory))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""
"""Takes and gives back 64 MB, twenty times; prints how many pages were new."""


@pytest.fixture
def forked_workers() -> None:
    """These are not: a worker here begins as it does for its users."""


@pytest.mark.real
def test_a_worker_whose_starter_is_killed_ends_with_all_its_processes(tmp_path: Path) -> None:
    peer = CoordinatorConfig(folder=tmp_path, swarm_host="127.0.0.1", task_module="tests.tiny")
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, json.dumps(coordinator_job(tiny_run(), peer)), str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert starter.stdout is not None
    worker = int(starter.stdout.readline())
    assert len(processes_of(worker)) >= 4, "the role, the guardian, the DHT and the averager at least"
    starter.kill()
    starter.wait()
    wait_until(lambda: not processes_of(worker), "the worker outlived its starter")


@pytest.mark.soak
def test_a_worker_keeps_memory_for_the_next_microbatch_hears_no_interrupt_and_once_killed_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEPT_MEMORY:
        monkeypatch.delenv(name, raising=False)  # what somebody has set prevails
    with Swarm(tiny_run(), tmp_path) as swarm:
        coordinator = swarm.coordinator()
        session = coordinator.worker.pid
        environment = Path(f"/proc/{session}/environ").read_bytes().split(b"\0")
        for name, value in KEPT_MEMORY.items():
            assert f"{name}={value}".encode() in environment
        assert os.getpgid(session) != os.getpgid(0), "an interrupt of the starter does not reach it"
        os.kill(session, signal.SIGINT)
        volunteer = swarm.volunteer("volunteer", microbatch=32)
        volunteer.wait_for_step(1)
        assert volunteer.worker.stop() == 0
        assert volunteer.wait_for(Left).session_samples > 0
        os.kill(session, signal.SIGKILL)  # the role alone: its children must be found by the guardian
        failed = coordinator.wait_for(Failed)
        assert "SIGKILL" in failed.text
        assert str(coordinator.worker.log) in failed.text
        wait_until(lambda: not processes_of(session), "a process of the killed worker is left")


@pytest.mark.soak
def test_what_a_worker_cannot_do_it_says_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_start", fork_server.worker_process)  # here it does not matter how it began
    events: list[AnyEvent] = []
    peer = CoordinatorConfig(folder=tmp_path / "peer", swarm_host="127.0.0.1")
    one = Worker("coordinator", coordinator_job(tiny_run(), peer), folder=tmp_path, on_event=events.append)
    assert one.wait(60.0) == 2
    assert isinstance(events[-1], Failed)
    assert (
        events[-1].text
        == "there is no task 'tiny'; choose one of: albert, causal, chat, encoder, span-corruption, swav, text-to-image"
    )
    assert not any(isinstance(event, Joined) for event in events)


@pytest.mark.soak
def test_what_keeps_memory_does() -> None:
    faults = [
        int(subprocess.run([sys.executable, "-c", MICROBATCHES], env=env, check=True, capture_output=True).stdout)
        for env in ({**os.environ}, {**os.environ, **KEPT_MEMORY})
    ]
    assert faults[1] < faults[0] / 2
