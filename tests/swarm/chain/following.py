"""Follows a peer's branch as far as its answer proves it."""

from dedloc_kit.swarm.chain.follow import BadAnswer, ask_records
from dedloc_kit.swarm.chain.messages import RecordsAfter
from dedloc_kit.swarm.chain.store import ChainStore
from dedloc_kit.swarm.p2p.seams import Clock, Network


async def follow(store: ChainStore, network: Network, clock: Clock, peer: str) -> None:
    head = store.head
    question = RecordsAfter(part=store.part, known=store.chain.locator(), term=head.term, step=head.step)
    records = await ask_records(network, clock, peer, question)
    try:
        store.adopt(records)
    except ValueError as error:
        raise BadAnswer(peer, str(error)) from None
    await store.flush()
