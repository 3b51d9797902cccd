"""The tier of a test: plain tests (`make test`) start no process; `real` and `soak` ones do.

A pytest plugin. A plain test that starts a process fails there, with the marker that it needs.
"""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
"""Audit events of Python for the ways to start a process."""
MAY_START = ("child", "real", "soak")
_plain: list[str] = []
"""The plain test that runs now, if any."""


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    if event in STARTS and _plain:
        raise RuntimeError(
            f"{_plain[-1]} starts a process ({event}: {arguments[:2]}); mark it child, real or soak (CONTRIBUTING.md)"
        )


def pytest_configure() -> None:
    sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """From before its fixtures are set up until after they are torn down."""
    plain = not any(item.get_closest_marker(name) for name in MAY_START)
    if plain:
        _plain.append(item.nodeid)
    try:
        return (yield)
    finally:
        if plain:
            _plain.remove(item.nodeid)
