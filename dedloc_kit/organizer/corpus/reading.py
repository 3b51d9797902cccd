"""Reads a source once, judges each document by itself, and writes the good ones with their sketches, in parts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow
from pyarrow import parquet

from dedloc_kit.config.task import Source
from dedloc_kit.learning.data.sources.data_issues import Losses
from dedloc_kit.learning.data.sources.formats import MAX_TEXT
from dedloc_kit.learning.data.sources.shards import Shard
from dedloc_kit.learning.data.text.token_shards import write_tables
from dedloc_kit.organizer.corpus.duplicates import write_sketches
from dedloc_kit.organizer.corpus.held_out import HeldOut
from dedloc_kit.organizer.corpus.language import Identifier
from dedloc_kit.organizer.corpus.report import Display, Progress, Tally
from dedloc_kit.organizer.corpus.rules import Document, broken_rule, clean_lines
from dedloc_kit.organizer.corpus.sketch import Sketches, sketches_of
from dedloc_kit.organizer.corpus.words import words_of
from dedloc_kit.organizer.prepare_source import Rows, Sizes, Workplace

BATCH = 2**16
"""Characters of a batch: its arrays fit a processor's cache."""

_SCHEMA = pyarrow.schema([("text", pyarrow.string())])


class Cleaner:
    """Judges documents by themselves.

    :param languages: to keep, as `Identifier` names them; empty: all
    """

    def __init__(self, identifier: Identifier, languages: Sequence[str], held_out: HeldOut) -> None:
        self._identifier, self._languages, self._held_out = identifier, languages, held_out

    def clean(self, documents: Sequence[str], tally: Tally) -> list[str]:
        """The good documents, without bad lines."""
        cleaned, kept = list[str](), list[str]()
        for document in documents:
            text, lines = clean_lines(document)
            cleaned.append(text)
            for rule, line in lines:
                tally.remove_line(rule, line)
        words = words_of(cleaned)
        found = self._held_out.found_in(words)
        for number, text in enumerate(cleaned):
            reason = broken_rule(Document(text, words.of(number))) or self._unwanted(text, found[number], tally)
            if reason is None:
                kept.append(text)
            else:
                tally.remove(reason, text or documents[number])
        tally.read += len(documents)
        tally.characters += sum(map(len, kept))
        return kept

    def _unwanted(self, text: str, is_held_out: bool, tally: Tally) -> str | None:
        language = self._identifier.language(text)
        tally.identify(language)
        if self._languages and language not in self._languages:
            return f"in the language {language}"
        return "shares half of its text, or of a held-out document, with held-out text" if is_held_out else None


class Reading:
    """Reads one source.

    :param work: parts go to its subfolder `name`
    """

    def __init__(self, source: Source, files: Sequence[Shard], work: Workplace[Progress], name: str) -> None:
        self._source, self._files, self._work, self._name = source, files, work, name

    def read(
        self, progress: Progress, cleaner: Callable[[], Cleaner], display: Display, title: str, sizes: Sizes
    ) -> Progress:
        """Read the rest; a part is made of at least `sizes.file` characters."""
        losses = Losses(self._source.dataset, len(self._files), display.line)
        rows = Rows(self._source, self._files, progress, losses, display.line, sizes)
        while not progress.done:
            tally = Tally(progress)
            pieces = display.each(title, _pieces(rows, sizes.file))
            cleaned = (cleaner().clean(batch, tally) for batch in batches(pieces, BATCH))
            number = _write_part(part_path(self._work.folder / self._name, progress.parts), cleaned)
            if not tally.read:
                raise losses.nothing(self._source.column)
            made = vars(tally) | {"documents": progress.documents + number, "parts": progress.parts + bool(number)}
            progress = progress.model_copy(update=made | rows.reached(progress))
            self._work.save(self._name, progress)
        return progress


def part_path(folder: Path, number: int) -> Path:
    """The file with the texts of a part; its sketches lie beside it."""
    return folder / f"{number:05d}.parquet"


def _pieces(rows: Rows, size: int) -> Iterator[str]:
    """The documents of a part."""
    characters = 0
    while characters < size and not rows.over:
        for text in cut(rows.chunk()):
            yield text
            characters += len(text)


def cut(documents: Iterable[str]) -> Iterator[str]:
    """The same documents, but long ones in pieces: this bounds the memory."""
    for text in documents:
        for begin in range(0, len(text), MAX_TEXT):
            yield text[begin : begin + MAX_TEXT]


def batches(documents: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of texts with at most so many characters, but for a single longer one."""
    batch, characters = list[str](), 0
    for text in documents:
        if batch and characters + len(text) > size:
            yield batch
            batch, characters = [], 0
        batch.append(text)
        characters += len(text)
    if batch:
        yield batch


def _write_part(path: Path, groups: Iterable[list[str]]) -> int:
    """Write texts and their sketches; returns how many there are."""
    sketches: list[Sketches] = []

    def sketched() -> Iterator[list[str]]:
        for group in groups:
            if group:
                sketches.append(sketches_of(group, words_of(group)))
                yield group

    number = write_texts(sketched(), path)
    if number:
        write_sketches(path, sketches)
    return number


def write_texts(groups: Iterable[list[str]], path: Path) -> int:
    """Write texts to a Parquet file, each list as a row group; returns how many there are."""
    tables = (pyarrow.table({"text": group}, schema=_SCHEMA) for group in groups)
    return write_tables(tables, path, _SCHEMA, use_dictionary=False)


def read_texts(path: Path) -> Iterator[str]:
    """The texts of such a file."""
    with parquet.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            yield from file.read_row_group(group).column("text").to_pylist()
