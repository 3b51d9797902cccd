"""Named-entity recognition: a tag for each word, scored by the F1 of whole entities."""

import re
import warnings
from typing import Any

from dedloc_kit.learning.data.masking import IGNORED
from dedloc_kit.learning.evaluate.dataset import Example
from dedloc_kit.learning.evaluate.problem import Problem, Sample

OUTSIDE = "O"
_IOB2 = re.compile(r"O|[BI](-.+)?")
_OTHER_SCHEME = re.compile(r"[A-Z]-.+")


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
