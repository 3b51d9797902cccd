"""Asks other peers for the records of their chains, and tells the coordinator what it should know.

An answer is believed as far as it proves itself. Functions here raise OSError if a peer is not reached or breaks off,
and BadAnswer if it sends what no honest peer sends.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.chain.anchor import Anchor
from dedloc_kit.swarm.chain.messages import (
    ANSWER_SECONDS,
    MAX_OFFER,
    MAX_QUESTION,
    OFFER_BYTES,
    PAGE_BYTES,
    SERVICE,
    AnchorAt,
    Noted,
    Offer,
    Records,
    RecordsAfter,
    receive_records,
    send_records,
)
from dedloc_kit.swarm.chain.store import ChainStore
from dedloc_kit.swarm.consensus.chain import Chain, ChainRecord
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.records import Commit, Goodbye, Reset
from dedloc_kit.swarm.consensus.signing import WireRecord
from dedloc_kit.swarm.p2p.seams import Clock, Network, Stream, Verifier

MAX_PAGES = 8
"""That are held of a branch that does not win yet."""


class BadAnswer(ValueError):
    """A peer has sent what no honest peer sends. :ivar peer: its id"""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(f"{peer}: {reason}")
        self.peer = peer


class TooFarBehind(Exception):
    """A peer says that it is ahead, and no longer has the records in between, or they are too many: take a state.

    :ivar head: the link of its newest record, as it says
    """

    def __init__(self, head: str) -> None:
        super().__init__("the records in between are not there any more")
        self.head = head


async def follow(store: ChainStore, network: Network, clock: Clock, peer: str) -> None:
    """Follow a peer's branch to its end if it wins. Raises TooFarBehind.

    What is held of a branch that does not win yet is bounded, and valid.
    """
    base, held, pages = "", list[ChainRecord](), 0
    while True:
        chain = store.chain
        known = (*[record.link for record in held[-1:]], *store.locator())
        question = RecordsAfter(part=store.part, known=known, term=chain.head.term, step=chain.head.step)
        answer, page = await _ask(network, clock, peer, question)
        if chain.rank >= (answer.term, answer.step):
            return
        if not answer.base or pages == MAX_PAGES:
            raise TooFarBehind(answer.head)
        if not page:
            raise BadAnswer(peer, "it says that it is ahead, and does not show it")
        if answer.base != known[0] or not held:
            base, held = answer.base, []
        held, pages = [*held, *page], pages + 1
        if store.chain is not chain or base not in chain:
            return  # this peer has gone elsewhere meanwhile
        if _rank_after(chain, base, held) > chain.rank:
            try:
                store.adopt(held)
            except ValueError as error:
                raise BadAnswer(peer, str(error)) from None
            held, pages = [], 0
            await store.flush()
        elif not chain.is_valid_after(base, held):
            raise BadAnswer(peer, "a record that is not valid")


async def _ask(network: Network, clock: Clock, peer: str, question: RecordsAfter) -> tuple[Records, list[ChainRecord]]:
    async with _asked(network, clock, peer, question) as stream:
        answer = files.decode(await stream.receive(MAX_QUESTION), Records)
        if answer.base not in question.known and (answer.base or answer.count):
            raise ValueError("records after a link that was not named")
        return answer, await receive_records(stream, answer.count, PAGE_BYTES)


def _rank_after(chain: Chain, base: str, records: Sequence[ChainRecord]) -> tuple[tuple[int, str], int]:
    """Of a branch, if its records are valid."""
    term = chain.at(base).term
    for record in records:
        term = (record.term, record.link) if isinstance(record, Reset) else term
    return term, records[-1].after


async def fetch_anchor(
    network: Network, clock: Clock, peer: str, genesis: Instance, link: str, verifier: Verifier
) -> tuple[Anchor, Commit | None]:
    """Where a newcomer begins that has, or will take, the state at this link.

    :param genesis: names run, part and organizer
    :param link: as the witnesses of the state name it
    """
    async with _asked(network, clock, peer, AnchorAt(part=genesis.part, link=link)) as stream:
        anchor, commit = files.decode(await stream.receive(files.MAX_MESSAGE), Anchor), None
        if anchor.reset.link != link:
            commit = files.decode(await stream.receive(files.MAX_MESSAGE), Commit)
        if (anchor.reset.run_id, anchor.part, anchor.link(commit)) != (genesis.run_id, genesis.part, link):
            raise ValueError("an anchor of another link, run or part")
        anchor.instance(commit, genesis.organizer, verifier)
        return anchor, commit


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
