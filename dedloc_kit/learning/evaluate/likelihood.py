"""`dedloc evaluate` without training: how likely held-out text is to a model, or which of two sentences is likelier.

The score of text is bits per byte: both are of the raw text, so that vocabularies do not matter. The score of pairs is
the share of those whose right sentence is the likelier one. The spread is the one between ten parts of the samples.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from dedloc_kit.config.loading import local
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import Source
from dedloc_kit.display.human import count
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.patience import Warn
from dedloc_kit.learning.data.sources.stream import in_order, texts
from dedloc_kit.learning.data.text.plain import PlainTokenizer
from dedloc_kit.learning.evaluate.dataset import Example, held_out_split, read_examples, some, source_of
from dedloc_kit.learning.evaluate.pretrained import Kind, Pretrained, opened
from dedloc_kit.learning.evaluate.queries import (
    Query,
    causal_queries,
    drawn,
    excerpts,
    masked_queries,
    negative_log_likelihood,
    words,
)
from dedloc_kit.learning.evaluate.report import Report, Row, shown
from dedloc_kit.learning.evaluate.session import Session
from dedloc_kit.learning.evaluate.settings import LikelihoodSettings

DOCUMENTS = 200
MAX_CHARACTERS = 10_000
"""Of one document, so that a book does not outweigh all the rest."""
PAIRS = 1000
PARTS = 10
_NOISE = 1e-3
"""Two sentences of which one is likelier by less are equally likely: a sum depends so much on the rows beside it."""

Ask = Callable[[Sequence[Query], int], list[float]]
"""Returns the model's sums for the queries of so many owners (see `queries.negative_log_likelihood`)."""


def evaluate(
    checkpoint: str,
    settings: LikelihoodSettings,
    session: Session,
    run: RunConfig | None = None,
    against: Sequence[str] = (),
) -> Report:
    """Score a model, and beside it others, on the same samples, and show the scores.

    :param run: of a checkpoint that is weights alone; its held-out data is the default for text

    Raises UserError for what the person can put right.
    """
    names = [checkpoint, *against]
    with opened(names, run, settings.max_length) as models, session:
        longest = min(model.max_length for model in models)
        of_text = settings.task == "text"
        measure = Text(settings, run, longest, session) if of_text else Pairs(settings, session)
        if of_text and len({model.kind for model in models}) > 1:
            kinds = ", ".join(f"{name}: {model.kind or 'none'}" for name, model in zip(names, models, strict=True))
            raise UserError(
                f"text tells nothing between causal and masked models ({kinds}); name models of one kind, or compare "
                "them with --task pairs"
            )
        metric = measure.metric(models[0].kind)
        rows = []
        for name, model in zip(names, models, strict=True):
            rows.append(row := _scored(name, model, measure, session))
            session.line(f"{name}: {shown(row.mean, metric)} on {session.where} after {row.seconds:.0f} s")
    ours, *others = rows
    return session.finish(
        Report(
            checkpoint=checkpoint,
            settings=settings.model_dump(mode="json"),
            samples=measure.samples,
            metric=metric,
            over="parts of the samples",
            trained=ours,
            against=dict(zip(against, others, strict=True)),
        )
    )


def _scored(name: str, pretrained: Pretrained, measure: "Text | Pairs", session: Session) -> Row:
    model = pretrained.language_model().to(session.device)
    pad = pretrained.tokenizer.pad_token_id or 0
    started = time.monotonic()

    def ask(queries: Sequence[Query], owners: int) -> list[float]:
        session.expect(len(queries))
        sums = negative_log_likelihood(model, queries, owners, pad, partial(session.advance, name), session.half)
        if not all(map(math.isfinite, sums)):
            raise UserError(f"{name} gives no finite probabilities; its training has diverged, or its file is damaged")
        return sums

    row = measure.score(name, pretrained, ask)
    return row.model_copy(update={"kind": pretrained.kind, "seconds": round(time.monotonic() - started, 1)})


class Text:
    """Held-out text.

    :ivar samples: how many there are, by what they are
    """

    def __init__(self, settings: LikelihoodSettings, run: RunConfig | None, longest: int, session: Session) -> None:
        """Read it; raises UserError for what the person can put right.

        :param longest: so many tokens all models take
        """
        self.settings = settings
        self.longest = longest
        self.session = session
        where, self.documents = documents(settings, run, session.warn)
        self.samples = {
            "documents": len(self.documents),
            "bytes": sum(len(text.encode()) for text in self.documents),
        }
        session.line(f"{count(self.samples['documents'], 'document')}, {self.samples['bytes']:,} bytes of {where}")

    def metric(self, kind: Kind | None) -> str:
        return "bits per byte" if kind == "causal" else "bits per byte (pseudo)"

    def score(self, name: str, pretrained: Pretrained, ask: Ask) -> Row:
        """Score a model, which `ask` queries."""
        self._tell_what_is_changed(name, pretrained.tokenizer)
        predicted, queries = (self._whole if pretrained.kind == "causal" else self._words)(pretrained)
        sums = ask(list(queries), len(predicted))
        texts = [text for _, text in predicted]
        parts: dict[int, list[int]] = {}
        for number, (document, _) in enumerate(predicted):
            parts.setdefault(document % PARTS, []).append(number)
        scores = [_bits_per_byte([texts[n] for n in part], [sums[n] for n in part]) for part in parts.values()]
        per_word = math.exp(min(sum(sums) / sum(len(words(text)) for text in texts), 700))  # more is no float
        return Row.of(scores, mean=_bits_per_byte(texts, sums), per_word=per_word)

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

    def _tell_what_is_changed(self, name: str, tokenizer: Any) -> None:
        plain = PlainTokenizer(tokenizer)
        changed = sum(
            "".join(tokenizer.decode(plain.ids(text), skip_special_tokens=True).split()) != "".join(text.split())
            for text in self.documents
        )
        if changed:
            self.session.warn(
                f"the tokenizer of {name} does not give back {changed} of {len(self.documents)} documents as they were "
                "(case, accents, unknown characters): it has less to predict, which flatters it"
            )


def _bits_per_byte(texts: Sequence[str], sums: Sequence[float]) -> float:
    return sum(sums) / math.log(2) / sum(len(text.encode()) for text in texts)


class Pairs:
    """Minimal pairs of sentences, as `Text`."""

    def __init__(self, settings: LikelihoodSettings, session: Session) -> None:
        source, wrong = source_of(settings)
        split, shards = held_out_split(source, session.warn)
        read = read_examples(source, wrong, split, shards, pair, session.warn)
        self.pairs: list[Example] = some(read, settings.samples or PAIRS)
        self.samples = {"pairs": len(self.pairs)}
        session.line(f"{count(len(self.pairs), 'pair')} of {source.dataset}, split '{split}'")

    def metric(self, kind: Kind | None) -> str:
        return "right pairs in %"

    def score(self, name: str, pretrained: Pretrained, ask: Ask) -> Row:
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
        return Row.of(scores, mean=sum(right) / len(right))


def documents(settings: LikelihoodSettings, run: RunConfig | None, warn: Warn) -> tuple[str, list[str]]:
    """Read held-out texts, and say where they come from; raises UserError if none is named or it holds none."""
    source = _source(settings, run, warn)
    where = f"{source.dataset}, split '{source.split}'"
    found = [
        text.strip()[:MAX_CHARACTERS]
        for text in islice(in_order(source, texts, warn=warn), settings.samples or DOCUMENTS)
    ]
    if not found:
        raise UserError(f"{where}: the column '{source.column}' is empty; name another with --column")
    return where, found


def _source(settings: LikelihoodSettings, run: RunConfig | None, warn: Warn) -> Source:
    if settings.dataset is not None:
        where = local(settings.dataset, Path())
        source = Source(dataset=where, subset=settings.subset, column=settings.column or "text")
        return source.model_copy(update={"split": held_out_split(source, warn)[0]})
    if run is None or run.data.evaluation is None:
        raise UserError("name a held-out text with --dataset, or with --run a run that has [data.evaluation]")
    return run.data.evaluation


def pair(right: Any, wrong: Any) -> Example | None:
    """Make an example of a right sentence, the text, and a wrong one, the label; none if they are the same.

    Raises ValueError with what is wrong.
    """
    for sentence in (right, wrong):
        if not isinstance(sentence, str) or not sentence.strip():
            raise ValueError(f"there is {sentence!r:.40}, no sentence; name the columns of the right and the wrong one")
    return Example(right, wrong) if right != wrong else None
