"""What is kept of a document to find its copies: band keys of its MinHash, and its shingles.

With 18 bands of 7 values a pair of Jaccard similarity 0.8 shares a key with a probability of 0.986, one of 0.5 with
0.13 (Leskovec et al., Mining of Massive Datasets, 3.4).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from dedloc_kit.errors import UserError
from dedloc_kit.organizer.corpus.words import Hashes, Words, grams, mixed

SHINGLE = 5
"""Words in a shingle, as FineWeb has it (Penedo et al. 2024)."""
BANDS, ROWS = 18, 7
KEYS = 1 + BANDS
"""Of a document; the first is a hash of its text."""
_VALUES = 128
"""Of a MinHash: rensa is made for powers of two."""
_SEED = 42

Shingles = NDArray[np.uint32]


@dataclass(frozen=True)
class Sketches:
    """Of several documents."""

    keys: Hashes
    """`(KEYS, documents)`."""
    shingles: Shingles
    """Hashes in the order of the text, document after document. 32 bits suffice: of a million words one shingle in four
    thousand collides with one of another such document."""
    ends: NDArray[np.int64]
    """Of each document's shingles."""


def sketches_of(texts: Sequence[str], words: Words) -> Sketches:
    """:param words: of the texts"""
    from rensa import RMinHash

    hashes, offsets = grams(words, SHINGLE)
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(hashes, offsets, _VALUES, _SEED)
    values = np.array(matrix.to_rows(), dtype=np.uint64).reshape(len(texts), _VALUES)[:, : BANDS * ROWS]
    factors = mixed(np.arange(1, ROWS + 1, dtype=np.uint64)) | np.uint64(1)
    bands = mixed((values.reshape(len(texts), BANDS, ROWS) * factors).sum(axis=2, dtype=np.uint64))
    exact = np.array([int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) for text in texts], np.uint64)
    return Sketches(np.concatenate([exact[None], bands.T]), (hashes >> np.uint64(32)).astype(np.uint32), offsets[1:])


def similarity(one: Shingles, other: Shingles) -> float:
    """The Jaccard similarity of two documents: 1 if both are empty.

    :param one: shingles, each once and ascending
    """
    if len(one) == len(other) and np.array_equal(one, other):
        return 1.0
    both = np.concatenate([one, other])
    both.sort(kind="stable")  # two ascending runs are merged
    common = int((both[1:] == both[:-1]).sum())
    return common / (len(both) - common)


def check_rensa() -> None:
    """Raise UserError if rensa is not installed."""
    try:
        import rensa  # noqa: F401
    except ImportError:
        raise UserError(missing("rensa")) from None


def missing(package: str) -> str:
    """What to say where a package of the extra `corpus` is not installed."""
    return f"prepare corpus needs the package {package}; run pip install 'dedloc_kit[corpus]'"
