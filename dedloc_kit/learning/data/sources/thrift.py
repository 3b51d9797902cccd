"""Headers in Thrift's compact protocol, as Parquet has them: the numbers alone, in bounded time and memory."""

from typing import Any, Protocol

I32, STRUCT = 5, 12
"""Types of fields."""
_MAX_DEPTH = 8


class Bytes(Protocol):
    """Bytes that are read one by one; beyond their end IndexError is raised."""

    def __getitem__(self, at: int, /) -> int: ...


def header(data: Bytes, at: int, depth: int = 0) -> tuple[dict[tuple[int, int], Any], int]:
    """The numbers and structures of a Thrift structure by (field, type), in the compact protocol; where it ends.

    https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
    """
    found: dict[tuple[int, int], Any] = {}
    field = 0
    while head := data[at]:
        at += 1
        kind = head & 15
        if head >> 4:
            field += head >> 4
        else:
            field, at = _number(data, at)
        value: Any = None
        if kind in (4, I32, 6):
            value, at = _number(data, at)
        elif kind == STRUCT and depth < _MAX_DEPTH:
            value, at = header(data, at, depth + 1)
        elif kind in (3, 7):
            at += 1 if kind == 3 else 8
        elif kind == 8:
            length, at = _varint(data, at)
            at += length
        elif kind not in (1, 2):  # booleans, which are their kind
            raise ValueError(f"a header of a page holds a field of type {kind}")
        found[field, kind] = value
    return found, at + 1


def _number(data: Bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: Bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if shift > 63:
            raise ValueError("a number is too long")
    return value | data[at] << shift, at + 1
