"""What tests have at hand, and their order."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from dedloc_kit import worker
from dedloc_kit.machine.logs import Warnings
from tests import fork_server, identities

gc.disable()  # until all is collected: what is imported becomes no garbage; looking for it takes a fifth of the time


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One for each test, made by who needs it: most do not."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in count())


@pytest.fixture(autouse=True)
def own_home(homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one name have another organizer in each test, which a machine would not believe."""
    monkeypatch.setenv("DEDLOC_HOME", str(next(homes)))


@pytest.fixture(autouse=True)
def same_keys() -> Iterator[None]:
    """Each test has the same identities every time."""
    identities.begin()
    yield
    identities.end()


@pytest.fixture(autouse=True)
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forked from one process that has imported what they need; a module that is about how they begin has
    a fixture of this name that does nothing."""
    monkeypatch.setattr(worker, "_start", fork_server.worker_process)


@pytest.fixture(autouse=True)
def loops_of_python() -> Iterator[None]:
    """Nothing decides for the whole process what its event loops are: whoever comes after it would meet others."""
    before = asyncio.get_event_loop_policy()
    yield
    assert asyncio.get_event_loop_policy() is before


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For networks that are so small that they only wait for each other's threads."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def warned() -> Iterator[list[str]]:
    """What modules of ours warn of during the test, in this process."""
    told: list[str] = []
    with closing(Warnings(told.append)):
        yield told


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, else the last one would keep a core idle: those that may take longer than
    others, then whole journeys."""
    here = Path(__file__).parent

    def order(item: pytest.Item) -> tuple[float, bool, Path]:
        limit = item.get_closest_marker("timeout")
        return -float(limit.args[0]) if limit else 0.0, item.path.parent != here, item.path

    items.sort(key=order)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
