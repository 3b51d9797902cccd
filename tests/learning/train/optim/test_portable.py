"""Norms that are the same on every processor."""

import numpy as np
import pytest

from dedloc_kit.learning.train.optim.portable import CHUNK, norm


@pytest.mark.parametrize("size", [1, 4097, CHUNK, 2 * CHUNK + 77])
def test_the_norm_is_as_exact_as_float32_is(size: int) -> None:
    values = np.random.default_rng(1).standard_normal(size).astype(np.float32) * np.float32(1e-3)
    assert norm(values) == pytest.approx(float(np.linalg.norm(values.astype(np.float64))), rel=1e-6)
