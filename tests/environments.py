"""Virtual environments, and a wheel that is quickly installed in one."""

import os
import subprocess
import sys
from pathlib import Path

from dedloc_kit.distribution import Wheel, make_wheel

DESCRIPTION = {"METADATA": b"Metadata-Version: 2.1\nName: dedloc-kit\nVersion: 0.0.1\n\nVersion: of the text\n"}


def run(*command: str | Path, folder: Path) -> str:
    """Run a command in a folder without the settings that lead Python to the checkout; returns its output."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_CONSTRAINT"))}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def make_environment(folder: Path, *options: str) -> Path:
    """A new virtual environment; returns its folder of commands."""
    run(sys.executable, "-m", "venv", *options, folder, folder=folder.parent)
    return folder / "bin"


def small_wheel(answer: int) -> Wheel:
    return make_wheel({"dedloc_kit/__init__.py": f"answer = {answer}\n".encode()}, DESCRIPTION, "0.1.0")
