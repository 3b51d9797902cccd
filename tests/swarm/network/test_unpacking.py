"""What is read is what hivemind reads, and too much of it, or too deep, is never made."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils import MSGPackSerializer

from dedloc_kit.swarm.network.unpacking import MAX_BYTES, MAX_DEPTH, MAX_OBJECTS, DirectorySerializer, unpack

KINDS = (None, True, 5, -5, 200, -100, 2**15, -(2**14), 2**31, -(2**30), 2**63, -(2**62), 0.5, "x", b"x")
LONG = ("x" * 31, "x" * 40, "x" * 300, "x" * 70_000, b"x" * 300, b"x" * 70_000)


def anything(draw: random.Random, depth: int = 3) -> Any:
    if depth == 0 or draw.random() < 0.4:
        return draw.choice(KINDS if draw.random() < 0.9 else LONG)
    values = [anything(draw, depth - 1) for _ in range(draw.choice((0, 1, 3, 20)))]
    return draw.choice((values, tuple(values), {str(n): value for n, value in enumerate(values)}))


def extension(kind: int, content: bytes) -> bytes:
    return b"\xc9" + len(content).to_bytes(4, "big") + bytes([kind]) + content


WRAPPED: dict[str, Callable[[bytes], bytes]] = {
    "list": lambda data: b"\x91" + data,
    "map": lambda data: b"\x81\xa1x" + data,
    "tuple": lambda data: extension(0x40, b"\x91" + data),
}


def test_plain_values_are_read_as_hivemind_reads_them() -> None:
    for seed in range(200):
        data = MSGPackSerializer.dumps(anything(random.Random(seed)))
        assert unpack(data) == MSGPackSerializer.loads(data) == DirectorySerializer.loads(data), seed


def test_a_dictionary_of_the_directory_is_read_there_and_nowhere_else() -> None:
    dictionary = DictionaryDHTValue()
    dictionary.store(b"asha", b"1", 2.0**40)
    data = MSGPackSerializer.dumps(dictionary)
    assert DirectorySerializer.loads(data).data == dictionary.data
    with pytest.raises(ValueError, match="0x50"):
        unpack(data)


@pytest.mark.parametrize("kind", WRAPPED)
def test_eight_levels_are_read_and_nine_or_a_thousand_are_refused(kind: str) -> None:
    for levels in (MAX_DEPTH, MAX_DEPTH + 1, 1000):
        data = b"\x01"
        for _ in range(levels):
            data = WRAPPED[kind](data)
        for read in (unpack, DirectorySerializer.loads):
            if levels == MAX_DEPTH:
                assert read(data) == MSGPackSerializer.loads(data)
                continue
            with pytest.raises(ValueError, match="deep"):
                read(data)


@pytest.mark.parametrize("kind", [0x00, 0x40, 0x41, 0x50, 0x51, 0xFF])
def test_an_extension_type_within_itself_is_refused(kind: int) -> None:
    data = b"\x90"
    for _ in range(1000):
        data = extension(kind, data)
    for read in (unpack, DirectorySerializer.loads):
        with pytest.raises(ValueError, match="extension type"):
            read(data)


@pytest.mark.parametrize(
    "element", [b"\x80", b"\x90", b"\xc0", b"\xa2xx", b"\xc4\x02xx", b"\xcc\x01", extension(0x40, b"\x90")]
)
def test_a_message_of_nothing_but_small_objects_is_refused(element: bytes) -> None:
    many = MAX_OBJECTS + 1
    content = b"\xdd" + many.to_bytes(4, "big") + element * many
    for data in (content, extension(0x40, content), b"\x81\xa1x" + extension(0x40, content)):
        with pytest.raises(ValueError, match=r"more than .* objects"):
            unpack(data)


@pytest.mark.parametrize("head", [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"])
def test_what_announces_more_than_there_is_is_refused_before_it_is_made(head: bytes) -> None:
    with pytest.raises(ValueError, match=r"cut off|objects"):
        unpack(head + b"\xff" * 4 + b"\x40")


def test_too_many_bytes_what_follows_and_odd_keys_are_refused() -> None:
    for data in (b"\xc6" + MAX_BYTES.to_bytes(4, "big") + bytes(MAX_BYTES), b"\x01\x01", b"\x81\x01\x01", b"", b"\xc1"):
        with pytest.raises(ValueError, match=r"."):
            unpack(data)


def test_nonsense_raises_a_value_error_and_nothing_else() -> None:
    refused = 0
    for seed in range(2000):
        draw = random.Random(seed)
        data = bytearray(MSGPackSerializer.dumps(anything(draw)))[: draw.randrange(1, 2000)]
        data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            unpack(bytes(data))
        except ValueError:
            refused += 1
    assert refused > 500
