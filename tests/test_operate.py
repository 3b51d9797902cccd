"""What `docs/operate.md` offers to copy; test_organizing starts, ends and restarts a launch as these do."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dedloc_kit.cli.main import parser
from dedloc_kit.records.invitation import INVITATION_FILE, Invitation
from tests.swarm.harness import Swarm, wait_until
from tests.tiny import tiny_run

CHECKOUT = Path(__file__).parents[1]
OFFERED = CHECKOUT / "docs" / "operate"
MAX_EXPOSED = 20
"""Of 100, as systemd-analyze reckons; without a sandbox it is 92."""
RUN = """
name = "tiny"
global_batch = 64
task = { name = "tiny" }
data = { train = [{ dataset = "none/none" }], evaluation = { dataset = "none/none" } }
optimizer = { learning_rate = 0.01, warmup_steps = 0, total_steps = 1000 }
"""
SANDBOX = ("systemd-analyze", "unshare", "setpriv")


def launch_line() -> list[str]:
    """What the unit starts, without the path of the program."""
    (line,) = re.findall(r"^ExecStart=(.*)$", (OFFERED / "dedloc.service").read_text(), re.MULTILINE)
    program, *arguments = shlex.split(line)
    assert program.endswith("/dedloc")
    return arguments


def test_the_unit_and_the_container_start_the_same_command_and_it_exists() -> None:
    (command,) = re.findall(r"^CMD \[(.*)\]$", (OFFERED / "Dockerfile").read_text(), re.MULTILINE)
    assert launch_line() == [word.strip(' "') for word in command.split(",")]
    assert parser().parse_args(launch_line()).command == "launch"


def test_an_auxiliary_peer_is_started_by_a_command_that_exists() -> None:
    page = (CHECKOUT / "docs" / "operate.md").read_text()
    (line,) = re.findall(r"^ExecStart=\S+/dedloc (.*)$", page, re.MULTILINE)
    (command,) = re.findall(r"`docker run`: `(join [^`]*)`", page)
    options = parser().parse_args(shlex.split(line))
    assert options == parser().parse_args(shlex.split(command))
    assert (options.command, options.auxiliary, options.client_mode) == ("join", True, False)


@pytest.mark.child
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.parametrize(
    "question", [["verify", "--recursive-errors=no"], ["security", "--offline=true", f"--threshold={MAX_EXPOSED}"]]
)
def test_systemd_finds_nothing_wrong_with_the_unit_and_little_exposed(question: list[str], tmp_path: Path) -> None:
    unit = (OFFERED / "dedloc.service").read_text().replace("/srv/dedloc/venv/bin/dedloc", sys.executable)
    (tmp_path / "dedloc.service").write_text(unit)
    asked = ["systemd-analyze", *question, str(tmp_path / "dedloc.service")]
    found = subprocess.run(asked, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, ""), found.stdout


def sandboxed(folder: Path, program: Sequence[str]) -> subprocess.Popen[bytes]:
    """A program as the unit would run it, with this folder for the run's."""
    play = ["unshare", "--mount", sys.executable, str(CHECKOUT / "tests" / "sandbox.py")]
    return subprocess.Popen(
        [*play, str(OFFERED / "dedloc.service"), str(folder), *program], env={**os.environ, "PYTHONPATH": str(CHECKOUT)}
    )


@pytest.mark.real
@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, SANDBOX)), reason="it takes root and systemd's tools"
)
def test_in_the_units_sandbox_a_coordinator_leads_a_run_and_can_touch_nothing_else(tmp_path: Path) -> None:
    (folder := tmp_path / "run").mkdir()
    (folder / "run.toml").write_text(RUN)
    (elsewhere := tmp_path / "elsewhere").mkdir()

    def works(command: str) -> bool:
        return sandboxed(folder, ["sh", "-c", command]).wait(60) == 0

    assert works(f"echo >{folder}/file && echo >/dev/shm/dedloc-test && rm /dev/shm/dedloc-test")
    assert not works(f"echo >{elsewhere}/file")
    assert not works(f"chown 1 {folder}/file")
    assert not works(f"mount -t tmpfs none {folder}")
    assert not works("ls /dev/kmsg")

    launch = f"-m dedloc_kit.cli launch {folder}/run.toml --folder {folder}/kept --task-module tests.tiny --devices cpu"
    launch += " --threads 1 --swarm-host 127.0.0.1 --host 127.0.0.1 --port 0"
    launched = sandboxed(folder, [sys.executable, *launch.split()])
    try:
        kept = folder / "kept" / INVITATION_FILE
        wait_until(lambda: kept.exists() or launched.poll() is not None, "it does not start", 120.0)
        with Swarm(tiny_run(), tmp_path / "peers") as swarm:
            swarm.invitation = Invitation.parse(kept.read_text())
            swarm.volunteer("volunteer", client_mode=True).wait_for_step(3)
    finally:
        launched.send_signal(signal.SIGTERM)
        code = launched.wait(120)
    assert code in (0, 130)
    assert list((folder / "kept" / "checkpoints").glob("step-*"))
