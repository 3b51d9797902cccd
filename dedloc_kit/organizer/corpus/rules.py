"""The fixed rules for lines and documents, each with its source. All are pure functions.

The limits are the same for every language; rules about the length of words and lines skip scripts without spaces. They
come from C4 (Raffel et al. 2020), Gopher (Rae et al. 2021, table A1), RefinedWeb (Penedo et al. 2023), FineWeb and
FineWeb-2 (Penedo et al. 2024 and 2025).
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dedloc_kit.organizer.corpus.words import UNSPACED, Words, grams

_SCRIPT = re.compile("javascript", re.IGNORECASE)
_POLICY = re.compile(
    "terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies|lorem ipsum", re.IGNORECASE
)
_LONG = 1000
_WORD = re.compile(rf"[^\s{''.join(f'{chr(first)}-{chr(last)}' for first, last in UNSPACED)}]+")
_ENDS = frozenset(".!?…。！？｡।॥؟۔։။។༎།።፧᙮᠃᱾꓿\"'”’»)]）」』")
"""What a sentence ends with, in any script, or a quotation behind it."""
_BULLETS = tuple("•●○■□▪▫*-–—")
_ELLIPSES = ("...", "…")
_FEW_LINES = 5
"""Of fewer lines it says little how many end a sentence: a text that was cut is not worse."""


@dataclass(frozen=True)
class Rule:
    """A rule; a line or document that breaks it is removed."""

    name: str
    """What is wrong, as users read it."""
    source: str
    broken: Callable[..., bool]
    """Of a line (str) or a `Document`."""


@dataclass(frozen=True)
class Document:
    """A document as rules see it."""

    text: str
    words: Words
    """Of the text alone."""

    @cached_property
    def lines(self) -> list[str]:
        return [line for each in self.text.splitlines() if (line := each.strip())]

    @cached_property
    def paragraphs(self) -> list[str]:
        return [part for each in re.split(r"\n\s*\n", self.text) if (part := each.strip())]

    @cached_property
    def spaced(self) -> bool:
        """Whether most of it is in a script with spaces between words."""
        return 2 * int(self.words.alone.sum()) < len(self.words.alone)

    def repeated(self, length: int) -> float:
        """The share of characters in repeated runs of so many words."""
        if len(self.words.hashes) < length:
            return 0.0
        hashes, _ = grams(self.words, length)
        _, first = np.unique(hashes, return_index=True)
        again = np.ones(len(hashes), dtype=np.int8)
        again[first] = 0
        if not again.any():
            return 0.0
        covered = np.convolve(again, np.ones(length, dtype=np.int8)) > 0
        return float(self.words.lengths[covered].sum() / self.words.lengths.sum())

    def commonest(self, length: int) -> float:
        """The share of characters in the most frequent run of so many words, if it repeats."""
        if len(self.words.hashes) < length:
            return 0.0
        hashes, _ = grams(self.words, length)
        _, first, counts = np.unique(hashes, return_index=True, return_counts=True)
        most = int(counts.argmax())
        characters = self.words.lengths[first[most] : first[most] + length].sum()
        return float(counts[most] * characters / self.words.lengths.sum()) if counts[most] > 1 else 0.0


def _share(items: Sequence[str], test: Callable[[str], bool]) -> float:
    return sum(map(test, items)) / max(len(items), 1)


def _again(items: Sequence[str]) -> tuple[float, float]:
    """The share of repeated items, and of their characters."""
    more = Counter(items) - Counter(set(items))
    characters = sum(map(len, items))
    return more.total() / max(len(items), 1), sum(len(each) * n for each, n in more.items()) / max(characters, 1)


def _too_repetitive(document: Document) -> bool:
    # Repeated runs of 5 cover all longer ones, and 0.10 is the smallest limit.
    return document.repeated(5) > 0.10 and any(document.repeated(n) > (20 - n) / 100 for n in range(5, 11))


LINE_RULES = (
    Rule("no letter", "RefinedWeb", lambda line: not any(map(str.isalpha, line))),
    Rule("JavaScript", "C4", lambda line: _SCRIPT.search(line) is not None),
    Rule("terms of use, cookies or lorem ipsum", "C4", lambda line: _POLICY.search(line) is not None),
    Rule(
        f"a word of over {_LONG:,} characters",
        "C4",
        lambda line: len(line) > _LONG and max(map(len, _WORD.findall(line)), default=0) > _LONG,
    ),
)
DOCUMENT_RULES = (
    Rule("fewer than 50 words", "Gopher", lambda d: len(d.words.hashes) < 50),
    Rule(
        "words of under 2 or over 24 characters on average",
        "Gopher, with FineWeb-2's widest limits",
        lambda d: d.spaced and not 2 <= d.words.lengths.mean() <= 24,
    ),
    Rule("under 80 % of words with a letter", "Gopher", lambda d: d.words.letters.mean() < 0.8),
    Rule(
        "a # or an ellipsis for under 10 words",
        "Gopher",
        lambda d: max(d.text.count("#"), sum(map(d.text.count, _ELLIPSES))) > 0.1 * len(d.words.hashes),
    ),
    Rule(
        "over 90 % of lines with a bullet", "Gopher", lambda d: _share(d.lines, lambda s: s.startswith(_BULLETS)) > 0.9
    ),
    Rule(
        "over 30 % of lines with an ellipsis at the end",
        "Gopher",
        lambda d: _share(d.lines, lambda s: s.endswith(_ELLIPSES)) > 0.3,
    ),
    Rule(
        f"of {_FEW_LINES} lines or more 12 % or fewer with a sentence's end",
        "FineWeb",
        lambda d: d.spaced and len(d.lines) >= _FEW_LINES and _share(d.lines, lambda s: s[-1] in _ENDS) <= 0.12,
    ),
    Rule(
        "a new line for under 3.3 words", "FineWeb", lambda d: d.spaced and len(d.lines) - 1 > 0.3 * len(d.words.hashes)
    ),
    Rule(
        "lines that repeat: 30 % of them, or 20 % of the characters",
        "Gopher",
        lambda d: any(np.greater(_again(d.lines), (0.3, 0.2))),
    ),
    Rule(
        "paragraphs that repeat: 30 % of them, or 20 % of the characters",
        "Gopher",
        lambda d: any(np.greater(_again(d.paragraphs), (0.3, 0.2))),
    ),
    Rule(
        "2, 3 or 4 words that make up 20, 18 or 16 % of it",
        "Gopher",
        lambda d: any(d.commonest(n) > (24 - 2 * n) / 100 for n in (2, 3, 4)),
    ),
    Rule("5 to 10 words that repeat in 15 to 10 % of it", "Gopher", _too_repetitive),
)


def clean_lines(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The text without lines that break a rule, and the removed lines with their rule's name. Blank lines stay."""
    kept, removed = [], []
    for line in text.split("\n"):
        name = next((rule.name for rule in LINE_RULES if rule.broken(line)), None) if line.strip() else None
        if name is None:
            kept.append(line)
        else:
            removed.append((name, line))
    return ("\n".join(kept).strip() if removed else text.strip()), removed


def broken_rule(document: Document) -> str | None:
    """The name of the first rule that a document breaks."""
    return next((rule.name for rule in DOCUMENT_RULES if rule.broken(document)), None)
