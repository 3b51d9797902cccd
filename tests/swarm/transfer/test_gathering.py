"""Content by its hash from several donors, some of them hostile; real services over pairs of sockets."""

import asyncio
import hashlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.swarm.network.service import Service, Stream, decode, encode
from dedloc_kit.swarm.transfer import addressed, gathering, protocol
from dedloc_kit.swarm.transfer.addressed import ContentService, fetch_small
from dedloc_kit.swarm.transfer.contents import StateLayout
from dedloc_kit.swarm.transfer.donor import Donor
from dedloc_kit.swarm.transfer.download import STREAMS
from dedloc_kit.swarm.transfer.gathering import Gathering
from dedloc_kit.swarm.transfer.protocol import Header, Request
from dedloc_kit.swarm.transfer.store import Store
from tests.swarm.local_network import LocalNetwork

BLOCK = 2**16


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(protocol, "MESSAGE_BYTES", BLOCK // 4)
    monkeypatch.setattr(gathering, "PAUSE_SECONDS", (0.01, 0.02))
    monkeypatch.setattr(gathering, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(gathering, "REPORT_SECONDS", 0.05)


def contents(count: int, size: int, seed: int = 0) -> list[bytes]:
    generator = random.Random(seed)
    return [generator.randbytes(size) for _ in range(count)]


class Swarm:
    """Peers that give, and `me`, who fetches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = LocalNetwork()
        self.donors: list[str] = []
        self.asked: Counter[str] = Counter()
        """Streams that were opened."""
        self.store = Store(folder / "me")
        self.network.serve("me", ContentService(self.store.find))

    def donor(self, given: list[bytes]) -> str:
        name = f"donor{len(self.donors)}"
        store = Store(self.folder / name)
        for content in given:
            store.put(content)
        self.add(name, ContentService(store.find))
        return name

    def hostile(self, answer: Callable[[Request, Stream], Any]) -> str:
        name = f"donor{len(self.donors)}"
        self.add(name, Hostile(answer))
        return name

    def add(self, name: str, service: Service) -> None:
        self.network.serve(name, service)
        self.donors.append(name)

    @asynccontextmanager
    async def open(self, donor: str) -> AsyncIterator[Stream]:
        self.asked[donor] += 1
        async with self.network.endpoint("me").open(donor, ContentService) as stream:
            yield stream

    async def gather(
        self, wanted: list[bytes], on_progress: Callable[[int], None] = lambda _: None, seconds: float = 60
    ) -> set[bytes]:
        """What nobody gave."""
        by_hash = {hashlib.sha256(content).hexdigest(): content for content in wanted}
        sizes = {digest: len(content) for digest, content in by_hash.items()}
        async with asyncio.timeout(seconds):
            left = await Gathering(self.store, sizes, self.donors, self.open).complete(on_progress)
        for digest, content in by_hash.items():
            part = self.store.find(digest)
            assert (part is None) == (digest in left)
            assert part is None or part.read(0, len(content) + 1) == content
        assert not list(self.store.folder.glob(".*")), "nothing unfinished is left"
        return {by_hash[digest] for digest in left}


class Hostile(Service):
    """Answers each request as it likes."""

    name = ContentService.name

    def __init__(self, answer: Callable[[Request, Stream], Any]) -> None:
        self._answer = answer

    async def serve(self, peer: str, stream: Stream) -> None:
        while True:
            request = await stream.receive_question(Request)
            await self._answer(request, stream)


@pytest.fixture
def swarm(tmp_path: Path) -> Swarm:
    return Swarm(tmp_path)


def says(total: int) -> Callable[[Request], bytes]:
    return lambda request: encode(Header(answer="here", version=request.version, total=total))


async def send_block(request: Request, stream: Stream, total: int, byte: bytes = b"x") -> None:
    await stream.send(says(total)(request))
    await stream.send(byte * (min(request.end, total) - request.begin))


def test_contents_come_from_several_donors_and_go_on_from_who_fetched_them(swarm: Swarm) -> None:
    wanted = contents(3, 20 * BLOCK + 7) + contents(30, 100, seed=1)
    first, second = swarm.donor(wanted), swarm.donor(wanted)
    progress: list[int] = []

    async def run() -> None:
        assert await swarm.gather(wanted, progress.append) == set()
        assert progress == sorted(progress)
        assert progress[-1] == sum(map(len, wanted))
        assert min(swarm.asked[first], swarm.asked[second]) > 0
        digest = hashlib.sha256(wanted[-1]).hexdigest()
        swarm.network.serve("other", ContentService())
        opener = swarm.network.endpoint("other")
        assert await fetch_small(digest, 1000, ["me"], lambda d: opener.open(d, ContentService)) == wanted[-1]
        assert await fetch_small(digest, 99, ["me"], lambda d: opener.open(d, ContentService)) is None, "too large"

    asyncio.run(run())


def test_what_no_donor_has_is_named_and_the_rest_comes(swarm: Swarm) -> None:
    one, other, nobodys = contents(3, BLOCK)
    swarm.donor([one])
    swarm.donor([other])
    swarm.donors.append("gone")
    assert asyncio.run(swarm.gather([one, other, nobodys])) == {nobodys}


def test_hundreds_of_small_contents_do_not_cost_a_round_trip_each(swarm: Swarm) -> None:
    wanted = contents(300, 50)
    by_hash = {hashlib.sha256(content).hexdigest(): content for content in wanted}

    async def late(request: Request, stream: Stream) -> None:
        await asyncio.sleep(0.06)
        content = by_hash[request.version]
        await stream.send(says(len(content))(request))
        await stream.send(content)

    swarm.hostile(late)
    began = time.monotonic()
    assert asyncio.run(swarm.gather(wanted)) == set()
    assert time.monotonic() - began < 12, "one after the other they take 18 s"
    assert swarm.asked.total() <= 2 * STREAMS


async def wrong_bytes(request: Request, stream: Stream) -> None:
    await send_block(request, stream, 20 * BLOCK)


async def longer(request: Request, stream: Stream) -> None:
    await send_block(request, stream, 20 * BLOCK + 1)


async def shorter(request: Request, stream: Stream) -> None:
    """So that what others give seems too long, whom it lets join."""
    await stream.send(says(19 * BLOCK)(request))
    await asyncio.sleep(0.3)
    await stream.send(b"x" * BLOCK)


async def endless_message(request: Request, stream: Stream) -> None:
    await stream.send(says(20 * BLOCK)(request))
    stream.writer.write((2**31).to_bytes(4, "big"))
    await stream.writer.drain()


async def another_hash(request: Request, stream: Stream) -> None:
    await stream.send(says(20 * BLOCK)(request.model_copy(update={"version": "0" * 64})))
    await asyncio.sleep(0.3)
    await stream.send(b"x" * BLOCK)


async def garbage(request: Request, stream: Stream) -> None:
    await stream.send(b"\xc1garbage")


FAULTS = [wrong_bytes, longer, shorter, endless_message, another_hash, garbage]


def banned(caplog: pytest.LogCaptureFixture) -> set[str]:
    return {str(record.args[0]) for record in caplog.records if record.args and "not asked again" in record.message}  # type: ignore[index]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_donor_that_lies_is_not_asked_again(
    swarm: Swarm, fault: Callable[[Request, Stream], Any], caplog: pytest.LogCaptureFixture
) -> None:
    wanted = contents(8, 20 * BLOCK)
    liar = swarm.hostile(fault)
    assert asyncio.run(swarm.gather(wanted)) == set(wanted)
    assert swarm.asked[liar] <= STREAMS
    assert banned(caplog) == {liar}


@pytest.mark.parametrize("fault", FAULTS)
def test_all_comes_from_honest_donors_beside_one_that_lies_and_none_of_them_is_blamed(
    swarm: Swarm, fault: Callable[[Request, Stream], Any], caplog: pytest.LogCaptureFixture
) -> None:
    wanted = contents(4, 20 * BLOCK)
    liar, _honest, _another = swarm.hostile(fault), swarm.donor(wanted), swarm.donor(wanted)
    assert asyncio.run(swarm.gather(wanted)) == set()
    assert banned(caplog) <= {liar}


def test_one_that_lies_about_a_block_of_each_content_does_not_spoil_them_for_long(
    swarm: Swarm, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = contents(3, 20 * BLOCK)
    by_hash = {hashlib.sha256(content).hexdigest(): content for content in wanted}

    async def honest(request: Request, stream: Stream) -> None:
        await asyncio.sleep(0.05)
        await stream.send(says(20 * BLOCK)(request))
        await stream.send(memoryview(by_hash[request.version])[request.begin : request.end])

    async def lie_in_the_middle(request: Request, stream: Stream) -> None:
        if not request.begin:
            await asyncio.sleep(0.1)
            return await honest(request, stream)
        await send_block(request, stream, 20 * BLOCK)

    liar = swarm.hostile(lie_in_the_middle)
    for _ in range(2):
        swarm.hostile(honest)
    assert asyncio.run(swarm.gather(wanted, seconds=30)) == set()
    assert banned(caplog) <= {liar}


async def stalls(request: Request, stream: Stream) -> None:
    await stream.send(says(20 * BLOCK)(request))
    await asyncio.sleep(3600)


async def never_begins(request: Request, stream: Stream) -> None:
    await asyncio.sleep(3600)


async def drips(request: Request, stream: Stream) -> None:
    await stream.send(says(20 * BLOCK)(request))
    while True:
        await stream.send(b"x")
        await asyncio.sleep(0.2)


async def only_says_hello(request: Request, stream: Stream) -> None:
    while True:
        await stream.send(b"")
        await asyncio.sleep(0.2)


@pytest.mark.parametrize("fault", [stalls, never_begins, drips, only_says_hello])
def test_what_is_slow_at_one_donor_is_taken_over_by_another(
    swarm: Swarm, fault: Callable[[Request, Stream], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "TAKE_OVER_SECONDS", 0.3)
    wanted = contents(4, 20 * BLOCK)
    swarm.hostile(fault)
    swarm.donor(wanted)
    assert asyncio.run(swarm.gather(wanted, seconds=15)) == set()


def test_a_donor_that_dies_is_left_and_what_it_brought_is_kept(swarm: Swarm) -> None:
    wanted = contents(1, 100 * BLOCK)
    blocks = 0

    async def dies(request: Request, stream: Stream) -> None:
        nonlocal blocks
        blocks += 1
        if blocks > 30:
            swarm.network.cut("donor0")
            raise OSError("dead")
        await stream.send(says(100 * BLOCK)(request))
        await stream.send(memoryview(wanted[0])[request.begin : request.end])

    given = Counter[str]()

    async def counting(request: Request, stream: Stream) -> None:
        given["blocks"] += 1
        await stream.send(says(100 * BLOCK)(request))
        while blocks < 30:
            await asyncio.sleep(0.01)
        await stream.send(memoryview(wanted[0])[request.begin : request.end])

    swarm.hostile(dies)
    swarm.hostile(counting)
    assert asyncio.run(swarm.gather(wanted)) == set()
    assert 70 <= given["blocks"] <= 70 + 2 * STREAMS


def test_when_all_are_busy_forever_it_is_given_up(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "PATIENCE_SECONDS", 0.5)

    async def busy(request: Request, stream: Stream) -> None:
        await stream.send(encode(Header(answer="busy")))

    wanted = contents(2, 10)
    swarm.hostile(busy)
    assert asyncio.run(swarm.gather(wanted)) == set(wanted)


def test_it_stops_when_told_and_leaves_nothing_behind(swarm: Swarm) -> None:
    async def run() -> None:
        wanted = contents(2, 20 * BLOCK)
        swarm.hostile(stalls)
        task = asyncio.create_task(swarm.gather(wanted))
        while not list(swarm.store.folder.glob(".*")):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not list(swarm.store.folder.iterdir())

    asyncio.run(run())


def test_a_full_disk_is_one_clear_error(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, begin: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    wanted = contents(20, 10)
    swarm.donor(wanted)
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(UserError, match=r"is full: .* free some space"):
        asyncio.run(swarm.gather(wanted))
    assert not list(swarm.store.folder.iterdir())
    with pytest.raises(UserError, match="is full"):
        swarm.store.make_room(2**62)


def test_more_askers_than_places_wait_for_their_turn_and_all_get_it(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = contents(6, 3 * BLOCK)
    donor = swarm.donor(wanted)
    served: list[int] = []
    give = ContentService._give

    async def counted(self: ContentService, request: Request, stream: Stream, place: Any) -> None:
        served.append(len(self._places))
        await give(self, request, stream, place)

    monkeypatch.setattr(ContentService, "_give", counted)

    async def run() -> None:
        sizes = {hashlib.sha256(content).hexdigest(): len(content) for content in wanted}

        async def another(number: int) -> set[str]:
            name = f"asker{number}"
            swarm.network.serve(name, ContentService())
            endpoint = swarm.network.endpoint(name)
            store = Store(swarm.folder / name)
            opened = Gathering(store, sizes, [donor], lambda d: endpoint.open(d, ContentService))
            return await opened.complete(lambda _: None)

        async with asyncio.timeout(60):
            assert await asyncio.gather(*map(another, range(5))) == [set()] * 5
        assert max(served) <= addressed.MAX_UPLOADS

    asyncio.run(run())


@pytest.mark.parametrize("name", ["", "ab", "../me/secret", "A" * 64, "g" * 64, "0" * 63, "0" * 64 + "\n"])
def test_a_name_that_is_no_hash_ends_the_stream_before_anything_is_looked_for(swarm: Swarm, name: str) -> None:
    looked: list[str] = []
    swarm.add("picky", ContentService(looked.append))

    async def run() -> None:
        async with asyncio.timeout(20), swarm.open("picky") as stream:
            await stream.send(encode(Request(what="content", version=name, end=10)))
            with pytest.raises(EOFError):
                await stream.receive(1000)
        assert looked == []

    asyncio.run(run())


def test_of_an_absurd_range_only_what_there_is_is_sent(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addressed, "READ_BYTES", 100)
    (content,) = contents(1, 1000)
    donor, digest = swarm.donor([content]), hashlib.sha256(content).hexdigest()

    async def sent(begin: int, end: int) -> bytes:
        async with asyncio.timeout(20), swarm.open(donor) as stream:
            await stream.send(encode(Request(what="content", version=digest, begin=begin, end=end)))
            header = await stream.receive_record(Header)
            assert (header.answer, header.total) == ("here", 1000)
            came = b""
            await stream.send(encode(Request(what="content", version="0" * 64)))
            while len(message := await stream.receive(1000)) == 100 or message == content[950:]:
                came += message
            assert decode(message)["answer"] == "nothing"
            return came

    async def run() -> None:
        assert await sent(0, 2**53) == content
        assert await sent(500, 2) == await sent(2**53, 2**53) == await sent(2**53, 0) == b""
        assert await sent(950, 2**53) == content[950:]

    asyncio.run(run())


def test_a_file_that_was_shortened_ends_the_stream_and_not_the_donor(swarm: Swarm) -> None:
    wanted = contents(2, 3 * BLOCK)
    donor = swarm.donor(wanted)
    path = swarm.folder / donor / hashlib.sha256(wanted[0]).hexdigest()
    found = Store(swarm.folder / donor).find(path.name)
    assert found
    path.write_bytes(b"short")
    with pytest.raises(OSError, match="shorter"):
        found.read(0, BLOCK)
    assert wanted[0] in asyncio.run(swarm.gather(wanted, seconds=30))


def test_a_store_finds_what_is_damaged_and_begins_without_what_was_unfinished(tmp_path: Path) -> None:
    store = Store(tmp_path)
    digests = [store.put(content) for content in (b"right", b"changed", b"cut off", b"")]
    (tmp_path / digests[1]).write_bytes(b"chanGed")
    (tmp_path / digests[2]).write_bytes(b"cut")
    store.begin("0" * 64, 10)
    again = Store(tmp_path)
    assert [again.holds(digest) for digest in digests] == [True, False, False, True]
    assert {path.name for path in tmp_path.iterdir()} == {digests[0], digests[3]}


def test_something_small_comes_from_an_honest_donor_though_others_lie(swarm: Swarm) -> None:
    (content,) = contents(1, 1000)
    digest = hashlib.sha256(content).hexdigest()

    async def lie(request: Request, stream: Stream) -> None:
        await send_block(request, stream, 1000)

    for _ in range(3):
        swarm.hostile(lie)
    assert asyncio.run(fetch_small(digest, 1000, swarm.donors, swarm.open)) is None
    swarm.donor([content])
    assert asyncio.run(fetch_small(digest, 1000, swarm.donors, swarm.open)) == content


def test_who_asks_another_service_for_content_is_not_served(swarm: Swarm) -> None:
    async def nothing(_: str) -> None:
        return None

    class Training(ContentService):
        async def serve(self, peer: str, stream: Stream) -> None:
            await Donor(nothing, StateLayout([])).serve(peer, stream)

    swarm.add("training", Training())

    async def run() -> None:
        async with asyncio.timeout(20), swarm.open("training") as stream:
            await stream.send(encode(Request(what="content", version="0" * 64)))
            with pytest.raises(EOFError):
                await stream.receive(1000)

    asyncio.run(run())
