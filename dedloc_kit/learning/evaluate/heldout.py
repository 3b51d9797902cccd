"""The raw text that models are scored on: the same characters for all, whatever their tokenizers make of them."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.shards import Warn
from dedloc_kit.learning.data.sources.stream import in_order, texts
from dedloc_kit.learning.evaluate.dataset import Example, held_out_split
from dedloc_kit.learning.evaluate.settings import LikelihoodSettings
from dedloc_kit.run.config import RunConfig
from dedloc_kit.run.loading import local
from dedloc_kit.run.seeds import seed_of
from dedloc_kit.run.task import Source

DOCUMENTS = 200
MAX_CHARACTERS = 10_000
"""Characters of one document that count: a book is not to outweigh all the rest."""

_WORD = re.compile(r"\S{1,16}")


def words(text: str) -> list[tuple[int, int]]:
    """Where each word begins and ends: what stands between white space, cut after 16 characters.

    This is a rule about characters, so that it is the same for all tokenizers; Thai and Chinese have no spaces.
    """
    return [match.span() for match in _WORD.finditer(text)]


def documents(settings: LikelihoodSettings, run: RunConfig | None, warn: Warn) -> tuple[str, list[str]]:
    """Held-out texts, and where they come from in words; raises UserError if none is named or it holds none."""
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


def excerpts(text: str, size: int) -> Iterator[str]:
    """The text in pieces of whole words (see `words`) of at most `size` bytes, at least those of one word."""
    start = end = 0
    for first, last in words(text):
        if end and len(text[start:last].encode()) > size:
            yield text[start:end]
            start = first
        elif not end:
            start = first
        end = last
    if end:
        yield text[start:end]


def drawn(counts: Sequence[int], wanted: int) -> list[list[int]]:
    """For each excerpt, of which `counts` says how many words it has, the words that were drawn, the same each time."""
    total = sum(counts)
    generator = np.random.default_rng(seed_of("evaluation", "hidden words"))
    numbers = np.sort(generator.choice(total, size=min(wanted, total), replace=False))
    ends = np.cumsum(counts)
    found: list[list[int]] = [[] for _ in counts]
    for number in numbers.tolist():
        excerpt = int(np.searchsorted(ends, number, side="right"))
        found[excerpt].append(number - int(ends[excerpt]) + counts[excerpt])
    return found


def pair(right: Any, wrong: Any) -> Example | None:
    """A right sentence as the text and a wrong one as the label; a pair of the same ones tells nothing.

    Raises ValueError with what is wrong.
    """
    for sentence in (right, wrong):
        if not isinstance(sentence, str) or not sentence.strip():
            raise ValueError(f"there is {sentence!r:.40}, no sentence; name the columns of the right and the wrong one")
    return Example(right, wrong) if right != wrong else None
