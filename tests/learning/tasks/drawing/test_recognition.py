"""Which drawings a classifier recognises, of drawings that are known."""

import logging
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from dedloc_kit.learning.data.pictures.codes import Captioned
from dedloc_kit.learning.tasks.drawing import classifier, recognition
from dedloc_kit.learning.tasks.drawing.classifier import classes_of, small, train_classifier
from dedloc_kit.learning.tasks.drawing.generation import Drawn
from dedloc_kit.learning.tasks.drawing.held_out import HeldOut
from dedloc_kit.learning.tasks.drawing.recognition import REAL_RECOGNISED, RECOGNISED, UNTOLD_RECOGNISED, Recognition
from dedloc_kit.learning.tasks.drawing.transformer import DrawingTransformer
from tests.hang import HANG
from tests.learning.tasks.drawing.test_transformer import TINY

CLASSES = ("dark", "light", "red")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifier, "_STEPS", 40)


def decode(codes: torch.Tensor) -> torch.Tensor:
    """Pictures of one colour, which the first code names, with a little noise."""
    colours = torch.tensor([[0, 0, 0], [255, 255, 255], [255, 0, 0]])[codes[:, 0]]
    noise = torch.randint(-20, 21, (len(codes), 3, 8, 8), generator=torch.Generator().manual_seed(0))
    return (colours[:, :, None, None] + noise).clamp(0, 255).byte()


def samples(labels: Iterable[str] = CLASSES) -> Iterator[Captioned]:
    for number, label in enumerate(list(labels) * 20):
        codes = np.full(9, CLASSES.index(label) if label else 0, dtype=np.uint16)
        yield Captioned(np.array([number % 3], dtype=np.uint16), codes, label)


def held_out() -> HeldOut:
    codes = torch.arange(12)[:, None].expand(-1, 9) % 3
    labels = [CLASSES[number % 3] for number in range(12)]
    labels[0] = "never learned"
    return HeldOut(TINY.padded([[number % 3] for number in range(12)]), codes, labels)


def drawn(model: DrawingTransformer, captions: torch.Tensor, how: Drawn, seed: int) -> torch.Tensor:
    """What a model would draw that is right whenever it is told, but for its first picture."""
    codes = torch.where(captions[:, :1] < TINY.tokens, captions[:, :1], 2).expand(-1, 9).clone()
    codes[0] = 2
    return codes


def recognised(monkeypatch: pytest.MonkeyPatch, learned: Any, patience: float = HANG) -> dict[str, float]:
    monkeypatch.setattr(recognition, "generate", drawn)
    found = Recognition(held_out(), learned, decode, 10, Drawn(1, 1.0, 1.0), 0)
    return found.shares(DrawingTransformer(TINY), patience)


def test_shares_are_of_the_drawn_captions_whose_classes_were_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    found = recognised(monkeypatch, samples)
    # Ten from the second on, of which the first is wrong; three of these are red, and that is all it draws untold.
    assert found == {RECOGNISED: 0.9, UNTOLD_RECOGNISED: pytest.approx(0.3), REAL_RECOGNISED: 1.0}


def test_an_evaluation_does_not_wait_for_the_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognition, "generate", drawn)
    go_on = threading.Event()

    def slowly() -> Iterator[Captioned]:
        go_on.wait(HANG)
        yield from samples()

    found = Recognition(held_out(), slowly, decode, 10, Drawn(1, 1.0, 1.0), 0)
    assert found.shares(DrawingTransformer(TINY), patience=0.0) == {}
    go_on.set()
    assert found.shares(DrawingTransformer(TINY), HANG)[RECOGNISED] == 0.9


def test_without_two_classes_or_with_data_that_cannot_be_read_there_is_no_classifier(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert recognised(monkeypatch, lambda: samples(["", "dark"])) == {}

    def broken() -> Iterator[Captioned]:
        yield from samples()
        raise OSError("no such file")

    with caplog.at_level(logging.WARNING):
        assert recognised(monkeypatch, broken) == {}
    assert "no classifier of drawings: no such file" in caplog.text


def test_the_classifier_is_the_same_each_time_and_leaves_the_random_state_alone() -> None:
    pictures = small(decode(torch.arange(30)[:, None] % 3))
    labels = torch.arange(30) % 3
    before = torch.random.get_rng_state()
    models = [train_classifier(pictures, labels, seed=3) for _ in range(2)]
    assert torch.equal(torch.random.get_rng_state(), before)
    one, other = (model.state_dict() for model in models)
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert torch.equal(classes_of(models[0], pictures), labels)


def test_large_pictures_are_made_small_for_it() -> None:
    assert small(torch.full((2, 3, 256, 256), 7, dtype=torch.uint8)).shape == (2, 3, 32, 32)
    assert torch.equal(small(torch.full((2, 3, 8, 8), 7, dtype=torch.uint8)), torch.full((2, 3, 8, 8), 7))


ENDS = """if True:
    from itertools import cycle
    from dedloc_kit.learning.tasks.drawing.recognition import Recognition
    Recognition(None, lambda: cycle([type("Sample", (), {"label": ""})]), None, 10, None, 0)
    print("over", flush=True)
"""


@pytest.mark.child
def test_a_program_that_ends_does_not_wait_for_the_classifier() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr

    def end() -> None:
        raise RuntimeError("it ends")

    with pytest.raises(RuntimeError, match="it ends"):
        train_classifier(small(decode(torch.arange(30)[:, None] % 3)), torch.arange(30) % 3, 0, end)
