"""Finds exact and near copies of earlier documents, in bounded memory.

Documents with an equal key are compared by their shingles. A document is a copy if it is similar to an earlier one that
stays. Memory: 8 bytes for each document, and about 40 for each of `KEYS_AT_ONCE` keys.
"""

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dedloc_kit.organizer.corpus.sketch import Shingles, Sketches, similarity

SIMILAR = 0.7
"""Minimal Jaccard similarity of copies: pairs of 0.8 are copies, pairs below 0.6 are not."""
KEYS_AT_ONCE = 2**22
MOST_COMPARED = 64
"""Maximal number of documents with an equal key, none a copy of another, that a further one is compared with."""
UNIQUE = 2**32 - 1
"""In `Duplicates.of`: a document that stays."""
_OPEN = 64
"""Maximal number of open files of shingles."""


class Duplicates:
    """The copies among documents, by their numbers.

    :param values: `of` and `key`, in an array
    """

    def __init__(self, values: NDArray[np.uint32]) -> None:
        self.values = values
        self.of = values[0]
        """The earlier document that each is a copy of, or `UNIQUE`."""
        self.key = values[1]
        """Which key the two share; 0 if they are equal."""

    @classmethod
    def none(cls, documents: int) -> "Duplicates":
        values = np.zeros((2, documents), dtype=np.uint32)
        values[0] = UNIQUE
        return cls(values)

    @property
    def stay(self) -> NDArray[np.bool_]:
        return np.asarray(self.of == UNIQUE)


class SketchFiles:
    """Sketches in files that `write_sketches` has written; documents are numbered through all files."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        documents = [len(np.load(path.with_suffix(".ends.npy"), mmap_mode="r", allow_pickle=False)) for path in paths]
        self.starts = np.cumsum([0, *documents])
        """The number of each file's first document, and that of all."""
        self._open = lru_cache(_OPEN)(self._opened)

    def place(self, document: int) -> tuple[int, int]:
        """The file that holds a document, and which one it is there."""
        file = int(np.searchsorted(self.starts, document, side="right")) - 1
        return file, document - int(self.starts[file])

    def keys(self, number: int) -> Iterator[Any]:
        """A key of each document, file by file."""
        for path in self._paths:
            yield np.load(path.with_suffix(".keys.npy"), mmap_mode="r", allow_pickle=False)[number]

    def shingles(self, document: int) -> Shingles:
        """Those of one document, each once and ascending."""
        file, at = self.place(document)
        ends, shingles = self._open(file)
        return np.unique(shingles[ends[at - 1] if at else 0 : ends[at]])

    def _opened(self, file: int) -> tuple[Any, Any]:
        ends, shingles = (
            np.load(self._paths[file].with_suffix(f".{name}.npy"), mmap_mode="r", allow_pickle=False)
            for name in ("ends", "shingles")
        )
        return ends, shingles


def write_sketches(path: Path, sketches: Sequence[Sketches]) -> None:
    """Write the sketches of consecutive documents to files of this name."""
    before = np.cumsum([0, *(len(each.shingles) for each in sketches)])
    ends = np.concatenate([each.ends + begin for each, begin in zip(sketches, before, strict=False)])
    write_array(path.with_suffix(".ends.npy"), ends)
    write_array(path.with_suffix(".shingles.npy"), np.concatenate([each.shingles for each in sketches]))
    write_array(path.with_suffix(".keys.npy"), np.concatenate([each.keys for each in sketches], axis=1))


def write_array(path: Path, values: NDArray[Any]) -> None:
    """Write an array to a file, atomically."""
    temporary = path.with_name(f"{path.name}.partial")
    try:
        with temporary.open("wb") as file:
            np.save(file, values, allow_pickle=False)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def find_duplicates(files: SketchFiles, found: Duplicates, number: int, at_once: int = KEYS_AT_ONCE) -> None:
    """Add the copies among documents with an equal key to `found`. Idempotent.

    :param number: of the key
    :param at_once: about so many keys are in memory
    """
    parts = -(-int(files.starts[-1]) // at_once)
    for part in range(parts):
        for group in _sharing(files, found, number, part, parts):
            _compare(files, found, number, group)


def _sharing(files: SketchFiles, found: Duplicates, number: int, part: int, parts: int) -> Iterator[NDArray[np.int64]]:
    """Groups of documents that are no copies so far and have an equal key, each in ascending order.

    :param part: only keys that are this modulo `parts`
    """
    some_keys, some_documents = [], []
    for start, keys in zip(files.starts, files.keys(number), strict=False):
        chosen = found.of[start : start + len(keys)] == UNIQUE
        if parts > 1:
            chosen &= keys % np.uint64(parts) == part
        at = np.flatnonzero(chosen)
        some_keys.append(keys[at])
        some_documents.append(at + start)
    keys, documents = np.concatenate(some_keys), np.concatenate(some_documents)
    order = np.argsort(keys, kind="stable")
    keys, documents = keys[order], documents[order]
    borders = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1], [True]]))
    large = np.flatnonzero(np.diff(borders) > 1)
    for begin, end in zip(borders[large], borders[large + 1], strict=True):
        yield documents[begin:end]


def _compare(files: SketchFiles, found: Duplicates, number: int, group: NDArray[np.int64]) -> None:
    staying: list[tuple[int, Shingles]] = []
    for document in group.tolist():
        shingles = files.shingles(document)
        for earlier, others in staying:
            if similarity(shingles, others) >= SIMILAR:
                found.of[document], found.key[document] = earlier, number
                break
        else:
            if len(staying) < MOST_COMPARED:
                staying.append((document, shingles))
