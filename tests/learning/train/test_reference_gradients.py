"""A card adds up the gradients that are stored, for each kind of task; see `tests.learning.references`."""

import json
from pathlib import Path

import pytest
import torch

from dedloc_kit.learning.train.computing.card import Card
from dedloc_kit.learning.train.flat_model import FlatModel
from tests.learning import references
from tests.learning.reference_runs import write_tokenizers
from tests.learning.test_references import GRADIENTS

NAMES = ("albert-words", "causal-llama", "encoder-modernbert", "swav-queue", "text-to-image-tied")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizers")
    write_tokenizers(folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_card_adds_up_the_gradients_that_are_stored(name: str, tokenizers: Path) -> None:
    figures = json.loads(references.FIGURES.read_text(encoding="utf-8"))[name]
    run, batches = references.run_of(name, tokenizers), references.stored_batches(name)
    training = references.Training(run)
    training.load(references.drawn(training.tensors(), figures["weights"]))
    replica = FlatModel(training.model, torch.device("cpu"))
    card = Card(replica, training.task.loss, prepare=training.task.prepare)
    losses, expected = [], references.stored_gradients(name)
    names = [key for key, _ in training.model.named_parameters()]
    assert set(names) == expected.keys()
    found = {key: torch.zeros_like(each) for key, each in expected.items()}
    for step, batch in enumerate(batches):
        replica.step = step
        assert card.submit(batch)
        losses += [computed.loss for computed in card.results()]
        snapshot = card.snapshot()
        assert snapshot is not None
        for key, gradient in zip(names, snapshot.gradients, strict=True):
            found[key] += gradient / snapshot.loss.weight
    assert losses == pytest.approx(figures["losses"], rel=1e-6)
    largest = max(float(each.abs().max()) for each in expected.values())
    for key, gradient in found.items():
        assert float((gradient - expected[key]).abs().max()) <= GRADIENTS.get(name, 1e-6) * largest, key
