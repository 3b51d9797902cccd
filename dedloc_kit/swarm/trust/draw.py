"""Who checks what of a round: everybody computes the same draw from nonces that nobody knew when all had committed.

Each member commits to a nonce with its contribution (`commit`) and reveals it one step later. As long as one of those
whose nonces count is honest, nobody could choose what will be drawn; whoever does not like what comes can only keep
its nonce back, and is then drawn for certain.
"""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from dedloc_kit.swarm.trust.commitments import MAX_CONTENTS

NONCE_BYTES = 32


@dataclass(frozen=True)
class Contributed:
    """What a member gave to a round, as its introduction says. Raises ValueError for what cannot be."""

    peer: str
    samples: int
    """For which it counts: so often it is drawn to check others."""
    microbatches: int
    """That it names as its work."""

    def __post_init__(self) -> None:
        if self.samples < 0 or not 0 <= self.microbatches <= MAX_CONTENTS:
            raise ValueError(f"{self.samples} samples in {self.microbatches} microbatches")


@dataclass(frozen=True)
class CheckedContribution:
    """A contribution that is checked."""

    author: str
    chunk: int
    """What of it is compared."""
    checkers: tuple[str, ...]
    """Who recomputes each of its microbatches."""


@dataclass(frozen=True)
class CheckedReducer:
    """A reducer one of whose averages is checked."""

    reducer: str
    chunk: int
    checker: str
    """Who fetches the parts of this chunk, and averages them again."""


@dataclass(frozen=True)
class Draw:
    """What is checked of a round, and by whom."""

    contributions: tuple[CheckedContribution, ...]
    reducer: CheckedReducer | None
    """None if nobody can check it."""


def commit(nonce: bytes) -> bytes:
    """The hash that a nonce is committed to with; raises ValueError unless it has 32 bytes."""
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce of {len(nonce)} bytes")
    return hashlib.sha256(b"nonce" + nonce).digest()


def seed_of_round(group: str, nonces: Mapping[str, bytes]) -> bytes:
    """The seed of a round's checks.

    :param group: names the round
    :param nonces: that were revealed, by the peer; those of members with standing only. Raises ValueError as `commit`.
    """
    whole = hashlib.sha256(_framed(group.encode()))
    for peer in sorted(nonces):
        commit(nonces[peer])
        whole.update(_framed(peer.encode()) + nonces[peer])
    return whole.digest()


def draw(
    seed: bytes,
    contributed: Sequence[Contributed],
    owners: Sequence[str],
    standing: Collection[str],
    silent: Collection[str],
    share: float,
) -> Draw:
    """What is checked of a round. The same for whoever calls it with the same, in whatever order members are named.

    A contribution is drawn with the probability `share`; its microbatches are dealt to members with standing, but not
    to its author, by their samples: so each recomputes on average about `share` of what it computes itself (more where
    one computes more than all others), a slow one a few microbatches of what a fast one has done.

    :param owners: the reducer of each chunk
    :param standing: who may check others
    :param silent: who has not revealed its nonce, and is drawn for certain; it checks nobody
    :param share: of the computing that goes into checks, from 0 to 1
    """
    if not 0.0 <= share <= 1.0 or not owners:
        raise ValueError(f"a share of {share} for {len(owners)} chunks")
    able = {each.peer: each.samples for each in contributed if each.peer in standing and each.peer not in silent}
    deal = _Deal(seed, able)
    checked = [
        CheckedContribution(
            each.peer,
            deal.number("chunk", each.peer, 0, below=len(owners)),
            tuple(deal.checker("microbatch", each.peer, number) for number in range(each.microbatches)),
        )
        for each in sorted(contributed, key=lambda each: each.peer)
        if each.microbatches and deal.others(each.peer)
        if each.peer in silent or deal.number("contribution", each.peer, 0, below=2**64) < math.floor(share * 2**64)
    ]
    chunk = deal.number("reducer", "", 0, below=len(owners))
    reducer = owners[chunk]
    by = CheckedReducer(reducer, chunk, deal.checker("reducer", reducer, 0)) if deal.others(reducer) else None
    return Draw(tuple(checked), by)


class _Deal:
    """Draws, each by its name, so that none hangs on another.

    :param able: the samples of who may be drawn
    """

    def __init__(self, seed: bytes, able: Mapping[str, int]) -> None:
        self._seed = seed
        self._names = sorted(peer for peer, samples in able.items() if samples)
        self._ends = [0, *accumulate(able[peer] for peer in self._names)]

    def number(self, what: str, peer: str, which: int, *, below: int) -> int:
        """A whole number from 0 on; so much is drawn that what is left over when dividing does not matter."""
        name = _framed(what.encode()) + _framed(peer.encode()) + which.to_bytes(8, "big")
        return int.from_bytes(hashlib.sha256(self._seed + name).digest(), "big") % below

    def others(self, peer: str) -> int:
        """The samples of those who may be drawn, but this one."""
        begin, end = self._own(peer)
        return self._ends[-1] - (end - begin)

    def checker(self, what: str, peer: str, which: int) -> str:
        """One who may be drawn, but not this one, as likely as it has samples."""
        begin, end = self._own(peer)
        found = self.number(what, peer, which, below=self.others(peer))
        if found >= begin:
            found += end - begin
        return self._names[bisect_right(self._ends, found) - 1]

    def _own(self, peer: str) -> tuple[int, int]:
        at = bisect_right(self._names, peer) - 1
        return (self._ends[at], self._ends[at + 1]) if at >= 0 and self._names[at] == peer else (0, 0)


def _framed(name: bytes) -> bytes:
    return len(name).to_bytes(8, "big") + name
