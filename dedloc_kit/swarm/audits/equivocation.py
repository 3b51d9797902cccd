"""Who introduces itself to one round in two ways is convicted by its own two signatures.

Its reducers tell the leader different hashes, and the roll leaves it out: so it can cost round after round its samples,
and nobody in the round sees both introductions. So each member hands what it got from those who are not on the roll as
it knows them to the organizer, who compares. Nobody's word counts: an introduction is signed, and names its round.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from dedloc_kit.access.rate_limit import PerMinute
from dedloc_kit.records.record import Record
from dedloc_kit.swarm.audits.verdicts import Verdict
from dedloc_kit.swarm.network.identity import MAX_RECORD_BYTES, opened
from dedloc_kit.swarm.network.service import Endpoint, NoAnswer, RecordService, Stream, encode
from dedloc_kit.swarm.trust.pledge import Pledged

HANDED_IN = 4
"""Authors in one round of whom a member hands in introductions."""
PER_MINUTE, IN_ALL = 12, 1024
"""So many of each member, and of all together, are taken in a minute."""
MAX_KEPT = 2048
"""Introductions: at least those of a minute."""
MAX_WAITING = 16
SECONDS = 30.0
_MAX_BYTES = 2 * MAX_RECORD_BYTES + 256


class Introduced(Record):
    """Introductions as their authors signed them: what a member hands in of one author, or what convicts it."""

    signed: Annotated[
        tuple[Annotated[bytes, Field(max_length=MAX_RECORD_BYTES)], ...],
        Field(min_length=1, max_length=2, strict=False),
    ]


class Noted(Record):
    """They have come, and are what they should be."""


@dataclass(frozen=True)
class Equivocation:
    """Two introductions of one author to one round."""

    author: str
    step: int
    signed: tuple[bytes, bytes]

    @property
    def verdict(self) -> Verdict:
        why = f"it introduced itself to one round in two ways (global step {self.step})"
        pledges = (opened(Pledged, each)[1] for each in self.signed)
        return Verdict(self.author, why, (Introduced(signed=self.signed), *pledges))


class EquivocationService(RecordService[Introduced, Noted]):
    """Takes on the organizer's side what members hand in; hands it in on theirs.

    :param me: this peer
    """

    name = "equivocation"
    question, reply = Introduced, Noted

    def __init__(self, endpoint: Endpoint, me: str, organizer: str) -> None:
        self._endpoint, self._me, self._organizer = endpoint, me, organizer
        self._limit = PerMinute(PER_MINUTE, IN_ALL)
        self._kept: dict[tuple[str, str, int], bytes] = {}
        """The first introduction of each author to each round, by that and its global step."""
        self._found: asyncio.Queue[Equivocation] = asyncio.Queue(MAX_WAITING)
        self._handing = set[asyncio.Task[None]]()  # asyncio's own references are weak

    async def serve(self, peer: str, stream: Stream) -> None:
        question = await stream.receive_question(Introduced, _MAX_BYTES)
        await stream.send(encode(await self.answer(peer, question)))
        await stream.closed()

    async def answer(self, peer: str, question: Introduced) -> Noted:
        if self._me != self._organizer:
            raise ValueError("this is not the organizer")
        if not self._limit.allows(peer):
            raise ValueError(f"{peer} hands in too much")
        for signed in question.signed:
            self._take(signed)
        return Noted()

    def _take(self, signed: bytes) -> None:
        """Raises ValueError for what no reducer of this run takes. Honest members sign one for each round (`pledges`),
        and there is one spelling of it: any other is another one, though it says the same."""
        author, pledged = opened(Pledged, signed)
        if pledged.run_id != self._endpoint.run_id or not pledged.fits(pledged.group) or author == self._organizer:
            raise ValueError("no introduction")
        first = self._kept.setdefault((author, pledged.group, pledged.step), signed)
        if len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        if first != signed and not self._found.full():
            self._found.put_nowait(Equivocation(author, pledged.step, (first, signed)))

    # Called by the averaging

    def hand_in(self, introduced: Sequence[tuple[bytes, ...]]) -> None:
        """Introductions that are not those on a roll, by author; does not wait."""
        task = asyncio.create_task(self._hand_in([Introduced(signed=signed) for signed in introduced]))
        self._handing.add(task)
        task.add_done_callback(self._handing.discard)

    async def _hand_in(self, introduced: Sequence[Introduced]) -> None:
        for each in introduced:
            if self._me == self._organizer:
                for signed in each.signed:
                    with suppress(ValueError):
                        self._take(signed)
            else:
                with suppress(NoAnswer):  # others hand it in as well
                    await self._endpoint.ask(self._organizer, self, each, SECONDS)

    # Called by the coordinator

    async def next(self) -> Equivocation:
        """The next one, as soon as there is one."""
        return await self._found.get()
