"""Gradients are weighed by their labels, and nobody's claim of labels moves an average."""

import pytest

from dedloc_kit.swarm.trust.labels import MOST_LABELS, Brought, gradient_weights


def test_an_average_is_that_of_all_labels_together_however_unequal_the_samples_are() -> None:
    assert gradient_weights([Brought(3, 30, 3), Brought(5, 200, 5), Brought(0, 0, 0)]) == [30, 200, 0]


def test_where_fewer_samples_count_than_were_brought_their_labels_count_alike() -> None:
    assert gradient_weights([Brought(4, 40, 4), Brought(8, 160, 2)]) == [40, 40]


@pytest.mark.parametrize("claim", [10**6, 2**53])
def test_who_claims_more_labels_than_is_usual_counts_for_a_bounded_number(claim: int) -> None:
    weights = gradient_weights([Brought(4, 40, 4), Brought(4, 44, 4), Brought(4, claim, 4)])
    assert weights == [40, 44, MOST_LABELS * 44]


def test_samples_without_labels_change_no_average() -> None:
    assert gradient_weights([Brought(4, 0, 4), Brought(4, 8, 4)]) == [0, 8]
    assert gradient_weights([Brought(4, 0, 4)]) == [0]
