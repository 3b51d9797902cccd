"""The order of the tests."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole journeys, which take longest, begin first: else the last one would keep a core idle."""
    here = Path(__file__).parent
    items.sort(key=lambda item: item.path.parent != here)
