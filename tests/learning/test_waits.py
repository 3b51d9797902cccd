"""No task's loss, forward and backward, waits for the device: a device that counts says so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.learning.every_task import TASKS, write_data

WAITING = (
    "item",
    "truth",
    "list",
    "copy",
    "filled",
    "like",
    "boolean",
    "boolean filled",
    "listed",
    "nonzero",
    "inverse",
)


@pytest.mark.child
def test_no_loss_waits_for_the_device_and_there_it_is_what_it_is_on_the_cpu(tmp_path: Path) -> None:
    write_data(tmp_path)
    command = [sys.executable, "-m", "tests.learning.counting_device", str(tmp_path), *TASKS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    noticed = found.pop("noticed")
    assert {name for name, count in noticed.items() if count} == set(WAITING), "it counts what waits"
    for name, each in found.items():
        assert each["waits"] == {}, name
        # A CPU resizes bytes, and rounds them.
        close = 1e-2 if name == "swav" else 1e-6
        for there, here in each["losses"]:
            assert there == pytest.approx(here, rel=close), name
        assert each["gradients off"] < (0.5 if name == "swav" else 1e-5), name
