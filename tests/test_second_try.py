"""A test that fails once does not fail the run and is named; one that fails twice does."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.child
ROOT = Path(__file__).parents[1]
ONCE = """
from pathlib import Path
def test_fails_once():
    seen = Path(__file__).with_name("seen")
    before = seen.exists()
    seen.touch()
    assert before
"""


def second_try(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.second_try", "-c", "/dev/null", "--rootdir", str(folder), str(folder)]
    return subprocess.run([*command, "-p", "no:schemathesis"], cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_test_that_passes_the_second_time_is_named_last_and_does_not_fail_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(ONCE + "\ndef test_passes():\n    pass\n")
    done = second_try(tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-2:] == ["unstable (failed, then passed alone):", "  test_it.py::test_fails_once"]


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(ONCE + "\ndef test_fails():\n    assert False\n")
    done = second_try(tmp_path)
    assert done.returncode == 1
    assert "unstable" not in done.stdout


def test_without_a_failure_there_is_no_second_try(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_passes():\n    pass\n")
    done = second_try(tmp_path)
    assert done.returncode == 0
    assert "Once more" not in done.stdout
