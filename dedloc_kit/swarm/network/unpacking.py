"""msgpack from peers, bounded: the only place that decodes it.

msgpack's own decoder recurses through hivemind's hook for tuples: 938 bytes of tuples in tuples overflow the C stack,
which no `except` catches. It also makes a list of the announced length before its elements are there, and interns the
keys of maps, which Python 3.12 never frees again.
"""

import struct
from typing import Any

from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils import MSGPackSerializer

MAX_BYTES = 10_000_000
"""Of one message: the largest header of a download, and some."""
MAX_OBJECTS = 200_000
"""In one message: the parts of the largest average, and some."""
MAX_DEPTH = 8
"""Of lists, tuples and maps in each other."""
_TUPLE, _DICTIONARY = 0x40, 0x50
"""hivemind's extension types that peers use; the second one is what lies under a key of the directory."""

_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {
    head: struct.Struct(f">{kind}") for head, kind in zip((0xCA, 0xCB, *range(0xCC, 0xD4)), "fdBHIQbhiq", strict=True)
}
_BINARY, _TEXT = {0xC4: 1, 0xC5: 2, 0xC6: 4}, {0xD9: 1, 0xDA: 2, 0xDB: 4}
_LIST, _MAP = {0xDC: 2, 0xDD: 4}, {0xDE: 2, 0xDF: 4}
_EXTENSION = {0xC7: 1, 0xC8: 2, 0xC9: 4}
"""Bytes of the length that comes next."""
_FIXED_EXTENSION = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
"""Bytes of the content."""


def unpack(data: bytes) -> Any:
    """Plain values, as hivemind's `loads`; raises ValueError for anything else, before it takes memory for too much."""
    return _Message(data).read()


class DirectorySerializer(MSGPackSerializer):
    """hivemind's serializer for its directory, within the same bounds; a message may be a whole dictionary."""

    @classmethod
    def loads(cls, buf: bytes) -> Any:
        """As `unpack`."""
        return _Message(buf).read(directory=True)


class _Message:
    def __init__(self, data: bytes) -> None:
        if len(data) > MAX_BYTES:
            raise ValueError(f"{len(data)} bytes where at most {MAX_BYTES} are right")
        self._data, self._at = data, 0
        self._left = MAX_OBJECTS
        """Objects that may still be made."""

    def read(self, directory: bool = False) -> Any:
        try:
            value = self._value(MAX_DEPTH, directory)
        except (IndexError, struct.error):
            raise ValueError("it is cut off") from None
        if self._at != len(self._data):
            raise ValueError("something follows it")
        return value

    def _value(self, depth: int, directory: bool = False) -> Any:
        """The next value, with lists, maps and extension types at most so deep in it."""
        self._check(1)
        self._left -= 1
        head = self._data[self._at]
        self._at += 1
        if head < 0x80:
            return head
        if head >= 0xE0:
            return head - 0x100
        if head in _CONSTANTS:
            return _CONSTANTS[head]
        if head in _NUMBERS:
            kind = _NUMBERS[head]
            self._at += kind.size
            return kind.unpack_from(self._data, self._at - kind.size)[0]
        if 0xA0 <= head < 0xC0:
            return self._bytes(head & 0x1F).decode()
        if head in _TEXT:
            return self._bytes(self._length(_TEXT[head])).decode()
        if head in _BINARY:
            return self._bytes(self._length(_BINARY[head]))
        if not depth:
            raise ValueError(f"lists, tuples and maps more than {MAX_DEPTH} deep")
        if 0x90 <= head < 0xA0 or head in _LIST:
            return self._list(self._length(_LIST[head]) if head in _LIST else head & 0x0F, depth - 1)
        if head < 0x90 or head in _MAP:
            return self._map(self._length(_MAP[head]) if head in _MAP else head & 0x0F, depth - 1)
        if head in _EXTENSION:
            return self._extension(self._length(_EXTENSION[head]), depth - 1, directory)
        if head in _FIXED_EXTENSION:
            return self._extension(_FIXED_EXTENSION[head], depth - 1, directory)
        raise ValueError(f"the byte {head:#x} begins nothing")

    def _check(self, objects: int) -> None:
        """Raises ValueError unless so many more may be made, and can be here: each takes a byte at least."""
        if objects > self._left:
            raise ValueError(f"more than {MAX_OBJECTS} objects")
        if objects > len(self._data) - self._at:
            raise ValueError("it is cut off")

    def _length(self, width: int) -> int:
        return int.from_bytes(self._bytes(width), "big")

    def _bytes(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._data):
            raise ValueError("it is cut off")
        found = self._data[self._at : end]
        self._at = end
        return found

    def _list(self, length: int, depth: int) -> list[Any]:
        self._check(length)
        return [self._value(depth) for _ in range(length)]

    def _map(self, length: int, depth: int) -> dict[str | bytes, Any]:
        self._check(2 * length)
        found = dict[str | bytes, Any]()
        for _ in range(length):
            key = self._value(0)
            if not isinstance(key, str | bytes):
                raise ValueError("the key of a map is neither text nor bytes")
            found[key] = self._value(depth)
        return found

    def _extension(self, length: int, depth: int, directory: bool) -> Any:
        kind = self._bytes(1)[0]
        if kind != _TUPLE and not (directory and kind == _DICTIONARY):
            raise ValueError(f"the extension type {kind:#x} has no place here")
        end, head = self._at + length, self._data[self._at]
        if not (0x90 <= head < 0xA0 or head in _LIST):
            raise ValueError(f"the extension type {kind:#x} is no list")
        content = self._value(depth + 1)  # that list and its extension type are one tuple
        if self._at != end:
            raise ValueError(f"the extension type {kind:#x} is no list")
        return tuple(content) if kind == _TUPLE else _dictionary(content)


def _dictionary(content: list[Any]) -> DictionaryDHTValue:
    """As hivemind reads it from how many records it may hold, when the last one expires, and the records."""
    match content:
        case [int() | float() as most, int() | float() as latest, list() as records]:
            with DictionaryDHTValue(most).freeze() as dictionary:
                for record in records:
                    match record:
                        case [bytes() as subkey, bytes() as value, float() as expires]:
                            dictionary.store(subkey, value, expires)
                        case _:
                            raise ValueError("a record of the dictionary is none")
                dictionary.latest_expiration_time = latest
            return dictionary
    raise ValueError("the dictionary is none")
