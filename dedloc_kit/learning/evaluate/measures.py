"""What models are scored by without training: the likelihood of text, and which of two sentences is the likelier one.

Of held-out text the score is bits per byte: both the bits and the bytes are of the raw text, so that a vocabulary does
not matter. Of pairs it is the share of those whose right sentence is the likelier one.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any, ClassVar, Literal

from dedloc_kit.display.human import count
from dedloc_kit.learning.data.text.plain import PlainTokenizer
from dedloc_kit.learning.evaluate.dataset import Example, held_out_split, read_examples, some, source_of
from dedloc_kit.learning.evaluate.display import Display
from dedloc_kit.learning.evaluate.heldout import documents, drawn, excerpts, pair, words
from dedloc_kit.learning.evaluate.likelihood import Query, causal_queries, masked_queries
from dedloc_kit.learning.evaluate.pretrained import Kind, Pretrained
from dedloc_kit.learning.evaluate.report import percent
from dedloc_kit.learning.evaluate.settings import LikelihoodSettings
from dedloc_kit.run.config import RunConfig

PARTS = 10
"""The spread is the one between so many parts of the samples."""
PAIRS = 1000
_NOISE = 1e-3
"""Two sentences of which one is likelier by less are equally likely: a sum depends so much on the rows beside it."""


@dataclass(frozen=True)
class Score:
    mean: float
    """Over all samples, each with its own weight."""
    parts: list[float]
    """Of each tenth of the samples."""
    per_word: float | None = None
    """Of text: the perplexity of a word (see `heldout.words`)."""


Ask = Callable[[Sequence[Query], int], list[float]]
"""The model's sums for the queries of so many owners (see `likelihood.nats`)."""


@dataclass
class _Total:
    nats: float = 0.0
    bytes: int = 0
    words: int = 0

    def add(self, text: str, value: float) -> None:
        self.nats += value
        self.bytes += len(text.encode())
        self.words += len(words(text))

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.bytes

    @property
    def perplexity_per_word(self) -> float:
        return math.exp(min(self.nats / self.words, 700))  # more is no float


class Measure(ABC):
    """Samples on which models are scored, the same for all of them."""

    better: ClassVar[Literal[1, -1]]
    """1 if a higher score is the better one, else -1."""
    kinds_compare: ClassVar[bool]
    """Whether causal and masked models can be compared by it."""
    samples: dict[str, int]
    """How many there are, by what they are."""

    @abstractmethod
    def __init__(self, settings: LikelihoodSettings, run: RunConfig | None, longest: int, display: Display) -> None:
        """Read the samples; raises UserError for what the person can put right.

        :param longest: so many tokens all models take
        """

    @abstractmethod
    def metric(self, kind: Kind) -> str:
        """What is scored, for models of a kind."""

    @abstractmethod
    def score(self, name: str, pretrained: Pretrained, ask: Ask) -> Score:
        """What a model scores, whose sums `ask` gives."""

    @abstractmethod
    def shown(self, score: float | None) -> str:
        """A score or a spread for people."""


class Text(Measure):
    """Held-out text: fewer bits are better."""

    better = -1
    kinds_compare = False

    def __init__(self, settings: LikelihoodSettings, run: RunConfig | None, longest: int, display: Display) -> None:
        self.settings = settings
        self.longest = longest
        self.display = display
        where, self.documents = documents(settings, run, display.warn)
        self.samples = {
            "documents": len(self.documents),
            "bytes": sum(len(text.encode()) for text in self.documents),
        }
        display.line(f"{count(self.samples['documents'], 'document')}, {self.samples['bytes']:,} bytes of {where}")

    def metric(self, kind: Kind) -> str:
        return "bits per byte" if kind == "causal" else "bits per byte (pseudo)"

    def score(self, name: str, pretrained: Pretrained, ask: Ask) -> Score:
        self._tell_what_is_changed(name, pretrained.tokenizer)
        predicted, queries = (self._whole if pretrained.kind == "causal" else self._words)(pretrained)
        sums = ask(list(queries), len(predicted))
        parts: dict[int, _Total] = {}
        for (document, text), value in zip(predicted, sums, strict=True):
            parts.setdefault(document % PARTS, _Total()).add(text, value)
        whole = _Total(*(sum(column) for column in zip(*map(astuple, parts.values()), strict=True)))
        return Score(whole.bits_per_byte, [part.bits_per_byte for part in parts.values()], whole.perplexity_per_word)

    def _whole(self, pretrained: Pretrained) -> tuple[list[tuple[int, str]], Iterator[Query]]:
        """What is predicted, each with the number of its document, and the queries for it: all of the text."""
        queries = causal_queries(pretrained.tokenizer, self.documents, pretrained.max_length)
        return list(enumerate(self.documents)), queries

    def _words(self, pretrained: Pretrained) -> tuple[list[tuple[int, str]], Iterator[Query]]:
        """The same for the words that were drawn, each in its excerpt of a document."""
        size = self.longest - 2  # beside the tokens around it
        pieces = [(number, piece) for number, text in enumerate(self.documents) for piece in excerpts(text, size)]
        spans = [words(piece) for _, piece in pieces]
        hidden = drawn([len(found) for found in spans], self.settings.words)
        predicted = [
            (document, piece[slice(*found[number])])
            for (document, piece), found, numbers in zip(pieces, spans, hidden, strict=True)
            for number in numbers
        ]
        asked = [(piece, numbers) for (_, piece), numbers in zip(pieces, hidden, strict=True) if numbers]
        return predicted, masked_queries(pretrained.tokenizer, asked, pretrained.max_length)

    def shown(self, score: float | None) -> str:
        return "-" if score is None else f"{score:.4f}"

    def _tell_what_is_changed(self, name: str, tokenizer: Any) -> None:
        plain = PlainTokenizer(tokenizer)
        changed = sum(
            "".join(tokenizer.decode(plain.ids(text), skip_special_tokens=True).split()) != "".join(text.split())
            for text in self.documents
        )
        if changed:
            self.display.warn(
                f"the tokenizer of {name} does not give back {changed} of {len(self.documents)} documents as they were "
                "(case, accents, unknown characters): it has less to predict, which flatters it"
            )


class Pairs(Measure):
    """Minimal pairs: more right ones are better."""

    better = 1
    kinds_compare = True

    def __init__(self, settings: LikelihoodSettings, run: RunConfig | None, longest: int, display: Display) -> None:
        source, wrong = source_of(settings)
        split, shards = held_out_split(source, display.warn)
        read = read_examples(source, wrong, split, shards, pair, display.warn)
        self.pairs: list[Example] = some(read, settings.samples or PAIRS)
        self.samples = {"pairs": len(self.pairs)}
        display.line(f"{count(len(self.pairs), 'pair')} of {source.dataset}, split '{split}'")

    def metric(self, kind: Kind) -> str:
        return "right pairs in %"

    def score(self, name: str, pretrained: Pretrained, ask: Ask) -> Score:
        texts = [sentence for example in self.pairs for sentence in (example.text, example.label)]
        if pretrained.kind == "causal":
            sums = ask(list(causal_queries(pretrained.tokenizer, texts, pretrained.max_length)), len(texts))
        else:
            asked = [(text, range(len(words(text)))) for text in texts]
            owners = sum(len(numbers) for _, numbers in asked)
            found = iter(ask(list(masked_queries(pretrained.tokenizer, asked, pretrained.max_length)), owners))
            sums = [sum(next(found) for _ in numbers) for _, numbers in asked]
        right = [wrong - good > _NOISE for good, wrong in zip(sums[::2], sums[1::2], strict=True)]
        scores = [sum(part) / len(part) for number in range(PARTS) if (part := right[number::PARTS])]
        return Score(sum(right) / len(right), scores)

    def shown(self, score: float | None) -> str:
        return percent(score)
