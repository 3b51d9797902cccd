"""What holds for every implementation of the seams: in memory, and on this machine and hivemind."""

import asyncio
import resource
import string
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest

from dedloc_kit.machine.dialling import run_in_loop
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.kinds import CONTRIBUTIONS, PROGRESS, SERVING, STAGES, Kind
from dedloc_kit.swarm.network.names import Names
from dedloc_kit.swarm.p2p import seams
from dedloc_kit.swarm.p2p.adapters import KeySigner, KeyVerifier
from dedloc_kit.swarm.p2p.local import FolderDisk, SystemClock
from tests.identities import an_identity
from tests.simulation.keys import SimulatedSigner, SimulatedVerifier
from tests.swarm.harness import RUN_ID, a_signer, progress
from tests.swarm.p2p import in_memory
from tests.swarm.p2p.meeting import Meeting, Peer

NOBODY: str = a_signer(2).peer
RANDOM: tuple[seams.Random, ...] = (Random(1), SystemRandom())


@dataclass(frozen=True)
class Machine:
    """What a peer has without others.

    :ivar signer: of this peer
    :ivar another: of another peer
    :ivar full: while it is entered, the disk is full
    """

    run: Callable[[Coroutine[Any, Any, None]], None]
    clock: seams.Clock
    disk: seams.Disk
    signer: seams.Signer
    another: seams.Signer
    verifier: seams.Verifier
    full: Callable[[], AbstractContextManager[None]]


@pytest.fixture(params=["memory", "local"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    if request.param == "memory":
        disk = in_memory.MemoryDisk()

        @contextmanager
        def full() -> Iterator[None]:
            disk.full = True
            try:
                yield
            finally:
                disk.full = False

        mine, another = SimulatedSigner(1, "asha"), SimulatedSigner(1, "bina")
        verifier = SimulatedVerifier(1)
        yield Machine(in_memory.run, in_memory.MemoryClock(), disk, mine, another, verifier, full)
        return

    @contextmanager
    def no_longer_files() -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    me, other = (KeySigner(Signer(an_identity(tmp_path / name))) for name in ("asha", "bina"))
    folder = FolderDisk(tmp_path / "disk")
    yield Machine(run_in_loop, SystemClock(), folder, me, other, KeyVerifier(), no_longer_files)
    folder.close()


# Clock


def test_a_clock_goes_on_while_one_sleeps(machine: Machine) -> None:
    async def test() -> None:
        began = machine.clock.now()
        await machine.clock.sleep(0.01)
        assert machine.clock.now() > began
        await machine.clock.sleep(0)
        await machine.clock.sleep(-1)
        assert machine.clock.time() > 1.6e9, "it is Unix time"

    machine.run(test())


def test_a_deadline_ends_what_waits_and_nothing_else(machine: Machine) -> None:
    async def test() -> None:
        clock, never = machine.clock, asyncio.Event()
        for seconds in (0.01, 0.0, -5.0):
            with pytest.raises(TimeoutError):
                async with clock.deadline(clock.now() + seconds):
                    await never.wait()
        for at in (clock.now() + 1000, inf):
            async with clock.deadline(at):
                await clock.sleep(0.001)

    machine.run(test())


# Disk


def test_a_disk_holds_what_was_written_last(machine: Machine) -> None:
    async def test() -> None:
        disk = machine.disk
        assert await disk.read("vote", 100) is None
        await disk.remove("vote")
        await disk.write("vote", b"first")
        await asyncio.gather(*(disk.write("vote", str(number).encode()) for number in range(10)))
        assert await disk.read("vote", 100) == b"9"
        await disk.write("vote-2", b"")
        assert await disk.read("vote-2", 0) == b""
        await disk.remove("vote")
        assert await disk.read("vote", 100) is None

    machine.run(test())


def test_a_disk_reads_no_more_than_it_should(machine: Machine) -> None:
    async def test() -> None:
        await machine.disk.write("vote", bytes(100))
        assert await machine.disk.read("vote", 100) == bytes(100)
        with pytest.raises(ValueError, match="more than 99 bytes"):
            await machine.disk.read("vote", 99)

    machine.run(test())


def test_a_disk_has_no_files_elsewhere(machine: Machine) -> None:
    disk = machine.disk

    async def test() -> None:
        for name in ["", ".", "..", "../vote", "a/b", "/etc/passwd", "a\0b", "a b", ".vote"]:
            for work in (disk.write(name, b"x"), disk.read(name, 9), disk.remove(name)):
                with pytest.raises(ValueError, match="name of a file"):
                    await work

    machine.run(test())


def test_a_full_disk_says_so_and_holds_what_it_held(machine: Machine) -> None:
    async def test() -> None:
        await machine.disk.write("vote", b"old")
        with machine.full(), pytest.raises(OSError):  # noqa: PT011
            await machine.disk.write("vote", bytes(100))
        assert await machine.disk.read("vote", 100) == b"old"
        await machine.disk.write("vote", b"new")
        assert await machine.disk.read("vote", 100) == b"new"

    machine.run(test())


# Random


@pytest.mark.parametrize("some", RANDOM)
def test_random_numbers_are_within_their_bounds(some: seams.Random) -> None:
    assert 0 <= some.random() < 1
    assert 2 <= some.uniform(2, 3) <= 3
    assert some.randrange(3) in (0, 1, 2)
    assert len(some.randbytes(16)) == 16
    assert some.choice("abc") in "abc"
    assert sorted(some.sample(range(5), 5)) == list(range(5))
    shuffled = list(range(5))
    some.shuffle(shuffled)
    assert sorted(shuffled) == list(range(5))


# Signatures


def test_a_signature_is_of_its_author_and_content_alone(machine: Machine) -> None:
    content = b"vote\0[signature:AAAA]"
    signature = machine.signer.sign(content)
    assert machine.verifier.valid(machine.signer.peer, content, signature)
    assert not machine.verifier.valid(machine.another.peer, content, signature)
    assert not machine.verifier.valid(machine.signer.peer, content + b"x", signature)
    assert not machine.verifier.valid(machine.signer.peer, content, machine.another.sign(content))
    assert signature.isascii()
    assert len(signature) <= 1280


def test_nobody_can_spell_a_signature_in_another_way(machine: Machine) -> None:
    signature = machine.signer.sign(b"content")
    for place in range(len(signature) - 4, len(signature)):
        for letter in {*string.ascii_letters, *string.digits, *"+/="} - {signature[place]}:
            other = signature[:place] + letter + signature[place + 1 :]
            assert not machine.verifier.valid(machine.signer.peer, b"content", other)


def test_any_text_may_come_as_a_signature(machine: Machine) -> None:
    signed = machine.signer.sign(b"content")
    for text in ["", "A", "AAAA", "é", "[signature:AAAA]", "A" * 100_000, "kA==", "\x00"]:
        assert not machine.verifier.valid(machine.signer.peer, b"content", text)
        assert not machine.verifier.valid(text, b"content", signed)


# Network


def test_messages_come_whole_and_in_order(meet: Callable[[Meeting], None]) -> None:
    async def test(asha: Peer, bina: Peer) -> None:
        callers = []

        async def echo(peer: str, stream: seams.Stream) -> None:
            callers.append(peer)
            for _ in range(3):
                await stream.send(await stream.receive(100_000))
            await stream.closed()

        await bina.network.serve("echo", echo)
        async with asha.network.open(bina.id, "echo") as one, asha.network.open(bina.id, "echo") as other:
            opened = one.heard
            for content in (b"a", bytes(100_000), b"c"):
                await one.send(content)
                await other.send(memoryview(content + b"")[:1])
            assert [await one.receive(100_000) for _ in range(3)] == [b"a", bytes(100_000), b"c"]
            assert [await other.receive(1) for _ in range(3)] == [b"a", b"\0", b"c"]
            assert opened <= one.heard <= asha.clock.now()
        assert callers == [asha.id] * 2

    meet(test)


def test_a_message_that_is_too_long_is_refused_and_an_empty_one_skipped(meet: Callable[[Meeting], None]) -> None:
    async def test(asha: Peer, bina: Peer) -> None:
        async def long(peer: str, stream: seams.Stream) -> None:
            await stream.send(b"")
            await stream.send(b"x")
            await stream.send(b"")
            await stream.send(bytes(100))
            await stream.closed()

        await bina.network.serve("long", long)
        async with asha.network.open(bina.id, "long") as stream:
            assert await stream.receive(99) == b"x"
            with pytest.raises(ValueError, match="100 bytes"):
                await stream.receive(99)

    meet(test)


def test_a_stream_ends_with_its_handler_and_the_service_goes_on(meet: Callable[[Meeting], None]) -> None:
    errors: list[Exception | None] = [None, ValueError("nonsense"), EOFError(), ConnectionResetError()]

    async def test(asha: Peer, bina: Peer) -> None:
        ends = iter(errors)

        async def once(peer: str, stream: seams.Stream) -> None:
            await stream.receive(1)
            if (error := next(ends)) is not None:
                raise error

        await bina.network.serve("once", once)
        for _ in errors:
            async with asha.network.open(bina.id, "once") as stream:
                await stream.send(b"x")
                with pytest.raises((EOFError, OSError)):
                    await stream.receive(1)

    meet(test)


def test_a_handler_sees_that_the_caller_has_closed_the_stream(meet: Callable[[Meeting], None]) -> None:
    async def test(asha: Peer, bina: Peer) -> None:
        ended = asyncio.Event()

        async def wait(peer: str, stream: seams.Stream) -> None:
            with pytest.raises((EOFError, OSError)):
                await stream.receive(1)
            ended.set()

        await bina.network.serve("wait", wait)
        async with asha.network.open(bina.id, "wait") as stream:
            pass
        await ended.wait()
        with pytest.raises(OSError):  # noqa: PT011
            await stream.send(b"x")
        stream.close()

    meet(test)


def test_a_peer_or_service_that_is_not_there_is_not_reached(meet: Callable[[Meeting], None]) -> None:
    async def test(asha: Peer, bina: Peer) -> None:
        for peer, service in ((bina.id, "nothing"), (NOBODY, "echo")):
            with pytest.raises((EOFError, OSError)):
                async with asha.network.open(peer, service) as stream:
                    await stream.receive(1)

    meet(test)


# Directory


async def seen(peer: Peer, kind: Kind[Any], there: Callable[[dict[str, seams.Entry]], bool]) -> dict[str, seams.Entry]:
    """What lies under a key as soon as it is so: a look may miss an entry."""
    while not there(found := dict(await peer.records.get(kind.key(Names(RUN_ID))))):
        await peer.clock.sleep(0.1)
    return found


def test_each_peer_has_its_newest_record_under_a_key(meet: Callable[[Meeting], None]) -> None:
    async def test(asha: Peer, bina: Peer) -> None:
        key, until = PROGRESS.key(Names(RUN_ID)), asha.clock.time() + 50
        assert await asha.records.put(key, progress(step=1), until)
        assert await bina.records.put(key, progress(step=2), until)
        both = await seen(bina, PROGRESS, lambda found: len(found) == 2)
        assert {peer: PROGRESS.read(RUN_ID, entry.value) for peer, entry in both.items()}.keys() == {asha.id, bina.id}
        assert both[asha.id].value["step"] == 1
        assert both[asha.id].expires == until
        assert await asha.records.put(key, progress(step=3), until + 1)
        assert not await asha.records.put(key, progress(step=9), until - 1), "it does not outlast the last one"
        await seen(bina, PROGRESS, lambda found: asha.id in found and found[asha.id].value["step"] == 3)
        found = await asha.records.get(key, sufficient=until)
        assert found[asha.id].value["step"] == 3
        assert await asha.records.put(key, None, until + 2)
        await seen(bina, PROGRESS, lambda found: asha.id in found and found[asha.id].value is None)

    meet(test)


def test_nothing_lies_under_another_key_or_after_its_time(meet: Callable[[Meeting], None]) -> None:
    async def test(asha: Peer, bina: Peer) -> None:
        assert await asha.records.get(SERVING.key(Names(RUN_ID))) == {}
        assert await asha.records.get("no such key") == {}
        await asha.records.put(STAGES.key(Names(RUN_ID)), None, asha.clock.time() + 0.5)
        await asha.clock.sleep(0.6)
        for peer in (asha, bina):
            assert await peer.records.get(STAGES.key(Names(RUN_ID))) == {}
        assert await asha.records.get(CONTRIBUTIONS.key(Names(RUN_ID)), sufficient=asha.clock.time()) == {}

    meet(test)
