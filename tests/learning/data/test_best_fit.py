import numpy as np
import pytest

from dedloc_kit.learning.data.best_fit import best_fit


def test_every_item_is_whole_in_one_row_and_no_row_is_too_full() -> None:
    sizes = np.random.default_rng(0).integers(1, 101, size=1000).tolist()
    items = list(enumerate(sizes))
    rows = list(best_fit(items, lambda item: item[1], 100))
    assert sorted(item for row in rows for item in row) == items
    assert all(sum(size for _, size in row) <= 100 for row in rows)
    assert sum(sizes) / (100 * len(rows)) > 0.9, "little is left empty"


def test_an_item_goes_where_it_leaves_the_least_room() -> None:
    assert list(best_fit([6, 5, 3, 4, 5], int, 10)) == [[6, 3], [5, 4], [5]]
    assert list(best_fit([6, 5, 5, 4], int, 10)) == [[5, 5], [6, 4]], "a row that is full is given at once"


def test_an_item_that_fits_nowhere_is_an_error() -> None:
    with pytest.raises(ValueError, match="11 does not fit into a row of 10"):
        list(best_fit([11], int, 10))
