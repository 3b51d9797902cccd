"""Training computes the same figures as when the references were stored; see `tests.learning.references`."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.learning import references
from tests.learning.reference_runs import TASKS, write_tokenizers

GRADIENTS = {"swav-crops": 1e-5, "swav-queue": 1e-5}
"""Tolerances of gradients relative to the largest one, if not 1e-6. In convolutions and batch normalisation the number
of threads alone changes them by 4e-6."""
LOSSES, DIGESTS = 1e-5, 1e-5
"""Relative tolerances of ten steps; that of sums and norms is relative to the largest norm."""
CHANGES = {"swav": 1e-3}
"""Tolerances of the norms of changes, relative to the largest one, if not 1e-5."""


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizers")
    write_tokenizers(folder)
    return folder


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(references.FIGURES.read_text(encoding="utf-8"))
    return found


def test_every_task_and_every_recipe_has_figures(figures: dict[str, Any]) -> None:
    assert sorted(figures) == sorted([*TASKS, *references.RECIPES])


@pytest.mark.parametrize("name", TASKS)
def test_loss_and_gradients_of_a_task_are_those_that_are_stored(
    name: str, figures: dict[str, Any], tokenizers: Path
) -> None:
    run, batches = references.run_of(name, tokenizers), references.stored_batches(name)
    losses, gradients = references.gradients_of(run, figures[name]["weights"], batches)
    expected = references.stored_gradients(name)
    assert losses == pytest.approx(figures[name]["losses"], rel=1e-6)
    assert gradients.keys() == expected.keys()
    largest = max(float(each.abs().max()) for each in expected.values())
    apart = {key: float((gradients[key] - each).abs().max()) / largest for key, each in expected.items()}
    tolerance = GRADIENTS.get(name, 1e-6)
    assert {key: far for key, far in apart.items() if not far <= tolerance} == {}


@pytest.mark.parametrize("name", references.RECIPES)
def test_ten_steps_of_the_small_form_of_a_recipe_are_those_that_are_stored(
    name: str, figures: dict[str, Any], tokenizers: Path
) -> None:
    run, batches = references.run_of(name, tokenizers), references.stored_batches(name)
    stored = figures[name]
    starts_over = name in references.MAGNIFYING
    losses, after = references.steps_of(run, stored["weights"], batches, starts_over)
    assert len(losses) == references.STEPS
    assert losses == pytest.approx(stored["losses"], rel=LOSSES)
    assert after.keys() == stored["after"].keys()
    for number, tolerance in enumerate((DIGESTS, DIGESTS, CHANGES.get(name, 1e-5))):
        largest = max(digest[max(1, number)] for digest in stored["after"].values())
        expected = {key: digest[number] for key, digest in stored["after"].items()}
        found = {key: digest[number] for key, digest in after.items()}
        assert found == pytest.approx(expected, rel=0, abs=tolerance * largest)


@pytest.mark.parametrize("name", references.RECIPES)
def test_the_first_weights_of_a_recipe_are_spread_as_those_that_are_stored(
    name: str, figures: dict[str, Any], tokenizers: Path
) -> None:
    """The figures above do not depend on first weights, so a change of these fails here alone."""
    tensors = references.Training(references.run_of(name, tokenizers)).tensors()
    weights = figures[name]["weights"]
    assert tensors.keys() == weights.keys()
    for key, (mean, spread) in references.spread_of(tensors).items():
        expected_mean, expected_spread = weights[key]
        chance = 8 * expected_spread / tensors[key].numel() ** 0.5
        assert abs(mean - expected_mean) <= chance, key
        assert abs(spread - expected_spread) <= chance, key
