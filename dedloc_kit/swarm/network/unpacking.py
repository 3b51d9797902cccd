"""msgpack from anyone: a byte may become an object of 70, so they are counted before any is made."""

from typing import Any

from hivemind.utils import MSGPackSerializer

MAX_OBJECTS = 200_000
"""In one message: the parts of the largest average, and some."""
_MAX_DEPTH = 8
_SIZES = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_SIZES |= {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}  # how many elements of a list or a map come next, each of them counted
_SIZES |= {0xA0 + size: size for size in range(32)}
"""Bytes after the first one."""
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Bytes of the length that stands before the content."""
_EXTENDED = {0xC7: 1, 0xC8: 2, 0xC9: 4}
"""The same, and a type follows; hivemind writes tuples so, their elements as a message within the message."""
_EXTENDED_SIZES = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


def unpack(data: bytes) -> Any:
    """As hivemind's `loads`, which raises nearly anything; ValueError, before it takes memory, for too many objects."""
    _count(memoryview(data), MAX_OBJECTS, _MAX_DEPTH)
    return MSGPackSerializer.loads(data)


def _count(data: memoryview, left: int, depth: int) -> int:
    """How many more objects there may be after these."""
    if depth < 0:
        raise ValueError("messages within messages")
    at = 0
    while at < len(data):
        head = data[at]
        at += 1 + _SIZES.get(head, 0)
        left -= 1
        if head in _SIZED:
            width = _SIZED[head]
            at += width + int.from_bytes(data[at : at + width], "big")
        elif head in _EXTENDED or head in _EXTENDED_SIZES:
            width = _EXTENDED.get(head, 0)
            size = _EXTENDED_SIZES.get(head) or int.from_bytes(data[at : at + width], "big")
            at += width + 1
            left = _count(data[at : at + size], left, depth - 1)
            at += size
        if left < 0:
            raise ValueError("too many objects")
    return left
