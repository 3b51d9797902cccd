"""938 bytes of tuples in tuples once overflowed the C stack of every worker that read them."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.child
def test_nested_bytes_kill_nobody(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.swarm.hostile.nested_bytes", str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    assert done.stdout == "alive\n", f"{done.returncode}: {done.stderr[-3000:]}"
