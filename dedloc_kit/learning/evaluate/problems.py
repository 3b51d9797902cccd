"""What a model is fine-tuned for: how samples become tokens, and predicted classes a score."""

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import eq
from statistics import fmean
from typing import Any, ClassVar

from dedloc_kit.learning.data.masking import IGNORED
from dedloc_kit.learning.data.text.plain import PlainTokenizer
from dedloc_kit.learning.evaluate.dataset import Example

OUTSIDE = "O"
_IOB2 = re.compile(r"O|[BI](-.+)?")
_OTHER_SCHEME = re.compile(r"[A-Z]-.+")


@dataclass(frozen=True)
class Sample:
    """An example as tokens."""

    input_ids: list[int]
    labels: list[int]
    """The number of the class of each token or, one number, of the text; IGNORED where there is none."""
    example: Example
    starts: dict[int, int] = field(default_factory=dict)
    """For words: where the first token of each is."""


class Problem(ABC):
    """A task with the model's tokenizer and the classes of the training samples.

    :ivar backend: the tokenizer of plain text, which cuts off what is too long
    """

    metric: ClassVar[str]
    head: ClassVar[str]
    """The class of transformers that puts a new output layer on the encoder."""

    def __init__(self, tokenizer: Any, max_length: int, train: Sequence[Example]) -> None:
        self.tokenizer = tokenizer
        self.backend = PlainTokenizer(tokenizer).backend
        self.backend.enable_truncation(max_length, direction=tokenizer.truncation_side)
        self.classes = sorted({name for example in train for name in self.names(example)})
        self._numbers = {name: number for number, name in enumerate(self.classes)}

    def number(self, name: str) -> int:
        """A class as the model knows it; IGNORED if no training sample has it."""
        return self._numbers.get(name, IGNORED)

    @staticmethod
    @abstractmethod
    def check(text: Any, label: Any) -> Example | None:
        """An example from what the columns hold, none if it is empty; raises ValueError with what is wrong."""

    @staticmethod
    @abstractmethod
    def names(example: Example) -> list[str]:
        """The classes that occur in an example."""

    @abstractmethod
    def encode(self, example: Example) -> Sample:
        """The example as at most `max_length` tokens; what is longer is cut off."""

    @abstractmethod
    def decode(self, sample: Sample, predicted: list[int]) -> Any:
        """What the predicted classes, as many as the model gives, mean in the form of the example's label."""

    @staticmethod
    @abstractmethod
    def score(truth: list[Any], predicted: list[Any]) -> float:
        """How many labels are right, from 0 to 1."""


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


class Ner(Problem):
    metric = "F1"
    head = "AutoModelForTokenClassification"

    @staticmethod
    def check(text: Any, label: Any) -> Example | None:
        """Words and one tag for each, in IOB2; a bare type, such as `TIM`, is read as `I-TIM`."""
        if not isinstance(text, list) or not all(isinstance(word, str) for word in text):
            raise ValueError("the text is not a list of words; name the column that holds one")
        if not isinstance(label, list) or len(label) != len(text):
            raise ValueError("there is not one tag for each word; name the column that holds them")
        return Example(text, [_iob2(tag) for tag in label]) if text else None

    @staticmethod
    def names(example: Example) -> list[str]:
        return list(example.label)

    def encode(self, example: Example) -> Sample:
        """The first subword of a word carries its tag (Devlin et al. 2019, section 5.3)."""
        encoded = self.backend.encode(example.text, is_pretokenized=True)
        starts: dict[int, int] = {}
        for position, word in enumerate(encoded.word_ids):
            if word is not None:
                starts.setdefault(word, position)
        labels = [IGNORED] * len(encoded.ids)
        for word, position in starts.items():
            labels[position] = self.number(example.label[word])
        return Sample(encoded.ids, labels, example, starts)

    def decode(self, sample: Sample, predicted: list[int]) -> list[str]:
        """A tag for each word; one that was cut off or has no subword is outside."""
        words = range(len(sample.example.text))
        return [self.classes[predicted[sample.starts[word]]] if word in sample.starts else OUTSIDE for word in words]

    @staticmethod
    def score(truth: list[Any], predicted: list[Any]) -> float:
        """The F1 over all entities, of which type and borders must be right, as CoNLL counts them."""
        from seqeval.metrics import f1_score

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns where there is no entity at all
            return float(f1_score(truth, predicted, zero_division=0))


def _iob2(tag: Any) -> str:
    if not isinstance(tag, str):
        raise ValueError(
            f"the tag {tag!r:.40} is no name; put the names of the tags into the dataset's features or, beside a "
            'local dataset, into a file labels.json such as {"ner_tags": ["O", "B-PER", "I-PER"]}'
        )
    if _IOB2.fullmatch(tag):
        return tag
    if _OTHER_SCHEME.fullmatch(tag):
        raise ValueError(f"the tag {tag!r:.40} is not IOB2; rename the tags to O, B-TYPE and I-TYPE")
    return f"I-{tag}"


PROBLEMS: dict[str, type[Problem]] = {"ner": Ner, "classification": Classification}
