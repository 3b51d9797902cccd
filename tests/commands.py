"""The `dedloc` command as a process, for tests."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from tests.fork_server import Forked
from tests.swarm.harness import wait_until

ALBERT = """
name = "albert-test"
global_batch = 8
[task]
name = "{task}"
tokenizer = "{tokenizer}"
[[data.train]]
dataset = "{dataset}"
[optimizer]
warmup_steps = 1
total_steps = 10
"""


def dedloc(*arguments: str | Path, folder: Path, deadline: float = 120.0) -> subprocess.CompletedProcess[str]:
    with TemporaryFile() as errors:
        process = _started(arguments, folder, errors)
        said, code = process.stdout.read(), process.wait(deadline)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, code, said.decode(), errors.read().decode())


class Running:
    """A command that goes on until it is told to end."""

    def __init__(self, arguments: tuple[str | Path, ...], folder: Path) -> None:
        self._errors = TemporaryFile()  # noqa: SIM115 (as long as it runs)
        self._lines: list[str] = []
        self.process = _started(arguments, folder, self._errors)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.append(line.decode())

    def said(self) -> str:
        """So far, on its standard output."""
        return "".join(self._lines)

    def errors(self) -> str:
        return os.pread(self._errors.fileno(), 2**20, 0).decode()

    def wait_for(self, words: str, deadline: float = 120.0) -> None:
        """Until it has said so, on either stream."""
        with suppress(AssertionError):
            wait_until(lambda: words in self.said() + self.errors() or self.process.poll() is not None, "", deadline)
        assert words in self.said() + self.errors(), self.said() + self.errors()

    def ended(self, deadline: float) -> None:
        """As it should be, by itself or because it was told to."""
        code = self.process.wait(deadline)
        self._reading.join(deadline)
        assert code == 0, self.said() + self.errors()

    def close(self) -> None:
        """Whatever has come before."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait(30.0)
        sys.stderr.write(self.said() + self.errors())
        self._errors.close()


@contextmanager
def running(
    *arguments: str | Path, folder: Path, end: signal.Signals = signal.SIGTERM, deadline: float = 180.0
) -> Iterator[Running]:
    """A command as long as this is entered; then it is told to end, and leaves as it should within the deadline."""
    command = Running(arguments, folder)
    try:
        yield command
        if command.process.poll() is None:
            os.kill(command.process.pid, end)
        command.ended(deadline)
    finally:
        command.close()


def _started(arguments: tuple[str | Path, ...], folder: Path, errors: IO[bytes]) -> Forked:
    environment = {**os.environ, "DEDLOC_HOME": str(folder / "home"), "PYTHONPATH": str(Path(__file__).parents[1])}
    with chdir(folder):
        process = Forked(["dedloc_kit.cli", *map(str, arguments)], environment, errors)
    process.stdin.close()
    return process


def assert_refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2 and one line on standard error that holds these words; no traceback anywhere."""
    said = result.stdout + result.stderr
    assert result.returncode == 2, said
    assert "Traceback" not in said
    errors = [line for line in said.splitlines() if line and not line.lower().startswith(PROGRESS)]
    assert len(errors) == 1, said
    for word in words:
        assert word in errors[0], said


PROGRESS = (
    "getting ready",
    "reading the invitation",
    "reading the model",
    "checking this machine",
    "loading the libraries",
    "starting",
    "connecting",
    "loading the model",
)


def run_file(folder: Path, task: str = "albert", tokenizer: str = "./tokenizer", dataset: str = "./corpus") -> Path:
    path = folder / "run.toml"
    path.write_text(ALBERT.format(task=task, tokenizer=tokenizer, dataset=dataset), encoding="utf-8")
    return path


def coordinator_file(folder: Path, **settings: object) -> None:
    """`coordinator.toml` beside the run's file in that folder."""
    lines = (f"{name} = {json.dumps(value, default=str)}" for name, value in settings.items())
    (folder / "coordinator.toml").write_text("\n".join(lines), encoding="utf-8")


def launch(path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return dedloc("launch", path, "--port", "0", "--host", "127.0.0.1", *more, folder=path.parent)
