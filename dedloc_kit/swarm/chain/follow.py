"""Asks other peers for the records of their chains, and tells the coordinator what it should know.

An answer is believed as far as it proves itself. Functions here raise OSError if a peer is not reached or breaks off,
and BadAnswer if it sends what no honest peer sends.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.chain.messages import (
    ANSWER_SECONDS,
    MAX_OFFER,
    MAX_QUESTION,
    OFFER_BYTES,
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
from dedloc_kit.swarm.consensus.signing import WireRecord
from dedloc_kit.swarm.p2p.seams import Clock, Network, Stream

MAX_PAGES = 4
"""Of one answer: as many records as somebody keeps, see `KEPT`."""


class BadAnswer(ValueError):
    """A peer has sent what no honest peer sends. :ivar peer: its id"""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(f"{peer}: {reason}")
        self.peer = peer


class NothingInCommon(Exception):
    """A peer says that it is ahead, and has none of the links that were named.

    :ivar head: the link of its newest record, as it says
    """

    def __init__(self, head: str) -> None:
        super().__init__("it has none of the links that were named")
        self.head = head


async def ask_records(network: Network, clock: Clock, peer: str, question: RecordsAfter) -> list[ChainRecord]:
    """Records of a peer's branch, page by page, as long as it says that it is ahead. They prove nothing yet.

    Raises NothingInCommon.
    """
    held = list[ChainRecord]()
    for _ in range(MAX_PAGES):
        known = (*[record.link for record in held[-1:]], *question.known)
        answer, page = await _ask(network, clock, peer, question.changed(known=known))
        if (answer.term, answer.step) <= (question.term, question.step):
            return []
        if not answer.base:
            raise NothingInCommon(answer.head)
        if not page:
            raise BadAnswer(peer, "it says that it is ahead, and does not show it")
        held = [*(held if answer.base == known[0] else ()), *page]
        if held[-1].link == answer.head:
            break
    return held


async def _ask(network: Network, clock: Clock, peer: str, question: RecordsAfter) -> tuple[Records, list[ChainRecord]]:
    async with _asked(network, clock, peer, question) as stream:
        answer = files.decode(await stream.receive(MAX_QUESTION), Records)
        if answer.base not in question.known and (answer.base or answer.count):
            raise ValueError("records after a link that was not named")
        return answer, await receive_records(stream, answer.count, PAGE_BYTES)


async def offer(
    network: Network, clock: Clock, coordinator: str, store: ChainStore, left: Sequence[ChainRecord]
) -> None:
    """Tell the coordinator which records this branch has left, the oldest ones first: it may choose them.

    Returns once the coordinator has them: until then the state at their end has to be kept.
    """
    count, room = 0, OFFER_BYTES
    for record in left[:MAX_OFFER]:
        room -= len(files.encode(record))
        if room < 0 and count:
            break
        count += 1
    async with _asked(
        network, clock, coordinator, Offer(part=store.part, head=left[count - 1].link, count=count)
    ) as stream:
        if files.decode(await stream.receive(MAX_QUESTION), Noted).wants:
            await send_records(stream, left[:count])
            files.decode(await stream.receive(MAX_QUESTION), Noted)


async def say_goodbye(network: Network, clock: Clock, coordinator: str, goodbye: Goodbye) -> None:
    """Returns once the coordinator has heard it."""
    async with _asked(network, clock, coordinator, goodbye) as stream:
        files.decode(await stream.receive(MAX_QUESTION), Noted)


@asynccontextmanager
async def _asked(network: Network, clock: Clock, peer: str, question: WireRecord) -> AsyncIterator[Stream]:
    """A stream on which the question was sent."""
    try:
        async with clock.deadline(clock.now() + ANSWER_SECONDS), network.open(peer, SERVICE) as stream:
            await stream.send(files.encode(question))
            yield stream
    except EOFError as error:
        raise ConnectionResetError(f"{peer} has broken off") from error
    except ValueError as error:
        raise BadAnswer(peer, str(error)) from None
