"""The languages that open datasets have text of: found by code or name, each with how much text there is."""

import csv
import difflib
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.text.sentences import LANGUAGE_CODE

_TABLE = Path(__file__).with_name("languages.tsv")
"""A row for each language and script of FineWeb-2 whose language is known, and one for English."""
_LONGEST = 80
"""Characters of a name that is looked up; the longest in the table has 60."""
_MOST = 50
"""Languages of one run."""
_NEAREST = 3


@dataclass(frozen=True)
class Language:
    """A language in one script."""

    subset: str
    """ISO 639-3 and script, such as `swh_Latn`; FineWeb-2 calls it so."""
    codes: tuple[str, ...]
    """What else it is called: ISO 639-1, a macro-language that it stands for, older codes."""
    names: tuple[str, ...]
    """In English."""
    words: float
    """In FineWeb-2 (English: in FineWeb's sample), as counted there."""
    bytes: float
    """Of UTF-8 in FineWeb-2."""
    has_test: bool
    """Whether FineWeb-2 has a split `test` of it."""
    bible: float
    """Share of FineWeb-2's text that is the Bible; 0 where that is not known."""
    in_wikipedia: float
    """Share of FineWeb-2's text that is Wikipedia; 0 where that is not known."""
    wikipedia: str
    """Its code in `wikimedia/wikipedia`; empty: there is none."""
    wikipedia_bytes: float
    hplt: str
    """Its subset in `HPLT/HPLT2.0_cleaned`; empty: there is none."""

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def code(self) -> str:
        """ISO 639-1 if there is one, else 639-3."""
        return next((code for code in self.codes if len(code) == 2), self.subset[:3])


@cache
def languages() -> tuple[Language, ...]:
    """All there are, those with the most text first."""
    lines = (line for line in _TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return tuple(sorted(map(_language, rows), key=lambda language: (-language.words, language.subset)))


def find_languages(asked: str) -> tuple[Language, ...]:
    """The languages of a list such as `sw,yo`, each once. Raises UserError as `find_language`."""
    parts = asked.split(",", _MOST)
    if len(parts) > _MOST:
        raise UserError(f"a run learns {_MOST} languages at most; name fewer with --language")
    return tuple(dict.fromkeys(find_language(part) for part in parts))


def find_language(asked: str) -> Language:
    """The language with that code of ISO 639-1 or 639-3, subset of FineWeb-2 or English name.

    Of several scripts it is the one with the most text. Raises UserError with the three nearest if there is none.
    """
    key = _key(asked[: _LONGEST + 1])
    if not key:
        raise UserError("--language is empty; give a code or an English name, such as sw or Swahili")
    if len(asked) > _LONGEST:
        raise UserError(f"the language '{_shown(asked)}' has no such long name; give its code, such as sw")
    if (found := _by_key().get(key)) is not None:
        return found
    nearest = ", ".join(f"{language.name} ({language.code})" for language in _nearest(key))
    raise UserError(
        f"no dataset known here has a language '{_shown(asked)}'; the nearest are {nearest}; or name text of your own "
        "with --dataset"
    )


def are_known(asked: str) -> bool:
    """Whether all languages of a list are in the table."""
    try:
        return bool(find_languages(asked))
    except UserError:
        return False


def language_code(asked: str) -> str:
    """ISO 639 code of the first language of a list; a code that is not in the table is taken as it is.

    Raises UserError as `find_language` for what is no code either.
    """
    try:
        return find_languages(asked)[0].code
    except UserError:
        if re.fullmatch(LANGUAGE_CODE, asked) is None:
            raise
        return asked


def other_scripts(language: Language) -> list[Language]:
    """The same language in other scripts."""
    code = language.subset.partition("_")[0]
    return [each for each in languages() if each.subset.partition("_")[0] == code and each != language]


def _language(row: dict[str, str]) -> Language:
    def share(column: str) -> float:
        return float(row[column] or 0) / 100

    return Language(
        subset=row["subset"],
        codes=tuple(code for code in row["codes"].split(",") if code),
        names=tuple(row["names"].split("|")),
        words=float(row["words"]),
        bytes=float(row["bytes"]),
        has_test=row["test"] == "1",
        bible=share("bible"),
        in_wikipedia=share("in_wikipedia"),
        wikipedia=row["wikipedia"],
        wikipedia_bytes=float(row["wikipedia_mb"] or 0) * 1e6,
        hplt=row["subset"] if row["hplt"] == "1" else row["hplt"],
    )


@cache
def _by_key() -> dict[str, Language]:
    """Codes come before names, languages with more text before others."""
    found: dict[str, Language] = {}
    for language in languages():
        for code in (language.subset, language.subset[:3], *language.codes):
            found.setdefault(_key(code), language)
    for language in languages():
        for name in _names(language):
            found.setdefault(_key(name), language)
    return found


def _names(language: Language) -> Iterator[str]:
    for name in language.names:
        yield name
        yield name.partition(" (")[0]


def _nearest(key: str) -> list[Language]:
    known = _by_key()
    close = difflib.get_close_matches(key, known, n=4 * _NEAREST, cutoff=0.0)
    return list(dict.fromkeys(known[name] for name in close))[:_NEAREST]


def _key(name: str) -> str:
    """Neither case nor accents count, nor whether the parts of a name are joined by a dash."""
    letters = unicodedata.normalize("NFKD", name.casefold())
    return "".join(letter for letter in letters if not unicodedata.combining(letter)).replace("-", "_").strip()


def _shown(asked: str) -> str:
    short = asked if len(asked) <= _LONGEST else f"{asked[:20]}..."
    return short if short.isprintable() else ascii(short)[1:-1]
