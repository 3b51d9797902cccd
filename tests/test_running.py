"""What `docs/running.md` offers to copy; test_organizing starts, ends and restarts a launch as these do."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dedloc_kit.cli.main import parser

RUNNING = Path(__file__).parents[1] / "docs" / "running"


def launch_line() -> list[str]:
    """What the unit starts, without the path of the program."""
    (line,) = re.findall(r"^ExecStart=(.*)$", (RUNNING / "dedloc.service").read_text(), re.MULTILINE)
    program, *arguments = shlex.split(line)
    assert program.endswith("/dedloc")
    return arguments


def test_the_unit_and_the_container_start_the_same_command_and_it_exists() -> None:
    (command,) = re.findall(r"^CMD \[(.*)\]$", (RUNNING / "Dockerfile").read_text(), re.MULTILINE)
    assert launch_line() == [word.strip(' "') for word in command.split(",")]
    assert parser().parse_args(launch_line()).command == "launch"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    unit = (RUNNING / "dedloc.service").read_text().replace("/srv/dedloc/venv/bin/dedloc", sys.executable)
    (tmp_path / "dedloc.service").write_text(unit)
    found = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", str(tmp_path / "dedloc.service")],
        capture_output=True,
        text=True,
    )
    assert (found.returncode, found.stderr) == (0, "")
