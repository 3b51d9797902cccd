"""Finds held-out text in the training text, by runs of words."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dedloc_kit.organizer.corpus.words import Hashes, Words, grams, words_of

LENGTH = 13
"""Words in a run; an equal run is no chance (Brown et al. 2020, appendix C)."""
SHARE = 0.5
"""Minimal share of shared runs, of the document's or of a held-out document's."""
MOST_RUNS = 2**23


@dataclass(frozen=True)
class HeldOut:
    """Runs of words of held-out documents, at most about `MOST_RUNS`; 12 bytes of memory each."""

    runs: Hashes
    """Ascending, each once."""
    documents: NDArray[np.uint32]
    """The first document with each run."""
    sizes: NDArray[np.int64]
    """Runs of each document."""
    whole: bool = True
    """Whether no document was left out."""

    @classmethod
    def of(cls, texts: Iterable[str]) -> "HeldOut":
        runs, documents, number, total = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)], 0, 0
        whole = True
        for number, text in enumerate(texts):
            if total >= MOST_RUNS:
                whole = False
                break
            found = np.unique(grams(words_of([text]), LENGTH)[0])
            runs.append(found)
            documents.append(np.full(len(found), number, dtype=np.uint32))
            total += len(found)
        different, first = np.unique(np.concatenate(runs), return_index=True)
        owners = np.concatenate(documents)[first]
        return cls(different, owners, np.bincount(owners, minlength=number + 1), whole)

    def found_in(self, words: Words) -> list[bool]:
        """For each text, whether half of its runs are held out or it holds half of a held-out document's."""
        hashes, offsets = grams(words, LENGTH)
        if not len(self.runs) or not len(hashes):
            return [False] * (len(offsets) - 1)
        at = np.minimum(np.searchsorted(self.runs, hashes), len(self.runs) - 1)
        same = self.runs[at] == hashes
        return [self._is_in(at[begin:end][same[begin:end]], end - begin) for begin, end in pairwise(offsets.tolist())]

    def _is_in(self, at: NDArray[np.int64], runs: int) -> bool:
        """:param at: indices of the text's held-out runs
        :param runs: their number in the text, held out or not"""
        if not len(at):
            return False
        held, counts = np.unique(self.documents[np.unique(at)], return_counts=True)
        return bool(len(at) >= SHARE * runs or (counts >= SHARE * self.sizes[held]).any())
