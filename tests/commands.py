"""The `dedloc` command as a process, for tests."""

import os
import subprocess
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryFile

from tests.fork_server import Forked

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
    environment = {**os.environ, "DEDLOC_HOME": str(folder / "home"), "PYTHONPATH": str(Path(__file__).parents[1])}
    with chdir(folder), TemporaryFile() as errors:
        process = Forked(["dedloc_kit.cli", *map(str, arguments)], environment, errors)
        process.stdin.close()
        said, code = process.stdout.read(), process.wait(deadline)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, code, said.decode(), errors.read().decode())


def assert_refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2 and one line on standard error that holds these words; no traceback anywhere."""
    said = result.stdout + result.stderr
    assert result.returncode == 2, said
    assert "Traceback" not in said
    errors = [line for line in said.splitlines() if line and not line.startswith(PROGRESS)]
    assert len(errors) == 1, said
    for word in words:
        assert word in errors[0], said


PROGRESS = (
    "getting ready",
    "reading the invitation",
    "reading the model",
    "checking the machine",
    "loading the libraries",
    "starting",
    "connecting",
    "loading the training state",
)


def run_file(folder: Path, task: str = "albert", tokenizer: str = "./tokenizer", dataset: str = "./corpus") -> Path:
    path = folder / "run.toml"
    path.write_text(ALBERT.format(task=task, tokenizer=tokenizer, dataset=dataset), encoding="utf-8")
    return path


def launch(path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return dedloc("launch", path, "--port", "0", "--dashboard-host", "127.0.0.1", *more, folder=path.parent)
