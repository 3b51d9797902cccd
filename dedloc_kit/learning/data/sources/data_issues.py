"""What of the data cannot be used, counted: what is tolerated follows from how much is lost."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.formats import BadRow, Unusable
from dedloc_kit.learning.data.sources.patience import Warn, is_transient, one_line
from dedloc_kit.learning.data.sources.shards import Shard

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


def _ignore(_reason: str, _kind: str = "") -> None:
    """Where nobody counts."""


@dataclass(eq=False)
class LazyRow:
    """A row of which only its use tells whether it is good. Whoever uses it says `bad(reason)` if it is not, at any
    time, and the row is counted like every other bad one."""

    number: int
    """From 1 on."""
    bad: Callable[..., None] = field(default_factory=lambda: _ignore, init=False)
    """With the reason and maybe, as of `BadRow`, its kind."""


@dataclass(eq=False)
class Losses:
    """Of one source, over all passes; a file and its rows are counted once. What is new is told through `warn`."""

    dataset: str
    files: int
    warn: Warn
    unreadable: dict[str, Exception] = field(default_factory=dict)
    """Files that could not be read, or not to their end."""
    proven: dict[str, set[int]] = field(default_factory=dict)
    """By file, the numbers of the bad rows of what is read more than once."""
    bad_rows: int = 0
    """In all files; other threads may read it at any time."""
    example: str = ""
    """The first of them, and what is wrong with it."""
    kinds: set[str] = field(default_factory=set)
    """Of bad rows that were told."""

    def usable(self, shard: Shard, items: Iterator[Any], begun: bool = False) -> Iterator[Any]:
        """The items of a file that is read once, but for bad rows; the 1st, 10th, 100th ... of a source is told, and
        the first of each kind. Raises Unusable if all are bad: such a file is lost as one, and its rows are not
        counted.

        :param begun: whether some of the file were usable before
        """
        first, bad, kinds = None, 0, dict[str, BadRow]()
        for item in items:
            if isinstance(item, BadRow):
                first, bad = first or item, bad + 1
                kinds.setdefault(item.kind, item)
                if not begun:
                    continue
            elif isinstance(item, LazyRow):
                item.bad = partial(self.prove, shard, item.number)
            if bad and first:
                self._add(bad, shard, item if isinstance(item, BadRow) else first)
                for other in kinds.values():
                    self._tell_kind(shard, other)
                bad, kinds = 0, {}
            if not isinstance(item, BadRow):
                begun = True
                yield item
        if first and not begun:
            raise Unusable(f"{shard.path} has no usable row among {bad}: row {first.number} {first.reason}")

    def prove(self, shard: Shard, number: int, reason: str, kind: str = "") -> None:
        """A row is bad; it is counted once, however often it is read."""
        proven = self.proven.setdefault(shard.path, set())
        if number not in proven:
            proven.add(number)
            self._add(1, shard, BadRow(number, reason, kind))

    def _add(self, more: int, shard: Shard, last: BadRow) -> None:
        """So many bad rows that were not known, and the last of them."""
        before = self.bad_rows
        self.example = self.example or f"row {last.number} of {shard.path} {last.reason}"
        self.bad_rows = total = before + more
        if not before or len(str(total)) > len(str(before)):
            self.kinds.add(last.kind)
            so_far = _left_out(shard, last)
            self._tell(so_far if total == 1 else f"{total} bad rows are left out so far; {so_far}")
        else:
            self._tell_kind(shard, last)

    def _tell_kind(self, shard: Shard, row: BadRow) -> None:
        """Tell a row if it is the first of its kind."""
        if row.kind and row.kind not in self.kinds:
            self.kinds.add(row.kind)
            self._tell(_left_out(shard, row))

    def lose(self, shard: Shard, error: Exception, rows: int, column: str) -> None:
        """A file cannot be read beyond so many usable rows."""
        known = shard.path in self.unreadable
        self.unreadable[shard.path] = error.with_traceback(None)  # which would keep the file and what was read of it
        if not known:
            said = str(error) if isinstance(error, Unusable) else f"{shard.path}: {one_line(error)}"
            self._tell(
                f"{len(self.unreadable)} of {self.files} files of {self.dataset} cannot be read; "
                f"left out after {rows} usable rows of column '{column}': {said}"
            )

    def nothing(self, column: str) -> UserError:
        """What to say of a source in which there is nothing."""
        if not self.unreadable:
            return UserError(
                f"the column '{column}' of {self.dataset} is empty; set the source's column to another one"
            )
        error = next(iter(self.unreadable.values()))
        reason = str(error) if isinstance(error, Unusable) else f"{one_line(error)}; replace the files"
        if is_transient(error):
            reason = f"{one_line(error)}; check the Internet connection"
        return UserError(f"no file of the dataset {self.dataset} can be read: {reason}")

    def _tell(self, text: str) -> None:
        self.warn(Loss.of(text, self))


def _left_out(shard: Shard, row: BadRow) -> str:
    return f"row {row.number} of {shard.path} is left out: it {row.reason}"
