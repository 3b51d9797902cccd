"""Peers that cannot dial each other meet at one that both are connected to; real nodes on loopback."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.records.orders import Notice, shortened
from dedloc_kit.swarm.remote.forwarding import Limits, Rate
from tests.swarm.network.test_service import RUN_ID, Place
from tests.swarm.remote.meeting import Echo, Loop, Meeting, Pouring, Unforwarded, meeting, until

EACH = 3
BYTES_EACH = 2**20


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Meeting, Loop]]:
    """The organizer forwards as much as anyone wants, Frank little."""
    with meeting(tmp_path_factory.mktemp("meeting")) as (met, loop):
        loop.run(met.forward(met.frank, Limits(streams_each=EACH, bytes_each=BYTES_EACH)))
        loop.run(met.forward(met.organizer, Limits(bytes_each=2**30, bytes=2**30)))
        yield met, loop


def copying() -> int:
    """Tasks of all forwarders: they live in one loop here."""
    return sum("_copy" in repr(task.get_coro()) for task in asyncio.all_tasks())


def test_two_peers_that_nobody_can_dial_meet_through_one_that_both_are_connected_to(
    met: tuple[Meeting, Loop],
) -> None:
    meeting, loop = met
    bob = meeting.bob.signer.peer

    async def call() -> None:
        with pytest.raises(OSError, match=r"."):
            async with meeting.endpoints[meeting.alice].open(bob, Echo):
                pass
        meeting.echo.callers.clear()
        async with meeting.caller(meeting.organizer).open(bob, Echo, b"first") as stream:
            assert await stream.receive(100) == b"first"
            for size in (1, 2**14, 2**14 + 1, 2**20):
                said = os.urandom(size)
                await stream.send(said)
                assert await stream.receive(size) == said
        assert meeting.echo.callers == [meeting.alice.signer.peer], "not the forwarder"
        await until(lambda: not meeting.echo.open)
        await until(lambda: not copying())

    loop.run(call())


def test_both_ends_may_send_at_the_same_time(met: tuple[Meeting, Loop]) -> None:
    meeting, loop = met
    said = [os.urandom(2**19) for _ in range(8)]

    async def call() -> None:
        async with meeting.caller(meeting.organizer).open(meeting.bob.signer.peer, Echo) as stream:

            async def send() -> None:
                for message in said:
                    await stream.send(message)

            sending = asyncio.create_task(send())
            assert [await stream.receive(2**19) for _ in said] == said
            await sending

    loop.run(call())


def test_when_the_end_closes_the_stream_its_caller_hears_of_it(met: tuple[Meeting, Loop]) -> None:
    meeting, loop = met

    async def call() -> None:
        async with meeting.caller(meeting.organizer).open(meeting.bob.signer.peer, Echo, b"bye") as stream:
            with pytest.raises((EOFError, ConnectionError)):
                await stream.receive(100)
        await until(lambda: not copying())

    loop.run(call())


def test_a_service_that_is_not_named_is_not_reached_through_others(met: tuple[Meeting, Loop]) -> None:
    meeting, loop = met

    async def call() -> None:
        with pytest.raises(ConnectionError, match="neither directly nor through"):
            async with meeting.caller(meeting.organizer).open(meeting.bob.signer.peer, Unforwarded):
                pass
        assert not meeting.unforwarded.callers

    loop.run(call())


def test_nobody_is_dialled_for_a_caller(met: tuple[Meeting, Loop], tmp_path_factory: pytest.TempPathFactory) -> None:
    meeting, loop = met
    stranger = Place(tmp_path_factory.mktemp("stranger"), "stranger", meeting.organizer)
    opened: list[str] = []

    async def call() -> None:
        endpoint = meeting.endpoints[meeting.organizer]
        meant, endpoint.open = endpoint.open, lambda peer, *_: opened.append(peer)  # type: ignore[method-assign, assignment]
        try:
            with pytest.raises(ConnectionError):
                async with meeting.caller(meeting.organizer).open(stranger.signer.peer, Echo):
                    pass
        finally:
            endpoint.open = meant  # type: ignore[method-assign]
        assert not opened

    loop.run(call())


def test_a_caller_has_so_many_streams_at_a_time_and_others_theirs(met: tuple[Meeting, Loop]) -> None:
    meeting, loop = met
    bob, frank = meeting.bob.signer.peer, meeting.frank.signer.peer

    async def call() -> None:
        caller = meeting.caller(meeting.frank)
        async with AsyncExitStack() as stack:
            for _ in range(EACH):
                await stack.enter_async_context(caller.open(bob, Echo))
            with pytest.raises(ConnectionError):
                async with caller.open(bob, Echo):
                    pass
            async with meeting.caller_of(meeting.organizer)._through(frank, bob, Echo, b"hello") as others:
                assert await others.receive(100) == b"hello"
        await until(lambda: not copying())
        async with caller.open(bob, Echo, b"again") as stream:
            assert await stream.receive(100) == b"again"

    loop.run(call())


def test_who_reads_nothing_holds_up_nobody_else(met: tuple[Meeting, Loop]) -> None:
    meeting, loop = met
    bob = meeting.bob.signer.peer

    async def call() -> None:
        caller = meeting.caller(meeting.organizer)
        async with caller.open(bob, Pouring):
            before = 0
            while before != meeting.pouring.poured or not before:  # until nothing goes on any more
                before = meeting.pouring.poured
                await asyncio.sleep(0.3)
            async with caller.open(bob, Echo, b"hello") as stream:
                assert await stream.receive(100) == b"hello"
            assert meeting.pouring.open
        await until(lambda: not copying() and not meeting.pouring.open)

    loop.run(call())


def test_who_has_more_than_its_share_of_bytes_waits_and_nobody_else(met: tuple[Meeting, Loop]) -> None:
    meeting, loop = met
    bob, frank = meeting.bob.signer.peer, meeting.frank.signer.peer

    async def call() -> None:
        began = time.monotonic()
        async with meeting.caller(meeting.frank).open(bob, Echo, bytes(BYTES_EACH)) as stream:
            slow = asyncio.create_task(stream.receive(BYTES_EACH))
            async with meeting.caller_of(meeting.organizer)._through(frank, bob, Echo, b"hello") as others:
                assert await others.receive(100) == b"hello"
            assert not slow.done()
            await slow
        assert time.monotonic() - began > 0.8, "twice of what is right in a second went through, half of it at once"
        began = time.monotonic()
        async with meeting.caller(meeting.frank).open(bob, Echo, bytes(BYTES_EACH // 2)) as stream:
            await stream.receive(BYTES_EACH)
        assert time.monotonic() - began > 0.4, "who calls anew has no new share"

    loop.run(call())


def test_all_together_have_so_many_bytes(met: tuple[Meeting, Loop], monkeypatch: pytest.MonkeyPatch) -> None:
    meeting, loop = met
    monkeypatch.setattr(meeting.forwarding, "_rate", Rate(BYTES_EACH))

    async def call() -> None:
        began = time.monotonic()
        async with meeting.caller(meeting.organizer).open(meeting.bob.signer.peer, Echo, bytes(BYTES_EACH)) as stream:
            await stream.receive(BYTES_EACH)
        assert time.monotonic() - began > 0.8

    loop.run(call())


def test_a_rate_lets_through_what_is_right_and_remembers_no_more_than_a_second() -> None:
    async def spend() -> list[float]:
        rate, took = Rate(100_000), list[float]()
        for count in (100_000, 30_000, 30_000):
            began = time.monotonic()
            await rate.spend(count)
            took.append(time.monotonic() - began)
        assert not rate.unused
        return took

    at_once, *waiting = in_own_loop(spend())
    assert at_once < min(waiting)
    assert min(waiting) > 0.2


@pytest.mark.parametrize(
    ("who", "whom"), [("bob", "alice"), ("organizer", "alice"), ("organizer", "bob")], ids=lambda name: name
)
def test_who_is_sent_away_loses_its_forwarded_streams(met: tuple[Meeting, Loop], who: str, whom: str) -> None:
    meeting, loop = met
    gate, refused = getattr(meeting, who).gate, getattr(meeting, whom).signer.peer

    def note(*peers: str) -> None:
        gate.follow(b"", Notice(run_id=RUN_ID, time=gate.notice.time + 1, refused=shortened(peers)))

    async def call() -> None:
        caller = meeting.caller(meeting.organizer)
        async with caller.open(meeting.bob.signer.peer, Echo, b"hello") as stream:
            assert await stream.receive(100) == b"hello"
            note(refused)
            # No other kind of error: a caller opens a line again that breaks, and of the other end this says nothing.
            with pytest.raises((EOFError, ConnectionError)):
                await stream.receive(100)
            await until(lambda: not meeting.echo.open)
            await until(lambda: not copying())
        with pytest.raises(ConnectionError):
            async with caller.open(meeting.bob.signer.peer, Echo, b"hello") as stream:
                pass

    try:
        loop.run(call())
    finally:
        note()
