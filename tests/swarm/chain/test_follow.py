"""Those who are behind follow a branch that proves itself; nonsense and endless answers are refused, with a name."""

from collections.abc import Awaitable, Callable, Sequence

import pytest

from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.chain.anchor import Anchor
from dedloc_kit.swarm.chain.follow import BadAnswer, NothingInCommon, offer, say_goodbye
from dedloc_kit.swarm.chain.messages import PAGE, PAGE_BYTES, SERVICE, Offer, Records, RecordsAfter
from dedloc_kit.swarm.chain.service import ChainService
from dedloc_kit.swarm.chain.store import ChainStore
from dedloc_kit.swarm.consensus.chain import ChainRecord, Change
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.records import Goodbye, Reset
from dedloc_kit.swarm.p2p.seams import Stream
from tests.swarm.chain.following import follow
from tests.swarm.consensus.table import VERIFIER, decided, digest, entry, signer, voter
from tests.swarm.consensus.test_chain import GENESIS, START, chain, commits, reset
from tests.swarm.p2p.in_memory import MemoryClock, MemoryDisk, MemoryNetwork, World, run
from tests.swarm.p2p.meeting import Meeting, Peer

Meet = Callable[[Meeting], None]
MANY = commits(PAGE + 50)


def store(records: Sequence[ChainRecord] = (), changed: Callable[[Change], None] = lambda change: None) -> ChainStore:
    anchor = Anchor(part="", reset=START, coordinator=START.coordinator)
    made = ChainStore(MemoryDisk(), anchor, None, "organizer", VERIFIER, changed)
    made.adopt(records)
    return made


def wide(count: int, after: Instance = GENESIS) -> list[ChainRecord]:
    """Commits of some 60 kB."""
    found, names = list[ChainRecord](), [f"p{place}" for place in range(1, 13)]
    for _ in range(count):
        counted = [entry(after, name).changed(about="x" * 4096, signature="").signed(signer(name)) for name in names]
        found.append(decided(after, tuple(counted), " ".join(names)))
        after = after.after(found[-1], VERIFIER)
    return found


WIDE = wide(PAGE_BYTES // 50_000)


class Heard:
    """:ivar offers, goodbyes: in the order in which they came"""

    def __init__(self) -> None:
        self.offers: list[tuple[str, str, tuple[ChainRecord, ...]]] = []
        self.goodbyes: list[Goodbye] = []

    def knows(self, part: str, head: str, /) -> bool:
        return any(records[-1].link == head for _, _, records in self.offers)

    def offered(self, peer: str, part: str, records: tuple[ChainRecord, ...], /) -> None:
        self.offers.append((peer, part, records))

    def said_goodbye(self, goodbye: Goodbye, /) -> None:
        self.goodbyes.append(goodbye)


async def serve(peer: Peer, records: Sequence[ChainRecord], heard: Heard | None = None) -> ChainStore:
    made = store(records)
    await ChainService(peer.network, peer.clock, {"": made}, heard).start()
    return made


# What honest peers do


def test_a_peer_that_is_behind_follows_page_by_page(meet: Meet) -> None:
    async def test(asha: Peer, bina: Peer) -> None:
        there = await serve(bina, MANY)
        changes: list[Change] = []
        mine = store(MANY[:3], changes.append)
        changes.clear()
        await follow(mine, asha.network, asha.clock, bina.id)
        assert mine.head == there.head
        assert [len(change.taken) for change in changes] == [PAGE + 47]
        await follow(there, asha.network, asha.clock, bina.id)
        assert mine.head == there.head

    meet(test)


def test_a_peer_on_another_branch_leaves_it_for_the_one_that_wins(meet: Meet) -> None:
    async def test(asha: Peer, bina: Peer) -> None:
        old = commits(PAGE + 60)
        end = chain(old).head
        won = [*old, reset(end, 1)]
        await serve(bina, won)
        changes: list[Change] = []
        start = chain(old[:2]).head
        mine = store([*old[:2], *commits(3, start, (entry(start, "p1"), entry(start, "p2", 9)))], changes.append)
        assert mine.head.step == 5
        left = mine.chain.records[2:]
        await follow(mine, asha.network, asha.clock, bina.id)
        assert mine.head.term == (1, won[-1].link)
        assert mine.chain.records == tuple(won)
        assert [record for change in changes for record in change.left] == list(left)

    meet(test)


def test_a_newcomer_begins_at_an_anchor_and_goes_on(meet: Meet) -> None:
    async def test(asha: Peer, bina: Peer) -> None:
        there = await serve(bina, MANY[:40])
        for link in (MANY[30].link, START.link):
            mine = store()
            mine.restart(*there.anchor_at(link))
            assert mine.head == there.chain.at(link)
            await follow(mine, asha.network, asha.clock, bina.id)
            assert mine.head == there.head

    meet(test)


def test_a_peer_that_is_too_far_behind_takes_a_state(meet: Meet) -> None:
    async def test(asha: Peer, bina: Peer) -> None:
        there = store(MANY[:20])
        there.restart(*there.anchor_at(MANY[10].link))
        there.adopt(MANY[11:20])
        await ChainService(bina.network, bina.clock, {"": there}).start()
        mine = store(MANY[:5])
        with pytest.raises(NothingInCommon) as raised:
            await follow(mine, asha.network, asha.clock, bina.id)
        assert raised.value.head == MANY[19].link
        await follow(store(MANY[:30]), asha.network, asha.clock, bina.id)

    meet(test)


def test_the_coordinator_hears_of_branches_and_leavers(meet: Meet) -> None:
    async def test(asha: Peer, bina: Peer) -> None:
        heard = Heard()
        await serve(bina, MANY[:2], heard)
        left = MANY[2:9]
        await offer(asha.network, asha.clock, bina.id, store(MANY[:2]), left)
        await offer(asha.network, asha.clock, bina.id, store(MANY[:2]), left)
        assert heard.offers == [(asha.id, "", tuple(left))]
        goodbye = Goodbye(run_id="run", part="", head=START.link, voter=voter(asha.id)).signed(signer(asha.id))
        await say_goodbye(asha.network, asha.clock, bina.id, goodbye)
        assert heard.goodbyes == [goodbye]
        with pytest.raises(OSError, match=r"."):
            await say_goodbye(asha.network, asha.clock, bina.id, goodbye.changed(voter=voter("another")))
        assert heard.goodbyes == [goodbye]

    meet(test)


def test_what_is_for_the_coordinator_is_refused_by_others(meet: Meet) -> None:
    async def test(asha: Peer, bina: Peer) -> None:
        await serve(bina, MANY[:2])
        with pytest.raises(OSError, match=r"."):
            await offer(asha.network, asha.clock, bina.id, store(MANY[:2]), MANY[2:4])

    meet(test)


# Bounds


async def answered(peer: Peer, server: str, question: bytes) -> tuple[Records, list[bytes]]:
    async with peer.network.open(server, SERVICE) as stream:
        await stream.send(question)
        answer = files.decode(await stream.receive(10_000), Records)
        return answer, [await stream.receive(files.MAX_MESSAGE) for _ in range(answer.count)]


@pytest.mark.parametrize("records", [MANY, WIDE], ids=["many", "wide"])
def test_an_answer_has_a_bounded_number_of_records_and_bytes(meet: Meet, records: list[ChainRecord]) -> None:
    async def test(asha: Peer, bina: Peer) -> None:
        there = await serve(bina, records)
        question = RecordsAfter(part="", known=(START.link,), term=(0, START.link), step=0)
        answer, page = await answered(asha, bina.id, files.encode(question))
        assert (answer.base, answer.head) == (START.link, records[-1].link)
        assert answer.count == len(page) < len(records)
        assert sum(map(len, page)) <= PAGE_BYTES
        assert len(page) == PAGE or sum(map(len, page)) > PAGE_BYTES - 100_000
        mine = store()
        await follow(mine, asha.network, asha.clock, bina.id)
        assert mine.head == there.head

    meet(test)


def test_a_record_that_is_larger_than_a_page_goes_alone() -> None:
    assert store(WIDE[:3]).page(START.link, PAGE, 1) == (WIDE[0],)


def test_nothing_is_answered_to_those_who_are_ahead(meet: Meet) -> None:
    async def test(asha: Peer, bina: Peer) -> None:
        await serve(bina, MANY[:5])
        question = RecordsAfter(part="", known=(START.link,), term=(0, START.link), step=9)
        answer, page = await answered(asha, bina.id, files.encode(question))
        assert (answer.step, answer.head, page) == (5, MANY[4].link, [])

    meet(test)


def test_a_chain_holds_a_bounded_number_of_bytes() -> None:
    records, anchor = WIDE[:40], Anchor(part="", reset=START, coordinator=START.coordinator)
    limit = 10 * len(files.encode(records[0]))
    made = ChainStore(MemoryDisk(), anchor, None, "organizer", VERIFIER, kept_bytes=limit)
    for record in records:
        made.adopt([record])
        assert sum(len(files.encode(each)) for each in made.chain.records) <= limit
    assert len(made.chain.records) > 5


NONSENSE = {
    "garbage": b"\xff" * 100,
    "nested": b"chain/records-after\n" + b"[" * 8000,
    "another part": files.encode(RecordsAfter(part="x", known=(START.link,), term=(0, ""), step=0)),
    "another record": files.encode(START),
    "too long": b"x" * 100_000,
    "an offer of nothing": files.encode(Offer(part="", head=MANY[2].link, count=3)),
}


async def provoke(peer: Peer, server: str, question: bytes) -> None:
    """Until the stream ends."""
    async with peer.network.open(server, SERVICE) as stream:
        for message in (question, b"nonsense", b"nonsense", b"nonsense"):
            await stream.send(message)
        while True:
            await stream.receive(10_000)


@pytest.mark.parametrize("question", NONSENSE.values(), ids=NONSENSE)
def test_a_nonsensical_question_ends_its_stream_and_nothing_else(meet: Meet, question: bytes) -> None:
    async def test(asha: Peer, bina: Peer) -> None:
        heard = Heard()
        there = await serve(bina, MANY[:5], heard)
        with pytest.raises((OSError, EOFError)):
            await provoke(asha, bina.id, question)
        mine = store()
        await follow(mine, asha.network, asha.clock, bina.id)
        assert mine.head == there.head
        assert not heard.offers

    meet(test)


def test_one_peer_takes_no_more_than_its_streams() -> None:
    async def test() -> None:
        world, clock = World(1), MemoryClock()
        await ChainService(MemoryNetwork(world, "bina"), clock, {"": store(MANY[:5])}).start()
        asha, chand = MemoryNetwork(world, "asha"), MemoryNetwork(world, "chand")
        async with asha.open("bina", SERVICE), asha.open("bina", SERVICE), asha.open("bina", SERVICE) as third:
            with pytest.raises((OSError, EOFError)):
                await third.receive(100)
            mine = store()
            await follow(mine, chand, clock, "bina")
            assert mine.head.step == 5
            began = clock.now()
            async with asha.open("bina", SERVICE) as another:
                with pytest.raises((OSError, EOFError)):
                    await another.receive(100)
            await clock.sleep(200)
            await follow(store(), asha, clock, "bina")
            assert clock.now() < began + 210, "those that ask nothing were closed"

    run(test())


# What liars answer

Script = Callable[[RecordsAfter, Stream], Awaitable[None]]


def header(question: RecordsAfter, count: int, **changed: object) -> bytes:
    claims = {"base": question.known[0], "count": count, "term": (0, START.link), "step": 99, "head": digest("head")}
    return files.encode(Records.model_validate(claims | changed))


def script(*messages: bytes, **changed: object) -> Script:
    """Claims to be ahead, and sends this."""

    async def answer(question: RecordsAfter, stream: Stream) -> None:
        await stream.send(header(question, len(messages), **changed))
        for message in messages:
            await stream.send(message)

    return answer


def raw(message: bytes) -> Script:
    async def answer(question: RecordsAfter, stream: Stream) -> None:
        await stream.send(message)

    return answer


SECOND = chain(MANY[:1]).head
FORGED = decided(SECOND, (entry(SECOND, "p1"), entry(SECOND, "p2")), "p1")
OTHER_KEY = reset(SECOND, 5).signed(signer("p1"))
OTHER_RUN = Reset.changed(reset(SECOND, 5), run_id="other").signed(signer("organizer"))
LIES: dict[str, Script] = {
    "more bytes than a page": script(*map(files.encode, WIDE), base=START.link),
    "garbage": raw(b"\xff\n{}"),
    "nested": raw(b"chain/records\n" + b"[" * 8000),
    "a long answer": raw(bytes(10_000)),
    "a long record": script(bytes(files.MAX_MESSAGE + 1)),
    "no record": script(b"x"),
    "not canonical": script(files.encode(MANY[1]).replace(b":", b": ", 1)),
    "does not follow": script(files.encode(MANY[2])),
    "one twice": script(files.encode(MANY[1]), files.encode(MANY[1])),
    "without a quorum": script(files.encode(FORGED)),
    "another's reset": script(files.encode(OTHER_KEY)),
    "another run": script(files.encode(OTHER_RUN)),
    "after what was not named": script(files.encode(MANY[4]), base=MANY[3].link),
    "after nothing": script(files.encode(MANY[1]), base=""),
    "ahead, and nothing": script(),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_liar_is_named_and_changes_nothing_that_is_not_proven(meet: Meet, lie: Script) -> None:
    async def test(asha: Peer, bina: Peer) -> None:
        asked = 0

        async def answer(peer: str, stream: Stream) -> None:
            nonlocal asked
            asked += 1
            question = files.decode(await stream.receive(10_000), RecordsAfter)
            await (lie if asked == 1 else script())(question, stream)
            await stream.closed()

        await bina.network.serve(SERVICE, answer)
        mine = store(MANY[:1])
        with pytest.raises(BadAnswer) as raised:
            await follow(mine, asha.network, asha.clock, bina.id)
        assert raised.value.peer == bina.id
        assert mine.chain.records in (tuple(MANY[:1]), tuple(MANY[:2]))

    meet(test)


@pytest.mark.parametrize("ahead", [False, True])
def test_endless_answers_end(meet: Meet, ahead: bool) -> None:
    """One valid record that does not win, again and again."""

    async def test(asha: Peer, bina: Peer) -> None:
        async def answer(peer: str, stream: Stream) -> None:
            question = files.decode(await stream.receive(10_000), RecordsAfter)
            await script(files.encode(MANY[0]), base=START.link, step=99 if ahead else 1)(question, stream)
            await stream.closed()

        await bina.network.serve(SERVICE, answer)
        mine = store(MANY[:1])
        await follow(mine, asha.network, asha.clock, bina.id)
        assert mine.chain.records == tuple(MANY[:1])

    meet(test)


@pytest.mark.parametrize("trickles", [False, True])
def test_a_peer_that_never_ends_its_answer_is_left(trickles: bool) -> None:
    async def test() -> None:
        world, clock = World(1), MemoryClock()

        async def answer(peer: str, stream: Stream) -> None:
            question = files.decode(await stream.receive(10_000), RecordsAfter)
            await stream.send(header(question, PAGE))
            while trickles:
                await stream.send(b"")
                await clock.sleep(5)
            await stream.closed(1e6)

        await MemoryNetwork(world, "bina").serve(SERVICE, answer)
        began = clock.now()
        with pytest.raises(TimeoutError):
            await follow(store(), MemoryNetwork(world, "asha"), clock, "bina")
        assert clock.now() < began + 200

    run(test())


def test_a_peer_that_breaks_off_is_no_liar() -> None:
    async def test() -> None:
        world, clock = World(1), MemoryClock()

        async def answer(peer: str, stream: Stream) -> None:
            question = files.decode(await stream.receive(10_000), RecordsAfter)
            await stream.send(header(question, 5))
            await stream.send(files.encode(MANY[0]))

        await MemoryNetwork(world, "bina").serve(SERVICE, answer)
        for server in ("bina", "nobody"):
            mine = store()
            with pytest.raises(OSError, match=r"."):
                await follow(mine, MemoryNetwork(world, "asha"), clock, server)
            assert mine.head == GENESIS

    run(test())
