from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.learning.evaluate.language import write_model, write_ner


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("evaluation") / "model")


@pytest.fixture(scope="session")
def entities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ner(tmp_path_factory.mktemp("evaluation") / "ner", {"train": 96, "validation": 16, "test": 32})


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """An evaluation sets the number of threads; the tests after it get their own back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
