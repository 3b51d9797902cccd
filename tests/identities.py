"""Identities with keys that were made beforehand: making one takes an eighth of a second of a core.

The 64 keys in rsa_keys.txt are for tests alone. A test has the first 48, from the first on; what fixtures share between
tests is made before one begins, and has the others.
"""

from base64 import b64decode
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from pathlib import Path

from dedloc_kit.swarm.network.identity import Identity

OWN = 48
_shared = cycle(range(OWN, 64))
_own: Iterator[int] | None = None


def begin() -> None:
    """A test begins; what it shares with others is there."""
    global _own
    _own = iter(range(OWN))


def end() -> None:
    """It is over."""
    global _own
    _own = None


def an_identity(path: Path) -> Identity:
    """As `Identity(path)`; where no key lies there yet, with the next one of this test."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_keys()[next(_shared if _own is None else _own)])
    return Identity(path)


@cache
def _keys() -> list[bytes]:
    lines = (Path(__file__).parent / "rsa_keys.txt").read_text(encoding="ascii").splitlines()
    return [b64decode(line) for line in lines]
