"""Ctrl-C and SIGTERM at commands that go on until they are told to end."""

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dedloc_kit.cli.interrupts import LASTING, Interrupts, call
from dedloc_kit.cli.main import parser
from tests.fork_server import said_by
from tests.swarm.harness import processes_of, wait_until

HEARS_CTRL_C = """
import signal
from dedloc_kit.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
raise SystemExit(main())
"""
"""Also where a shell has started the tests in the background."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
RUN = """
name = "tiny"
global_batch = 64
task = { name = "tiny" }
data = { train = [{ dataset = "none/none" }], evaluation = { dataset = "none/none" } }
optimizer = { learning_rate = 0.01, warmup_steps = 0, total_steps = 1000 }
"""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in SIGNALS}
    wakeup = signal.set_wakeup_fd(-1)
    yield
    signal.set_wakeup_fd(wakeup)
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_the_first_signal_leaves_and_the_second_ends_at_once(first: signal.Signals, second: signal.Signals) -> None:
    ended = threading.Event()
    interrupts = Interrupts(ended.set, same_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(first)
    interrupts.close()
    assert not ended.is_set()
    signal.raise_signal(second)  # raises nothing: what still goes on goes on to its end
    assert ended.wait(60.0)


def test_what_a_wrapper_passes_on_again_is_no_second_signal() -> None:
    ended = threading.Event()
    Interrupts(ended.set, same_seconds=3600.0)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    for _ in range(3):
        signal.raise_signal(signal.SIGTERM)
    assert not ended.is_set()


def test_the_first_one_counts_too_if_another_handler_has_taken_it() -> None:
    """As that of uvicorn: what follows ends at once, and raises nothing while the program leaves."""
    ended = threading.Event()
    interrupts = Interrupts(ended.set, same_seconds=0.0)
    leaves = signal.signal(signal.SIGINT, lambda *_: None)
    signal.raise_signal(signal.SIGINT)
    wait_until(lambda: interrupts.asked, "the signal is not seen")
    signal.signal(signal.SIGINT, leaves)
    interrupts.close()
    signal.raise_signal(signal.SIGINT)
    assert ended.wait(60.0)


def test_without_a_signal_everything_is_as_before() -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    Interrupts().close()
    assert [signal.getsignal(each) for each in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_an_ignored_interrupt_stays_ignored_and_a_line_says_how_to_leave(capsys: pytest.CaptureFixture[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def leaves(_: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        call(argparse.Namespace(command="join", call=leaves))
    (line,) = capsys.readouterr().err.splitlines()
    assert f"SIGINT ignored; to leave: kill {os.getpid()}" in line


def test_other_commands_are_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert call(argparse.Namespace(command="status", call=lambda _: None)) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", sorted(LASTING))
def test_the_commands_that_last_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args([command, "--help"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: dedloc {command} ")


@pytest.mark.child
def test_the_second_signal_ends_a_program_that_waits_where_no_signal_reaches(tmp_path: Path) -> None:
    """Its main thread is as one that holds on in code that is not Python's: it sees no signal and no handler runs."""
    (tmp_path / "demo" / "run").mkdir(parents=True)
    said_by(
        f"""
import os, signal, threading
from pathlib import Path
from dedloc_kit.cli.interrupts import TEMPORARY, Interrupts
TEMPORARY.add(Path({str(tmp_path / "demo")!r}))
Interrupts(same_seconds=0.0)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    threading.Timer(0.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    threading.Event().wait()
""",
        returncode=130,
    )
    assert not (tmp_path / "demo").exists()


@pytest.mark.soak
def test_a_second_signal_leaves_no_process_of_a_launch_whose_coordinator_hangs(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    here = ("--task-module", "tests.tiny", "--threads", "1", "--swarm-host", "127.0.0.1", "--host", "127.0.0.1")
    launched = subprocess.Popen(
        [sys.executable, "-c", HEARS_CTRL_C, "launch", "run.toml", *here, "--port", "0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        text=True,
    )
    assert launched.stdout is not None
    try:
        next(line for line in launched.stdout if "live page" in line)
        (worker,) = map(int, Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split())
        os.killpg(worker, signal.SIGSTOP)
        launched.send_signal(signal.SIGINT)
        next(line for line in launched.stdout if "saving and leaving" in line)

        def ended() -> bool:
            launched.send_signal(signal.SIGINT)
            return launched.poll() is not None

        wait_until(ended, "it waits for its coordinator")
        assert launched.returncode == 130
        wait_until(lambda: not processes_of(worker), "a process of the coordinator is left")
    finally:
        launched.kill()
        launched.wait()
        launched.stdout.close()
