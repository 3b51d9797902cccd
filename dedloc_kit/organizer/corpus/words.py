"""Splits texts of any script into words, as arrays of hashes.

In a script without spaces (Han, kana, Thai, Khmer ...) each character is a word. Case and punctuation do not count. All
texts of a batch are split at once by numpy.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

UNSPACED = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19DF), (0x1A20, 0x1AAF), (0x1B00, 0x1B7F)),
    *((0x3040, 0x312F), (0x31A0, 0x31BF), (0x3400, 0x4DBF), (0x4E00, 0xA48F), (0xA980, 0xA9FF), (0xAA60, 0xAA7F)),
    *((0xF900, 0xFAFF), (0xFF66, 0xFF9D)),
)
"""Code points of Thai, Lao, Burmese, Khmer, Tai, Balinese, kana, Bopomofo, Han, Yi and Javanese."""
_IDEOGRAPHS, _END = 0x20000, 0x40000
"""Beyond the first: rare Han. Code points beyond the second count as its last one."""
_BETWEEN, _ALONE, _DIGIT, _LETTER = range(4)
"""Kinds of characters: between words, words by themselves, and in words; those with letters are odd."""
_JOINERS = "\u200c\u200d"
_BASE = 0x9E3779B97F4A7C15
"""Odd, so that it has an inverse modulo 2**64."""


@dataclass(frozen=True)
class Words:
    """The words of a batch of texts, one after the other."""

    hashes: Hashes
    lengths: NDArray[np.int64]
    """In characters."""
    letters: NDArray[np.bool_]
    """Whether it has a letter."""
    alone: NDArray[np.bool_]
    """Whether it is a character of a script without spaces."""
    offsets: NDArray[np.int64]
    """Of each text's first word; one more, the number of words, stands at the end."""

    def of(self, text: int) -> "Words":
        """Those of one text."""
        part = slice(self.offsets[text], self.offsets[text + 1])
        ends = np.array([0, part.stop - part.start])
        return Words(self.hashes[part], self.lengths[part], self.letters[part], self.alone[part], ends)


def words_of(texts: Sequence[str]) -> Words:
    """The words of each text; needs about 60 bytes of memory a character."""
    kind_of, value_of = _tables()
    codes = np.frombuffer("\n".join([*texts, ""]).encode("utf-32-le", "surrogatepass"), dtype="<u4")
    kinds = kind_of.take(codes, mode="clip")
    alone, inside = kinds == _ALONE, kinds >= _DIGIT
    begins, ends = alone.copy(), np.zeros(len(codes) + 1, dtype=np.bool_)
    begins[1:] |= inside[1:] & ~inside[:-1]
    begins[:1] |= inside[:1]
    ends[1:] = alone
    ends[1:-1] |= inside[:-1] & ~inside[1:]
    first, last = np.flatnonzero(begins), np.flatnonzero(ends)
    powers, inverses = _powers(1 << len(codes).bit_length())
    sums = _sums(value_of.take(codes, mode="clip") * powers[: len(codes)])
    letters = _sums(kinds & 1)
    return Words(
        mixed((sums[last] - sums[first]) * inverses[first]),
        last - first,
        letters[last] > letters[first],
        alone[first],
        np.searchsorted(first, np.cumsum([0, *(len(text) + 1 for text in texts)])),
    )


def grams(words: Words, length: int) -> tuple[Hashes, NDArray[np.int64]]:
    """Hashes of all runs of `length` words, and the offset of each text's first, with their number at the end. A text
    with fewer words has one run, of all of them."""
    counts = np.diff(words.offsets)
    starts, total = words.offsets[:-1], len(words.hashes)
    found = np.zeros(total, dtype=np.uint64)
    for place in range(min(length, total)):
        found[: total - place] *= np.uint64(_BASE)
        found[: total - place] += words.hashes[place:]
    whole = np.arange(total) <= np.repeat(words.offsets[1:] - length, counts)
    for text in np.flatnonzero((counts > 0) & (counts < length)):
        part = words.hashes[starts[text] : starts[text] + counts[text]]
        places = np.arange(1, len(part) + 1, dtype=np.uint64)
        found[starts[text]] = np.bitwise_xor.reduce(mixed((part + places).astype(np.uint64)))
        whole[starts[text]] = True
    return mixed(found[whole]), _sums(whole)[words.offsets]


def mixed(values: Hashes) -> Hashes:
    """Hashes of integers: the finalizer of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _sums(values: NDArray[Any]) -> NDArray[Any]:
    """Exclusive prefix sums, and the sum of all at the end."""
    kind = np.uint64 if values.dtype == np.uint64 else np.int64
    sums = np.zeros(len(values) + 1, dtype=kind)
    np.cumsum(values, out=sums[1:], dtype=kind)
    return sums


@cache
def _tables() -> tuple[NDArray[np.uint8], Hashes]:
    """The kind of each code point, and a hash of its lower case."""
    kinds, lower = np.zeros(_END, dtype=np.uint8), np.arange(1, _END + 1, dtype=np.uint64)
    kind_of = {"L": _LETTER, "M": _LETTER, "N": _DIGIT}
    for code in range(_IDEOGRAPHS):
        character = chr(code)
        kinds[code] = kind_of.get(unicodedata.category(character)[0], _BETWEEN)
        if len(small := character.lower()) == 1:
            lower[code] = ord(small) + 1
    for character in _JOINERS:
        kinds[ord(character)] = _LETTER
    for begin, end in UNSPACED:
        block = kinds[begin : end + 1]
        block[block == _LETTER] = _ALONE
    kinds[_IDEOGRAPHS:] = _ALONE
    kinds[-1] = _BETWEEN
    return kinds, mixed(lower)


@cache
def _powers(size: int) -> tuple[Hashes, Hashes]:
    """Powers of a number modulo 2**64, and their inverses."""
    found = []
    for base in (_BASE, pow(_BASE, -1, 2**64)):
        powers = np.full(size, base, dtype=np.uint64)
        powers[0] = 1
        found.append(np.multiply.accumulate(powers))
    return found[0], found[1]
