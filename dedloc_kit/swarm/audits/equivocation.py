"""A member that signs two different entries for one round is convicted by its own two signatures.

Reducers that got another entry than the group has do not count its author: so it can cost round after round its
samples, and nobody needs to see both entries. Each member hands both to the organizer, where they differ from what it
got, and the organizer compares. Nobody's word counts: an entry is signed, and its pledge names the round.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, ValidationError

from dedloc_kit.access.rate_limit import PerMinute
from dedloc_kit.records.record import Record
from dedloc_kit.swarm.allreduce.wire import ENTRY_BYTES
from dedloc_kit.swarm.audits.verdicts import Verdict
from dedloc_kit.swarm.consensus.records import Entry
from dedloc_kit.swarm.network.service import Endpoint, NoAnswer, RecordService, Stream, encode
from dedloc_kit.swarm.p2p.adapters import KeyVerifier
from dedloc_kit.swarm.trust.pledge import Pledged

HANDED_IN = 4
"""Authors in one round whose entries a member hands in."""
PER_MINUTE, IN_ALL = 12, 1024
"""So many of each member, and of all together, are taken in a minute."""
MAX_KEPT = 2048
"""Entries: at least those of a minute."""
MAX_WAITING = 16
SECONDS = 30.0
_MAX_BYTES = 2 * ENTRY_BYTES + 256


class Introduced(Record):
    """Signed entries: what a member hands in of one author, or what convicts it."""

    signed: Annotated[
        tuple[Annotated[bytes, Field(max_length=ENTRY_BYTES)], ...],
        Field(min_length=1, max_length=2, strict=False),
    ]


class Noted(Record):
    """They have come, and are what they should be."""


@dataclass(frozen=True)
class Equivocation:
    """Two entries of one author in one round."""

    author: str
    step: int
    signed: tuple[bytes, bytes]

    @property
    def verdict(self) -> Verdict:
        why = f"it introduced itself to one round in two ways (global step {self.step})"
        pledges = (_pledged(Entry.from_bytes(each)) for each in self.signed)
        return Verdict(self.author, why, (Introduced(signed=self.signed), *pledges))


def _pledged(entry: Entry) -> Pledged:
    """What its author pledges; raises ValueError."""
    try:
        return Pledged.model_validate_json(entry.about)
    except ValidationError as error:
        raise ValueError(f"no pledge ({error.errors()[0]['msg']})") from None


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
        """The first entry of each author in each round, by that and its global step."""
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
        """Raises ValueError for what no reducer of this run takes. Honest members sign one for each round (`pledges`).

        Only what is signed is compared: anybody can spell another peer's signature in several ways.
        """
        entry = Entry.from_bytes(signed)
        entry.verify(KeyVerifier())
        author, pledged = entry.peer, _pledged(entry)
        if pledged.run_id != self._endpoint.run_id or not pledged.fits(pledged.group) or author == self._organizer:
            raise ValueError("no introduction")
        first = self._kept.setdefault((author, pledged.group, pledged.step), signed)
        if len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        if Entry.from_bytes(first).digest != entry.digest and not self._found.full():
            self._found.put_nowait(Equivocation(author, pledged.step, (first, signed)))

    # Called by the averaging

    def hand_in(self, introduced: Sequence[tuple[bytes, ...]]) -> None:
        """Entries of one author each that differ; does not wait."""
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
