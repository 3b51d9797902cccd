"""The classification of texts, such as news by topic, scored by accuracy."""

from operator import eq
from statistics import fmean
from typing import Any

from dedloc_kit.learning.evaluate.dataset import Example
from dedloc_kit.learning.evaluate.problem import Problem, Sample


class Classification(Problem):
    metric = "accuracy"
    head = "AutoModelForSequenceClassification"

    @staticmethod
    def check(text: Any, label: Any) -> Example | None:
        """A text and its class; a class that has a number and no name goes by its number."""
        if not isinstance(text, str):
            raise ValueError(f"there is {type(text).__name__}, not text; name the column that holds the text")
        if isinstance(label, float) or not isinstance(label, str | int):
            raise ValueError(f"the class {label!r:.40} is neither a name nor a number; name the column of the classes")
        return Example(text, str(label)) if text.strip() else None

    @staticmethod
    def names(example: Example) -> list[str]:
        return [example.label]

    def encode(self, example: Example) -> Sample:
        return Sample(self.backend.encode(example.text).ids, [self.number(example.label)], example)

    def decode(self, sample: Sample, predicted: list[int]) -> str:
        return self.classes[predicted[0]]

    @staticmethod
    def score(truth: list[Any], predicted: list[Any]) -> float:
        """The share of texts whose class is right."""
        return fmean(map(eq, truth, predicted))
