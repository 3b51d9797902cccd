"""What is counted is what msgpack makes, whatever way it is written, and too much of it is never made."""

import os
import random
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hivemind.utils import MSGPackSerializer

from dedloc_kit.swarm.network import unpacking
from dedloc_kit.swarm.network.unpacking import MAX_OBJECTS, unpack

KINDS = (None, True, 5, -5, 200, -100, 2**15, -(2**14), 2**31, -(2**30), 2**63, -(2**62), 0.5, "x", b"x")
SEEDS = [range(first, first + 50) for first in range(0, 200, 50)]
LONG = ("x" * 31, "x" * 40, "x" * 300, "x" * 70_000, b"x" * 300, b"x" * 70_000)


def anything(draw: random.Random, depth: int = 3) -> Any:
    if depth == 0 or draw.random() < 0.4:
        return draw.choice(KINDS if draw.random() < 0.9 else LONG)
    values = [anything(draw, depth - 1) for _ in range(draw.choice((0, 1, 3, 20)))]
    return draw.choice((values, tuple(values), {str(n): value for n, value in enumerate(values)}))


def number_of(value: Any) -> int:
    """Of objects: a tuple is a list within a message within the message."""
    if isinstance(value, dict):
        return 1 + sum(1 + number_of(each) for each in value.values())
    if isinstance(value, list | tuple):
        return 1 + isinstance(value, tuple) + sum(map(number_of, value))
    return 1


@pytest.mark.parametrize("some", SEEDS)
def test_what_is_counted_is_what_is_made(some: range, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in some:
        value = anything(random.Random(seed))
        data, number = MSGPackSerializer.dumps(value), number_of(value)
        monkeypatch.setattr(unpacking, "MAX_OBJECTS", number)
        assert unpack(data) == value, seed
        monkeypatch.setattr(unpacking, "MAX_OBJECTS", number - 1)
        with pytest.raises(ValueError, match="too many objects"):
            pytest.fail(f"{seed} is {unpack(data)}")


@pytest.mark.parametrize(
    "element", [b"\x80", b"\x90", b"\xc0", b"\xa2xx", b"\xc4\x02xx", b"\xd4\x01x", b"\xc7\x00\x40"]
)
def test_a_message_of_nothing_but_small_objects_is_refused(element: bytes) -> None:
    many = MAX_OBJECTS + 1
    content = b"\xdd" + many.to_bytes(4, "big") + element * many
    inside = b"\xc9" + len(content).to_bytes(4, "big") + b"\x40" + content
    for data in (content, inside, b"\x81\xa1x" + inside):
        with pytest.raises(ValueError, match="too many objects"):
            unpack(data)


def test_messages_within_messages_without_end_are_refused() -> None:
    data = b"\x90"
    for _ in range(100):
        data = b"\xc9" + len(data).to_bytes(4, "big") + b"\x40" + data
    with pytest.raises(ValueError, match="within"):
        unpack(data)


@pytest.mark.parametrize("some", SEEDS)
def test_nonsense_raises_and_never_runs_on(some: range) -> None:
    for seed in some:
        draw = random.Random(seed)
        data = bytearray(MSGPackSerializer.dumps(anything(draw)) + os.urandom(20))
        data[draw.randrange(len(data))] = draw.randrange(256)
        with pytest.raises((ValueError, TypeError, msgpack.exceptions.UnpackException, AssertionError)):
            pytest.fail(f"{seed} is {unpack(bytes(data))}")
