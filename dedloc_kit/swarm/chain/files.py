"""Records of the agreement as bytes, and files that show whether they are whole."""

from typing import TypeVar

from dedloc_kit.swarm.consensus.chain import ChainRecord
from dedloc_kit.swarm.consensus.records import Commit, Reset
from dedloc_kit.swarm.consensus.signing import MAX_BYTES, WireRecord, sha256
from dedloc_kit.swarm.p2p.seams import Disk

R = TypeVar("R", bound=WireRecord)

MAX_MESSAGE = MAX_BYTES + 100
"""Of one record with its name."""
RECORDS: tuple[type[ChainRecord], ...] = (Commit, Reset)
_HEAD = 65
"""A SHA-256 in hexadecimal and a line break before a file's content."""


def encode(record: WireRecord) -> bytes:
    return record.wire.encode() + b"\n" + record.to_bytes()


def decode(data: bytes, *kinds: type[R]) -> R:
    """Raises ValueError unless this is a record of one of these kinds, within its bounds."""
    name, _, body = data.partition(b"\n")
    for kind in kinds:
        if kind.wire.encode() == name:
            return kind.from_bytes(body)
    raise ValueError(f"{name[:64]!r} where only {', '.join(kind.wire for kind in kinds)} is right")


async def read(disk: Disk, name: str, limit: int = MAX_MESSAGE) -> bytes | None:
    """Return what was written there, None if nothing was. Raises ValueError if it is not whole, OSError."""
    data = await disk.read(name, _HEAD + limit)
    if data is None:
        return None
    content = data[_HEAD:]
    if data[:_HEAD] != _head(content):
        raise ValueError("the file is damaged")
    return content


async def write(disk: Disk, name: str, content: bytes) -> None:
    """Raises OSError."""
    await disk.write(name, _head(content) + content)


def _head(content: bytes) -> bytes:
    return sha256(content).encode() + b"\n"
