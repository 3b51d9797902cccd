"""Who holds another state than it should, by sketches."""

from collections.abc import Mapping

import pytest

from dedloc_kit.swarm.pipeline.holding import astray

RIGHT, ROUNDED, OTHER, THIRD = (3.0, -4.0), (3.0, -4.0 + 1e-6), (3.0, -4.01), (-3.0, 4.0)
CASES: dict[str, tuple[Mapping[str, tuple[float, ...]], set[str]]] = {
    "all alike": ({"a": RIGHT, "b": ROUNDED, "c": RIGHT}, set()),
    "one of three": ({"a": OTHER, "b": ROUNDED, "c": RIGHT}, {"a"}),
    "two of five, unlike": ({"a": OTHER, "b": RIGHT, "c": RIGHT, "d": THIRD, "e": RIGHT}, {"a", "d"}),
    "two that differ": ({"a": RIGHT, "b": OTHER}, set()),
    "three that differ": ({"a": RIGHT, "b": OTHER, "c": THIRD}, set()),
    "its own alone": ({"me": RIGHT, "b": OTHER, "c": OTHER}, {"b", "c"}),
    "not told": ({"a": RIGHT, "b": (), "c": RIGHT}, {"b"}),
    "told by nobody": ({"a": (), "b": ()}, set()),
    "too large to compare": ({"a": RIGHT, "b": (1.7e308, 1.7e308), "c": RIGHT}, {"b"}),
    "nobody": ({}, set()),
}


@pytest.mark.parametrize("case", CASES)
def test_who_holds_another_state_than_most_or_than_this_driver_is_found(case: str) -> None:
    held, found = CASES[case]
    assert astray(held, "me") == found
