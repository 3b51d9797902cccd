"""What an evaluation's task has to know: how samples become tokens, and classes a score."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dedloc_kit.learning.data.masking import IGNORED
from dedloc_kit.learning.data.text.plain import PlainTokenizer
from dedloc_kit.learning.evaluate.dataset import Example


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
