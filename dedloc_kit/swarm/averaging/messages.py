"""What a reducer says to a member in an all-reduce: a byte for the kind, and the content."""

from collections.abc import Collection, Sequence
from enum import IntEnum

from hivemind.utils import MSGPackSerializer

from dedloc_kit.swarm.network.unpacking import unpack


class Says(IntEnum):
    """The first byte of what a reducer sends."""

    INTRODUCTIONS = 1
    """Everyone's, as they were signed."""
    AVERAGE = 2
    """For how many seconds this member's part had been there (8 bytes), and the encoded average."""
    GAVE_UP = 3
    """The round is over here; whose fault it was, as far as known."""
    FAILED = 4
    """The same, and it was the reducer's own."""


class Ended(Exception):
    """The other side has ended the round."""

    def __init__(self, by_itself: bool, named: set[str]) -> None:
        super().__init__("gave the round up")
        self.by_itself, self.named = by_itself, named


def told(signed: Sequence[bytes]) -> bytes:
    """Tells a member what everyone brings, as each of them has signed it."""
    return bytes([Says.INTRODUCTIONS]) + bytes(MSGPackSerializer.dumps(list(signed)))


def gave_up(me: str, culprits: Collection[str], named: Collection[str]) -> bytes:
    """Tells a member that the round is over here, and whose fault that is as far as known."""
    if me in culprits:
        return bytes([Says.FAILED])
    return bytes([Says.GAVE_UP]) + bytes(MSGPackSerializer.dumps(sorted({*culprits, *named})))


def payload_of(message: bytes, expected: Says) -> memoryview:
    """What a reducer says; raises Ended if it says that the round is over, ValueError if it says anything else."""
    says, payload = message[0], memoryview(message)[1:]
    if says == Says.FAILED:
        raise Ended(True, set())
    if says == Says.GAVE_UP:
        raise Ended(False, set(unpack(bytes(payload))))
    if says != expected:
        raise ValueError(f"it says {says} where {expected} is due")
    return payload
