"""Run tests, and those that fail once more, alone: `python -m tests.second_try ARGUMENTS OF PYTEST`.

What passes the second time does not fail the run; its name stands in the last lines. What fails twice does.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TESTS_FAILED = 1
"""pytest's exit code if all ran and some failed; with any other one there is nothing to try again."""


def run_twice(arguments: Sequence[str]) -> int:
    """The exit code: 0 if each test has passed at the first or the second try."""
    with tempfile.TemporaryDirectory() as cache:
        first = _pytest(cache, *arguments)
        if first != TESTS_FAILED:
            return first
        failed = sorted(json.loads((Path(cache) / "v/cache/lastfailed").read_text(encoding="utf-8")))
        print(f"\nOnce more, alone: {len(failed)} of the tests\n", flush=True)
        # After the tests' own arguments: the last -n and -p count.
        second = _pytest(cache, *arguments, "--last-failed", "-n", "0")
    if not second:
        print("\nunstable (failed, then passed alone):", *failed, sep="\n  ", flush=True)
    return second


def _pytest(cache: str, *arguments: str) -> int:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(run_twice(sys.argv[1:]))
