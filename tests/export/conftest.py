"""What several tests of exports have."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loopback_hub import LoopbackHub, loopback_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    with loopback_hub(monkeypatch, tmp_path / "cache") as served:
        yield served
