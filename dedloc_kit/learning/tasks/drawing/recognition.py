"""How many drawings show what their captions say, as a classifier sees them that is trained beside the evaluations."""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, TimeoutError
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dedloc_kit.learning.data.pictures.codes import Captioned
from dedloc_kit.learning.tasks.drawing.classifier import classes_of, small, train_classifier
from dedloc_kit.learning.tasks.drawing.generation import Drawn, generate
from dedloc_kit.learning.tasks.drawing.held_out import HeldOut
from dedloc_kit.learning.tasks.drawing.transformer import DrawingTransformer

RECOGNISED, REAL_RECOGNISED = "drawings recognised", "real pictures recognised"
UNTOLD_RECOGNISED = "drawings recognised without caption"

_PATIENCE = 60.0
"""Seconds that an evaluation waits for the classifier; the next one may have it."""
_AT_ONCE = 64
_log = logging.getLogger(__name__)

Decode = Callable[[Tensor], Tensor]
"""Pictures uint8 [pictures, 3, size, size] of codes int64 [pictures, codes]."""


class _Known(NamedTuple):
    """A classifier, and what there is to ask it of."""

    classifier: nn.Module
    captions: Tensor
    truth: Tensor
    """The class of each of these captions' pictures."""
    real: float
    """The share of these pictures, decoded, that it recognises."""


class Recognition:
    """Trains the classifier, in a thread of its own, and asks it.

    :param held_out: the first of them whose classes the training samples have are drawn
    :param learned: training samples, for the classifier; read in the thread
    :param count: captions to draw
    """

    def __init__(
        self,
        held_out: HeldOut,
        learned: Callable[[], Iterable[Captioned]],
        decode: Decode,
        count: int,
        how: Drawn,
        seed: int,
    ) -> None:
        self._held_out, self._learned, self._decode = held_out, learned, decode
        self._count, self._how, self._seed = count, how, seed
        self._known: Future[_Known | None] = Future()
        threading.Thread(target=self._learn, name="classifier").start()

    def shares(self, model: DrawingTransformer, patience: float = _PATIENCE) -> dict[str, float]:
        """What of the drawings, with captions and without, and of the real pictures is recognised.

        Nothing while the classifier is not trained, or where the training samples are not of two classes.
        """
        try:
            known = self._known.result(patience)
        except TimeoutError:
            _log.info("the classifier of drawings is not trained yet")
            return {}
        if known is None:
            return {}
        nothing = model.shape.padded([[]]).expand_as(known.captions)
        drawn, untold = (
            self._recognised(known, generate(model, captions, self._how, self._seed))
            for captions in (known.captions, nothing)
        )
        return {RECOGNISED: drawn, UNTOLD_RECOGNISED: untold, REAL_RECOGNISED: known.real}

    def _recognised(self, known: _Known, codes: Tensor) -> float:
        return _share(known.classifier, self._small(codes), known.truth)

    def _learn(self) -> None:
        try:
            self._known.set_result(self._trained())
        except Exception as error:
            _log.warning("no classifier of drawings: %s", error)
            self._known.set_result(None)

    def _trained(self) -> _Known | None:
        samples = []
        for sample in self._learned():
            _go_on()
            if sample.label:
                samples.append(sample)
        classes = sorted({sample.label for sample in samples})
        held_out = self._held_out
        asked = [number for number, label in enumerate(held_out.labels) if label in classes][: self._count]
        if len(classes) < 2 or not asked:
            return None
        codes = torch.stack([torch.from_numpy(sample.codes.astype("int64")) for sample in samples])
        labels = _numbers([sample.label for sample in samples], classes)
        classifier = train_classifier(self._small(codes), labels, self._seed, _go_on)
        truth = _numbers([held_out.labels[number] for number in asked], classes)
        real = _share(classifier, self._small(held_out.codes[asked]), truth)
        return _Known(classifier, held_out.captions[asked], truth, real)

    def _small(self, codes: Tensor) -> Tensor:
        found = []
        for some in codes.split(_AT_ONCE):
            _go_on()
            found.append(small(self._decode(some)))
        return torch.cat(found)


def _go_on() -> None:
    """Raise if the program ends meanwhile: it waits for its threads, and one that it does not wait for may crash it."""
    if not threading.main_thread().is_alive():
        raise RuntimeError("the program ends")


def _numbers(labels: Sequence[str], classes: list[str]) -> Tensor:
    return torch.tensor([classes.index(label) for label in labels])


def _share(classifier: nn.Module, pictures: Tensor, truth: Tensor) -> float:
    return float((classes_of(classifier, pictures) == truth).double().mean())
