"""What members of an all-reduce say to each other: a byte for the kind, and the content."""

import struct
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from typing import TypeVar

from hivemind.utils import MSGPackSerializer

from dedloc_kit.records.record import Record
from dedloc_kit.swarm.network.service import MAX_RECORD_BYTES, decode
from dedloc_kit.swarm.network.unpacking import unpack

R = TypeVar("R", bound=Record)

_TOLD_AT_ONCE = 32
"""Introductions in one message."""

HASH_BYTES = 32
_PART, _AVERAGE = struct.Struct(">BI"), struct.Struct(">BI32s")


class Says(IntEnum):
    """The first byte of each message."""

    PART = 1
    """Of a member's gradient: which chunk (4 bytes), and its values, encoded; before these, where members have pledged
    what they send, the path to the root that they have signed (a byte for its length, and 32 for each hash)."""
    CAME = 2
    """To a member: its next part has come. To a reducer: its next average has."""
    HERE = 3
    """Still here."""
    FOLLOWS = 4
    """To a reducer: it is the one to lead now, unless it knows how the round has ended."""
    UNTOLD = 5
    """To the leader: whoever was to tell this member of the roll may be gone."""
    CALL = 6
    ANSWER = 7
    REPORT = 8
    ROLL = 9
    """A `Held`."""
    INTRODUCTIONS = 10
    """The roll's name, and some of those on it: their places in the group, and what their authors signed."""
    AVERAGE = 11
    """Which chunk (4 bytes), the name of the roll (32 bytes), and the values, encoded."""
    ACKNOWLEDGEMENT = 12
    CERTIFICATE = 13
    FETCH = 14
    """Averages that the other one has, and their reducer cannot send any more: their numbers."""
    GAVE_UP = 15
    """The round is over here; whose fault it was, as far as known."""
    FAILED = 16
    """The same, and it was the sender's own."""
    GONE = 17
    """From the head of a row to the leader: reducers of the row from which nothing more comes."""
    MEAN = 18
    """From the owner of a chunk to its finisher: which chunk (4 bytes), the name of the roll (32 bytes), and the mean
    of those on the roll that are of the owner's row, encoded."""


class Ended(Exception):
    """The other side has ended the round."""

    def __init__(self, by_itself: bool, named: set[str]) -> None:
        super().__init__("gave the round up")
        self.by_itself, self.named = by_itself, named


def gave_up(me: str, culprits: Collection[str], named: Collection[str]) -> bytes:
    """Tells a member that the round is over here, and whose fault that is as far as known."""
    if me in culprits:
        return bytes([Says.FAILED])
    return say(Says.GAVE_UP, sorted({*culprits, *named}))


def say(kind: Says, content: object = None) -> bytes:
    """A message of plain values or of a record."""
    if content is None:
        return bytes([kind])
    plain = content.model_dump() if isinstance(content, Record) else content
    return bytes([kind]) + bytes(MSGPackSerializer.dumps(plain))


def read(message: bytes) -> tuple[Says, bytes]:
    """The kind and the content; raises Ended if the round is over there, ValueError if it is no message."""
    says = Says(message[0])
    if says == Says.FAILED:
        raise Ended(True, set())
    if says == Says.GAVE_UP:
        raise Ended(False, {name for name in unpack(message[1:]) if isinstance(name, str)})
    return says, message[1:]


def record(kind: type[R], content: bytes) -> R:
    """Raises ValueError if it is none."""
    return kind.parse(decode(content))


def numbers(content: bytes) -> list[int]:
    """A list of numbers; raises ValueError if it is none."""
    found = decode(content)
    if not isinstance(found, list | tuple) or not all(type(number) is int for number in found):
        raise ValueError("it is no list of numbers")
    return list(found)


def part(number: int, encoded: bytes) -> bytes:
    return _PART.pack(Says.PART, number) + encoded


def with_path(path: Sequence[bytes], encoded: bytes) -> bytes:
    return bytes([len(path)]) + b"".join(path) + encoded


def read_with_path(content: bytes) -> tuple[tuple[bytes, ...], bytes]:
    """The path to the root, and the values, encoded; raises ValueError."""
    end = 1 + HASH_BYTES * (content[0] if content else 0)
    if len(content) < end:
        raise ValueError("a part without its path")
    return tuple(content[at : at + HASH_BYTES] for at in range(1, end, HASH_BYTES)), content[end:]


def read_numbered(content: bytes) -> tuple[int, bytes]:
    """Which chunk, and its values, encoded; raises ValueError."""
    if len(content) < 4:
        raise ValueError("a part without a number")
    return int.from_bytes(content[:4], "big"), content[4:]


def average(number: int, roll: bytes, encoded: bytes) -> bytes:
    return _AVERAGE.pack(Says.AVERAGE, number, roll) + encoded


def mean(number: int, roll: bytes, encoded: bytes) -> bytes:
    return _AVERAGE.pack(Says.MEAN, number, roll) + encoded


def read_average(content: bytes) -> tuple[int, bytes, bytes]:
    """Which chunk, the name of the roll, and the values, encoded; raises ValueError. A mean is read alike."""
    number, rest = read_numbered(content)
    if len(rest) < 32:
        raise ValueError("an average of no roll")
    return number, rest[:32], rest[32:]


def introductions(roll: bytes, signed: Mapping[int, bytes]) -> list[bytes]:
    """Some of those on the roll of this name, as several messages."""
    each = list(signed.items())
    return [
        say(Says.INTRODUCTIONS, [roll, [m for m, _ in some], [s for _, s in some]])
        for some in (each[first : first + _TOLD_AT_ONCE] for first in range(0, len(each), _TOLD_AT_ONCE))
    ]


def read_introductions(content: bytes) -> tuple[bytes, dict[int, bytes]]:
    """The roll's name, and some of those on it, by member; raises ValueError."""
    found = decode(content)
    if not isinstance(found, list | tuple) or len(found) != 3:
        raise ValueError("these are no introductions")
    name, places, signed = found
    if not isinstance(places, list | tuple) or not isinstance(signed, list | tuple) or len(places) != len(signed):
        raise ValueError("these are no introductions")
    if not all(type(place) is int for place in places) or not all(isinstance(each, bytes) for each in signed):
        raise ValueError("these are no introductions")
    if len(signed) > _TOLD_AT_ONCE or any(len(each) > MAX_RECORD_BYTES for each in signed):
        raise ValueError("these are too many or too long for introductions")
    return name, dict(zip(places, signed, strict=True))
