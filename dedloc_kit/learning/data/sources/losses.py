"""What of the data cannot be used, counted: what is tolerated follows from how much is lost."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from dedloc_kit.learning.data.sources.formats import BadRow, Unusable
from dedloc_kit.learning.data.sources.shards import Shard, Warn, is_transient, one_line

HOPELESS = 32
"""So many files of which nothing can be used, before any other, are enough to give up."""


class Loss(str):
    """A warning that data is left out. Not each loss is told, but all are counted."""

    losses: "Losses"
    """Of the source; they go on being counted."""

    @classmethod
    def of(cls, text: str, losses: "Losses") -> Self:
        told = cls(text)
        told.losses = losses
        return told


def _ignore(_reason: str) -> None:
    """Where nobody counts."""


@dataclass(eq=False)
class Unproven:
    """A row of which only its use tells whether it is good. Whoever uses it says `bad(reason)` if it is not, at any
    time, and the row is counted like every other bad one."""

    number: int
    """From 1 on."""
    bad: Callable[[str], None] = field(default_factory=lambda: _ignore, init=False)


@dataclass(eq=False)
class Losses:
    """Of one source, over all passes; a file and its rows are counted once. What is new is told through `warn`."""

    dataset: str
    files: int
    warn: Warn
    unreadable: dict[str, Exception] = field(default_factory=dict)
    """Files that could not be read, or not to their end."""
    rows: dict[str, int] = field(default_factory=dict)
    """Bad rows by file, as they were read."""
    proven: dict[str, set[int]] = field(default_factory=dict)
    """By file, the numbers of the rows that turned out to be bad when they were used."""
    bad_rows: int = 0
    """In all files; other threads may read it at any time."""
    example: str = ""
    """The first of them, and what is wrong with it."""

    def usable(self, shard: Shard, items: Iterator[Any]) -> Iterator[Any]:
        """The items but for bad rows; the 1st, 10th, 100th ... of a source is told. Raises Unusable if all are bad:
        such a file is lost as one, and its rows are not counted."""
        found, first, bad = 0, None, 0
        for item in items:
            if isinstance(item, BadRow):
                bad, first = bad + 1, first or item
                if found:
                    self._count(shard, bad, item)
                continue
            if first and not found:
                self._count(shard, bad, first)
            found += 1
            if isinstance(item, Unproven):
                item.bad = partial(self.prove, shard, item.number)
            yield item
        if first and not found:
            raise Unusable(f"{shard.path} has no usable row among {bad}: row {first.number} {first.reason}")

    def _count(self, shard: Shard, bad: int, last: BadRow) -> None:
        """So many rows of a file are bad so far."""
        known = self.rows.get(shard.path, 0)
        if bad > known:
            self.rows[shard.path] = bad
            self._add(bad - known, shard, last)

    def prove(self, shard: Shard, number: int, reason: str) -> None:
        """A row is bad, as its use has shown, or a look at it alone."""
        proven = self.proven.setdefault(shard.path, set())
        if number not in proven:
            proven.add(number)
            self._add(1, shard, BadRow(number, reason))

    def _add(self, more: int, shard: Shard, last: BadRow) -> None:
        """So many bad rows that were not known, and the last of them."""
        before = self.bad_rows
        self.example = self.example or f"row {last.number} of {shard.path} {last.reason}"
        self.bad_rows = total = before + more
        if not before or len(str(total)) > len(str(before)):
            so_far = f"row {last.number} of {shard.path} is left out: it {last.reason}"
            self._tell(so_far if total == 1 else f"{total} bad rows are left out so far; {so_far}")

    def lose(self, shard: Shard, error: Exception, rows: int, column: str) -> None:
        """A file cannot be read beyond so many usable rows."""
        known = shard.path in self.unreadable
        self.unreadable[shard.path] = error
        if not known:
            said = str(error) if isinstance(error, Unusable) else f"{shard.path}: {one_line(error)}"
            self._tell(
                f"{len(self.unreadable)} of {self.files} files of {self.dataset} cannot be read; "
                f"left out after {rows} usable rows of column '{column}': {said}"
            )

    @property
    def reason(self) -> str:
        """Why nothing can be read, with what to do."""
        if not self.unreadable:
            return ""
        error = next(iter(self.unreadable.values()))
        if is_transient(error):
            return f"{one_line(error)}; check the Internet connection"
        return str(error) if isinstance(error, Unusable) else f"{one_line(error)}; replace the files"

    def _tell(self, text: str) -> None:
        self.warn(Loss.of(text, self))
