"""Gives other peers the records of this peer's chains, and the coordinator what they tell it."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.chain.messages import (
    ANSWER_SECONDS,
    MAX_QUESTION,
    OFFER_BYTES,
    PAGE,
    PAGE_BYTES,
    SERVICE,
    Noted,
    Offer,
    Records,
    RecordsAfter,
    receive_records,
    send_records,
)
from dedloc_kit.swarm.chain.store import ChainStore
from dedloc_kit.swarm.consensus.chain import ChainRecord
from dedloc_kit.swarm.consensus.records import Goodbye
from dedloc_kit.swarm.p2p.seams import Clock, Network, Stream

STREAMS = 16
"""That are answered at a time. Each holds one record as bytes."""
STREAMS_OF_ONE = 2
OFFERS = 4
"""Whose records are held at a time."""

Question = RecordsAfter | Offer | Goodbye
QUESTIONS: tuple[type[Question], ...] = (RecordsAfter, Offer, Goodbye)


class Listener(Protocol):
    """The coordinator, for what peers tell it. Raises ValueError for what is not valid."""

    def knows(self, part: str, head: str, /) -> bool:
        """Whether it has the records up to this link already."""

    def offered(self, peer: str, part: str, records: tuple[ChainRecord, ...], /) -> None:
        """A peer has left these records."""

    def said_goodbye(self, goodbye: Goodbye, /) -> None:
        """A voter will never vote again."""


class ChainService:
    """Answers questions about chains. Those of one peer, and all together, are limited in number, size and time."""

    def __init__(
        self, network: Network, clock: Clock, stores: Mapping[str, ChainStore], listener: Listener | None = None
    ) -> None:
        """:param stores: by part. :param listener: the coordinator's; other peers refuse what is for it"""
        self._network, self._clock, self._stores, self._listener = network, clock, stores, listener
        self._serving: list[str] = []
        self._offers = asyncio.Semaphore(OFFERS)

    async def start(self) -> None:
        await self._network.serve(SERVICE, self._serve)

    async def _serve(self, peer: str, stream: Stream) -> None:
        if len(self._serving) >= STREAMS or self._serving.count(peer) >= STREAMS_OF_ONE:
            raise ConnectionRefusedError("too many streams")
        self._serving.append(peer)
        try:
            async with self._clock.deadline(self._clock.now() + ANSWER_SECONDS):
                await self._answer(peer, files.decode(await stream.receive(MAX_QUESTION), *QUESTIONS), stream)
        finally:
            self._serving.remove(peer)
        await stream.closed()

    async def _answer(self, peer: str, question: Question, stream: Stream) -> None:
        match question:
            case RecordsAfter():
                await self._records(question, stream)
            case Offer():
                await self._offer(peer, question, stream)
            case Goodbye():
                if question.voter.peer != peer:
                    raise ValueError("a goodbye of another peer")
                self._heard_by().said_goodbye(question)
                await stream.send(files.encode(Noted()))

    async def _offer(self, peer: str, offer: Offer, stream: Stream) -> None:
        listener = self._heard_by()
        async with self._offers:
            if not listener.knows(offer.part, offer.head):
                await stream.send(files.encode(Noted(wants=True)))
                records = await receive_records(stream, offer.count, OFFER_BYTES)
                listener.offered(peer, offer.part, tuple(records))
        await stream.send(files.encode(Noted()))

    def _heard_by(self) -> Listener:
        if self._listener is None:
            raise ValueError("this peer is not the coordinator")
        return self._listener

    def _store(self, part: str) -> ChainStore:
        if part not in self._stores:
            raise ValueError("a part that this peer does not have")
        return self._stores[part]

    async def _records(self, question: RecordsAfter, stream: Stream) -> None:
        store = self._store(question.part)
        chain, head = store.chain, store.head
        base = next((link for link in question.known if link in chain), "")
        ahead = base and chain.rank > (question.term, question.step)
        page = store.page(base, PAGE, PAGE_BYTES) if ahead else ()
        answer = Records(base=base, count=len(page), term=head.term, step=head.step, head=head.previous)
        await stream.send(files.encode(answer))
        await send_records(stream, page)
