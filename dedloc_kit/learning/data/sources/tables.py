"""The rows of a table of text (CSV, TSV), where a quote too many costs no other row."""

import csv
from collections import deque
from typing import TextIO

MAX_ROW = 2**24
"""Bytes, or characters, of a row of JSON or of a table; a longer one is a bad row. Python's objects take more: the
brackets of an empty list in JSON become 24 times as many."""
TOO_LONG = f"is longer than {MAX_ROW // 2**20} MiB"

_OF_A_LINE = 64
"""Bytes that Python takes for a line beside its characters."""
_TOO_MANY = 8
"""So many lines of one field that all have the right fields themselves are rows."""


class Table:
    """Reads rows.

    A CSV has quotes, between which a field may hold anything; a TSV has none. A quote that ends before its field does
    is text, and so is one that does not end within `MAX_ROW`, or not before many rows, if the next line has the right
    fields.
    """

    def __init__(self, text: TextIO, delimiter: str) -> None:
        csv.field_size_limit(MAX_ROW)  # of the whole process; the default is less than a long document has
        self.line = 0
        """The number of the last row's last line, from 1 on."""
        self._text = text
        self._delimiter = delimiter
        self._rows = csv.reader(
            self, delimiter=delimiter, strict=True, quoting=csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
        )
        self._taken: list[str | None] = []
        self._size = 0
        """Of the lines that were taken for this row."""
        self._ended = False
        self._ahead: deque[str | None] = deque()
        """Lines that were taken for a row and belong to others."""
        self._spare = 2 * MAX_ROW
        """Characters that may be taken in vain: not each quote that never ends may take the time of all that follows.
        """

    def row(self, width: int | None = None) -> list[str] | str | None:
        """The fields of the next row, or in words what is wrong with it; none at the end.

        :param width: how many fields there should be, if that is known
        """
        self._taken.clear()
        self._size, self._ended = 0, False
        try:
            fields = next(self._rows, None)
            if len(self._taken) < 2 or (width in (None, len(fields or ())) and not self._are_rows(width)):
                self.line += len(self._taken)
                self._spare = min(self._spare + 4 * self._size, 2 * MAX_ROW)
                return fields
        except csv.Error:
            pass
        self.line += 1
        first, *others = self._taken
        if first is None:
            return TOO_LONG
        self._spare -= self._size - len(first)
        self._ahead.extendleft(reversed(others))
        fields = first.rstrip("\r\n").split(self._delimiter)
        if others or self._ended:
            following = self._width_of(others[0]) if others else None
            return fields if len(fields) == width == following else "has a quote that does not end"
        return fields if len(fields) == width else "has a quote that ends before its field does"

    def __iter__(self) -> "Table":
        return self

    def __next__(self) -> str:
        """The next line, for the reader of rows."""
        line = self._ahead.popleft() if self._ahead else self._read()
        if line == "":
            self._ended = True
            raise StopIteration
        self._taken.append(line)
        if line is None:
            raise csv.Error
        self._size += len(line) + _OF_A_LINE
        if len(self._taken) > 1 and self._size > min(MAX_ROW, self._spare):
            raise csv.Error
        return line

    def _read(self) -> str | None:
        """The next line of the file, empty at its end; none for one that is longer than `MAX_ROW`."""
        line = self._text.readline(MAX_ROW + 1)
        if len(line) <= MAX_ROW:
            return line
        while line and line[-1] not in "\r\n":
            line = self._text.readline(MAX_ROW)
        return None

    def _are_rows(self, width: int | None) -> bool:
        """Whether what was taken between quotes are rows: the quotes are lone ones, such as ditto marks."""
        others = self._taken[1:]
        return width != 1 and len(others) >= _TOO_MANY and all(self._width_of(line) == width for line in others)

    def _width_of(self, line: str | None) -> int | None:
        """How many fields a line has by itself."""
        if line is None:
            return None
        try:
            return len(next(csv.reader([line], delimiter=self._delimiter, strict=True)))
        except csv.Error:
            return len(line.split(self._delimiter))
