"""What a source holds as it is understood here: files per split, documents, and all that is odd, each in one line."""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.pictures.codes import Captioned
from dedloc_kit.learning.data.pictures.images import file_of, flaw
from dedloc_kit.learning.data.sources.formats import BadRow, not_text
from dedloc_kit.learning.data.sources.patience import Warn, is_transient, one_line
from dedloc_kit.learning.data.sources.reading import read_shard
from dedloc_kit.learning.data.sources.shards import Reader, Shard, find_splits, local_folder, strays
from dedloc_kit.learning.data.sources.splits import canonical, names_split
from dedloc_kit.learning.data.text.conversations import Conversation
from dedloc_kit.learning.data.text.tokens import Document
from dedloc_kit.roles.overlap import Fingerprints

ROWS = 1000
"""Of each file, at most."""
SHOWN, SHOWN_CHARACTERS = 3, 80
_TAIL = 1 << 20
_LOOKED_AT = 10_000
"""Characters of a document, of which its encoding is told."""
_SHORT, _LONG = 100, 1_000_000
"""Characters: fewer on average are lines rather than documents, and more whole books."""
_BEYOND_ASCII = re.compile(r"[^\0-\x7f]{2,}")
_LETTERS = re.compile(r"[^\W\d_]")
_LATIN1 = re.compile(r"[\u00c0-\u00ff]")
_CONTROLS = re.compile(r"[\x80-\x84\x86-\x9f]")
_READ_AS = ("cp1252", "cp1251")
_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{4}")


def _is_garbled(text: str) -> bool:
    """Whether a text was written in one encoding and read in another, as far as can be told."""
    if text.isascii():
        return False
    letters = _LETTERS.findall(text)
    if _CONTROLS.search(text) or 2 * len(_LATIN1.findall(text)) > len(letters) > 0:
        return True
    runs = _BEYOND_ASCII.findall(text)
    return any(2 * sum(_was_utf8(run, encoding) for run in runs) > len(runs) for encoding in _READ_AS)


def _was_utf8(run: str, encoding: str) -> bool:
    """Whether characters are UTF-8 that was read as if it were in another encoding."""
    try:
        return len(b"".join(_bytes_of(run, encoding)).decode()) < len(run)
    except (UnicodeDecodeError, UnicodeEncodeError):
        return False


def _bytes_of(run: str, encoding: str) -> Iterator[bytes]:
    for character in run:
        try:
            yield character.encode(encoding)
        except UnicodeEncodeError:  # which no character stands for was read as a control character
            yield character.encode("latin-1")


_ODD: dict[str, Callable[[str], bool]] = {
    "spell characters as \\u09af; write the texts themselves, not their JSON": lambda text: bool(_ESCAPE.search(text)),
    "seem to have been read in another encoding than they were written in; look at how they begin, and convert the "
    "original once more": lambda text: _is_garbled(text[:_LOOKED_AT]),
    "hold U+FFFD, where a character was lost; convert the original once more": lambda text: "\ufffd" in text,
}
"""What is odd about more than a tenth of the texts."""


@dataclass
class Survey:
    """Of one source."""

    lines: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    """What should be looked at; volunteers go on in spite of it."""
    faults: list[str] = field(default_factory=list)
    """What must be mended before a run can begin."""
    documents: set[int] = field(default_factory=set)
    """Fingerprints of those that were looked at; of pictures too."""
    files: set[tuple[str, str]] = field(default_factory=set)
    """All of the split, each with the column that is read."""
    talks: bool = False
    """It holds conversations, which may be short."""
    _read: int = 0
    _characters: int = 0
    _odd: Counter[str] = field(default_factory=Counter)
    _first: list[str] = field(default_factory=list)

    def note(self, text: str, fingerprint: int) -> None:
        if len(self._first) < SHOWN:
            self._first.append(" ".join(text[: 2 * SHOWN_CHARACTERS].split())[:SHOWN_CHARACTERS])
        self._read += 1
        self._characters += len(text)
        self._odd.update(what for what, applies in _ODD.items() if applies(text))
        self.documents.add(fingerprint)

    def conclude(self, what: str, looked: int, whole: int, files: int) -> None:
        """:param looked: files that were looked into, of which `whole` to their end"""
        beyond = "" if whole == files else f"; not read: what follows in {files - whole} of {files} files"
        if not self._read:
            self.lines.append(f"{what}: looked into {looked} of {files} files{beyond}")
            return
        mean = self._characters / self._read
        self.lines.append(
            f"{what}: {self._read:,} documents looked at in {looked} of {files} files, {mean:,.0f} characters each on "
            f"average{beyond}"
        )
        self.lines += [f"{what}: begins with: {first}" for first in self._first]
        if mean < _SHORT and not self.talks:
            self.odd.append(
                f"{what}: {mean:,.0f} characters a document are few; if these are lines, join those of a document"
            )
        if mean > _LONG / 2:
            self.odd.append(f"{what}: {mean:,.0f} characters a document are many; divide them, in .txt by blank lines")
        for fault in _ODD:
            if self._odd[fault] > self._read / 10:
                self.odd.append(f"{what}: {self._odd[fault]} of {self._read} documents {fault}")


def survey(
    source: Source,
    seconds: float,
    warn: Warn,
    fingerprints: Fingerprints = Fingerprints(),  # noqa: B008
    read: Reader | None = None,
) -> Survey:
    """Look at every file of a source's split, for at most so many seconds or little more.

    :param read: reads what holds neither texts nor pictures, as a task does; none: the files themselves are read

    Of each file the first rows are read, of a local file of JSON lines the last one too. A dataset or split that is
    not there is no fault here: whoever reads it refuses it.
    """
    found = Survey()
    try:
        splits = find_splits(source, warn)
    except UserError:
        return found
    name = canonical(source.split) if source.split not in splits else source.split
    counts = ", ".join(f"{split} {len(files)}" for split, files in sorted(splits.items()))
    found.lines.append(f"{source.dataset}: files by split: {counts}")
    unknown = strays(source)
    if unknown:
        some = ", ".join(unknown[:5]) + (" ..." if len(unknown) > 5 else "")
        found.odd.append(f"{source.dataset}: {len(unknown)} files of unknown kinds are not read: {some}")
    if name not in splits:
        return found
    if len(mixed := _mixed(source, splits[name])) > 1:
        found.odd.append(
            f"{source.dataset}: the files in the folders {', '.join(mixed)} are mixed; for those of one folder alone "
            "set the source's subset to its name"
        )
    shards = splits[name]
    found.files = {(_real(shard.path), "" if source.tokenized else source.column) for shard in shards}
    until = time.monotonic() + seconds
    looked = whole = 0
    for number, shard in enumerate(shards):
        left = until - time.monotonic()
        if left <= 0:
            break
        looked += 1
        values = read(source, shard, warn) if read else read_shard(shard, source.column, warn)
        whole += _look(source, shard, values, left / (len(shards) - number), found, fingerprints)
    found.conclude(f"{source.dataset}, {name}", looked, whole, len(shards))
    return found


def _real(path: str) -> str:
    """The same for each name that a local file has."""
    return path if "://" in path else os.path.realpath(path)


def _mixed(source: Source, shards: Sequence[Shard]) -> list[str]:
    """The folders of a local dataset that hold its files and may be subsets, for their names are none of splits."""
    folder = local_folder(source)
    if folder is None or source.subset or not folder.is_dir():
        return []
    paths = [Path(shard.path).relative_to(folder) for shard in shards]
    return sorted({path.parts[0] for path in paths if len(path.parts) > 1 and not names_split(path.parts[0])})


def _look(
    source: Source, shard: Shard, values: Iterator[Any], seconds: float, found: Survey, fingerprints: Fingerprints
) -> bool:
    """Read the beginning of a file; returns whether that was all of it."""
    until = time.monotonic() + seconds
    rows = usable = 0
    bad: list[BadRow] = []
    ended = True
    try:
        for rows, value in enumerate(values, start=1):
            if isinstance(value, BadRow):
                bad.append(value)
            elif isinstance(value, str):
                usable += 1
                if value.strip():
                    found.note(value, fingerprints.of(value))
            elif isinstance(value, Conversation):
                usable += 1
                found.talks = True
                found.note(value.text, fingerprints.of(value.text))
            elif isinstance(value, Document | Captioned):
                usable += 1
                if not isinstance(value, Document) or len(value.ids):
                    found.documents.add(fingerprints.of(value))
            elif value is None:
                usable += 1
            elif isinstance(value, bytes) or (isinstance(value, dict) and "bytes" in value):
                if wrong := flaw(value):
                    bad.append(BadRow(rows, wrong))
                else:
                    usable += 1
                    found.documents.add(fingerprints.of(file_of(value) or b""))
            else:
                bad.append(BadRow(rows, not_text(value, source.column)))
            if rows >= ROWS or time.monotonic() > until:
                ended = False
                break
        bad += [] if ended else _bad_end(shard)
    except UserError as error:
        found.faults.append(str(error))
        return False
    except Exception as error:  # whatever a broken file makes its decoder raise
        fix = "check the Internet connection" if is_transient(error) else "replace the file"
        found.faults.append(f"{shard.path} cannot be read beyond row {rows} ({one_line(error)}); {fix}")
        return False
    if bad and not usable:
        found.faults.append(f"{shard.path} has no usable row among {rows}: row {bad[0].number} {bad[0].reason}")
    elif bad:
        found.odd.append(
            f"{shard.path}: {len(bad)} of the {rows:,} rows that were read are left out; row {bad[0].number} "
            f"{bad[0].reason}; mend them or leave them: volunteers go on without"
        )
    return ended


def _bad_end(shard: Shard) -> list[BadRow]:
    """The last line of a local file of JSON lines, if it is cut."""
    path = Path(shard.path)
    if path.suffix.lower() not in (".jsonl", ".ndjson") or not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        last = file.read().rstrip().rpartition(b"\n")[2]
    if last.startswith(b"{") and not last.endswith(b"}"):
        return [BadRow(0, "(the last one) is no whole JSON object: the file ends in it")]
    return []
