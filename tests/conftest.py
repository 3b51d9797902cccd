"""The order of the tests."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one name have another organizer in each test, which a machine would not believe."""
    monkeypatch.setenv("DEDLOC_HOME", str(tmp_path_factory.mktemp("home")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole journeys, which take longest, begin first: else the last one would keep a core idle."""
    here = Path(__file__).parent
    items.sort(key=lambda item: item.path.parent != here)
