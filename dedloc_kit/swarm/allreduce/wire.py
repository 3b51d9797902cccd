"""Messages of an all-reduce: a byte for the kind, and the content."""

import struct
from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import Annotated

from hivemind.utils import MSGPackSerializer
from pydantic import Field

from dedloc_kit.records.record import PeerId, Record
from dedloc_kit.swarm.consensus.letters import Letter, Packet
from dedloc_kit.swarm.consensus.messages import Group, Message, encode
from dedloc_kit.swarm.consensus.records import MAX_EPOCH, MAX_MEMBERS, Entry
from dedloc_kit.swarm.consensus.signing import Hash
from dedloc_kit.swarm.network.service import decode

HASH_BYTES = 32
ENTRY_BYTES = 16_384
"""A signed entry at most."""
MAX_PACKET_BYTES = 2**19
LETTERS_BYTES = 2**18
"""Of the letters in a packet, unless it has one alone: what else is on its way to a member takes turns with packets."""
LETTER_BYTES = 2048
"""Of a letter beside its body: names, hashes and a signature."""
_NUMBER, _AVERAGE, _EPOCH = struct.Struct(">BI"), struct.Struct(">BI32s"), struct.Struct(">Q")


class Kind(IntEnum):
    """The first byte of each message."""

    PART = 1
    """A member's values of a chunk: its number (4 bytes), and the values, encoded."""
    CAME = 2
    """To a member: its next part has come. To a reducer: its next average has."""
    HERE = 3
    """Still here."""
    AVERAGE = 4
    """Of a chunk: its number (4 bytes), its name (32 bytes: of what was averaged, and who finished it; or the digest of
    an average that is fetched), and the values, encoded."""
    GROUP = 5
    WHICH = 6
    """Send me the group with this id."""
    AGREEMENT = 7
    """A message of `consensus.messages`."""
    FETCH = 8
    """Chunks of an average that the other side holds, a `Wanted`."""
    OVER = 9
    """The step is decided here; this side still answers."""
    ASK = 12
    """What was decided?"""
    GAVE_UP = 10
    """The round is over here without a step; these members were to blame, as far as this side knows."""
    FAILED = 11
    """The same, by the sender's own fault."""
    SUM = 13
    """What an owner has added up for its row, to the chunk's finisher; as AVERAGE."""
    PACKET = 14
    """Letters of the agreement in a large group, a `Packet`."""


class Wanted(Record):
    """Chunks of an average. :ivar link: of the value that names it"""

    link: Hash
    average: Hash
    chunks: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**20)], ...], Field(max_length=2**14, strict=False)]


class Blamed(Record):
    peers: Annotated[tuple[PeerId, ...], Field(max_length=MAX_MEMBERS, strict=False)] = ()


class GroupEnded(Exception):
    """The other side has ended the round without a step."""

    def __init__(self, by_itself: bool, blamed: Collection[str] = ()) -> None:
        super().__init__("gave the round up")
        self.by_itself, self.blamed = by_itself, frozenset(blamed)


def read(message: bytes) -> tuple[Kind, bytes]:
    """The kind and the content. Raises GroupEnded if the round is over there, ValueError if it is no message."""
    kind = Kind(message[0])
    if kind == Kind.FAILED:
        raise GroupEnded(True)
    if kind == Kind.GAVE_UP:
        raise GroupEnded(False, Blamed.parse(decode(message[1:])).peers)
    return kind, message[1:]


def gave_up(me: str, blamed: Collection[str]) -> bytes:
    if me in blamed:
        return bytes([Kind.FAILED])
    return _record(Kind.GAVE_UP, Blamed(peers=tuple(sorted(blamed))))


def part(number: int, encoded: bytes) -> bytes:
    return _NUMBER.pack(Kind.PART, number) + encoded


def average(number: int, name: bytes, encoded: bytes) -> bytes:
    return _AVERAGE.pack(Kind.AVERAGE, number, name) + encoded


def row_sum(number: int, name: bytes, encoded: bytes) -> bytes:
    return _AVERAGE.pack(Kind.SUM, number, name) + encoded


def read_part(content: bytes) -> tuple[int, bytes]:
    """The chunk's number and its values, encoded; raises ValueError."""
    if len(content) < 4:
        raise ValueError("a part without a number")
    return int.from_bytes(content[:4], "big"), content[4:]


def read_average(content: bytes) -> tuple[int, bytes, bytes]:
    """The chunk's number, the name of what was averaged, and the values, encoded; raises ValueError."""
    number, rest = read_part(content)
    if len(rest) < 32:
        raise ValueError("an average without a name")
    return number, rest[:32], rest[32:]


def with_path(path: Sequence[bytes], encoded: bytes) -> bytes:
    """A chunk with the path to the root that its author has pledged."""
    return bytes([len(path)]) + b"".join(path) + encoded


def read_with_path(content: bytes) -> tuple[tuple[bytes, ...], bytes]:
    """The path to the root, and the values, encoded; raises ValueError."""
    end = 1 + HASH_BYTES * (content[0] if content else 0)
    if len(content) < end:
        raise ValueError("a part without its path")
    return tuple(content[at : at + HASH_BYTES] for at in range(1, end, HASH_BYTES)), content[end:]


def group(group: Group) -> bytes:
    return bytes([Kind.GROUP]) + group.to_bytes()


def which(group_id: str) -> bytes:
    return bytes([Kind.WHICH]) + bytes.fromhex(group_id)


def agreement(message: Message) -> bytes:
    return bytes([Kind.AGREEMENT]) + encode(message)


def packets(packet: Packet) -> list[bytes]:
    """A packet, in several messages if it is long."""
    bunches, room = [list[Letter]()], LETTERS_BYTES
    for letter in packet.letters:
        size = len(letter.body) + LETTER_BYTES
        if size > room and bunches[-1]:
            bunches.append([])
            room = LETTERS_BYTES
        bunches[-1].append(letter)
        room -= size
    rest = Packet(scope=packet.scope, root=packet.root)
    some = [(packet if not place else rest).model_copy(update={"letters": tuple(b)}) for place, b in enumerate(bunches)]
    return [bytes([Kind.PACKET]) + each.to_bytes() for each in some]


def read_packet(content: bytes) -> Packet:
    """Raises ValueError; signatures are not checked."""
    if len(content) > MAX_PACKET_BYTES:
        raise ValueError("a packet beyond all bounds")
    return Packet.from_bytes(content)


def fetch(link: str, digest: str, chunks: Sequence[int]) -> bytes:
    return _record(Kind.FETCH, Wanted(link=link, average=digest, chunks=tuple(chunks)))


def read_fetch(content: bytes) -> Wanted:
    """Raises ValueError."""
    return Wanted.parse(decode(content))


def introduction(promised: int, entry: Entry) -> bytes:
    """The first message of a member to a reducer: its entry, and the highest epoch number that it has promised."""
    return _EPOCH.pack(promised) + entry.to_bytes()


def read_introduction(content: bytes) -> tuple[int, Entry]:
    """Raises ValueError; the signature is not checked."""
    if not _EPOCH.size < len(content) <= ENTRY_BYTES:
        raise ValueError("no introduction")
    (promised,) = _EPOCH.unpack(content[: _EPOCH.size])
    if promised > MAX_EPOCH:
        raise ValueError("an epoch beyond all bounds")
    return promised, Entry.from_bytes(content[_EPOCH.size :])


def _record(kind: Kind, record: Record) -> bytes:
    return bytes([kind]) + bytes(MSGPackSerializer.dumps(record.model_dump()))
