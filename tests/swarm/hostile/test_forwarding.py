"""Hostile forwarders, and hostile callers that come through one; real nodes on loopback."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hivemind.p2p import P2P, PeerID

from dedloc_kit.swarm.network.names import Names
from dedloc_kit.swarm.network.service import Stream, decode, encode
from dedloc_kit.swarm.remote import forwarded
from dedloc_kit.swarm.remote.calling import Caller
from dedloc_kit.swarm.remote.forwarded import ForwardedService
from dedloc_kit.swarm.remote.forwarding import ForwardingService, Limits, Rate, Wanted
from dedloc_kit.swarm.remote.greeting import MAX_GREETING_BYTES, Credential, Greeter, Greeting
from dedloc_kit.swarm.remote.lines import Lines
from dedloc_kit.swarm.remote.tls import Certificate, secured
from tests.swarm.network.test_service import RUN_ID, Place
from tests.swarm.remote.meeting import OUTGOING, QUICK, Echo, Loop, Meeting, Unforwarded, meeting, until

Alter = Callable[[int, bytes, bytes], tuple[bytes, ...]]
"""What becomes of the n-th record of TLS, given the one before it."""
Intrude = Callable[["Evil", Stream, Stream], Awaitable[Stream]]


class Evil(ForwardingService):
    """Forwards until it is told to do evil."""

    def __init__(self, met: Meeting) -> None:
        super().__init__(met.endpoints[met.frank], met.frank.gate)
        self.met = met
        self.alter: dict[str, Alter] = {}
        """By whom the records are from; from the next one on."""
        self.intrude: Intrude | None = None
        self.heard: list[bytes] = []
        self.callers: list[Stream] = []

    async def _join(self, rate: Rate, one: Stream, other: Stream) -> None:
        self.callers.append(one)
        if self.intrude is None:
            return await super()._join(rate, one, other)
        inner = await self.intrude(self, one, other)
        self.heard.append(await inner.receive(100))

    async def _copy(self, rate: Rate, source: Stream, target: Stream) -> None:
        author = "alice" if source in self.callers else "bob"
        reader: Any = source.reader
        head = await reader.readexactly(4)
        target.writer.write(head + await reader.readexactly(int.from_bytes(head, "big")))
        number, before = 0, b""
        while True:
            head = await reader.readexactly(5)
            record = head + await reader.readexactly(int.from_bytes(head[3:], "big"))
            alter = self.alter.get(author)
            for piece in (record,) if alter is None else alter(number, record, before):
                target.writer.write(piece)
            number, before = number + (alter is not None), record


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Meeting, Loop, Evil]]:
    """Frank is evil, the organizer is not."""
    with meeting(tmp_path_factory.mktemp("meeting")) as (met, loop):
        evil = Evil(met)
        loop.run(met.endpoints[met.frank].add(evil))
        loop.run(met.forward(met.organizer, Limits()))
        yield met, loop, evil


@pytest.fixture(autouse=True)
def new(met: tuple[Meeting, Loop, Evil]) -> None:
    meeting, _, evil = met
    evil.alter, evil.intrude = {}, None
    for heard in (evil.heard, meeting.echo.heard, meeting.echo.callers):
        heard.clear()


async def asked(stream: Stream, said: bytes) -> bytes:
    await stream.send(said)
    return await stream.receive(100)


# Who forwards


def flipped(record: bytes) -> bytes:
    return record[:-1] + bytes([record[-1] ^ 1])


@pytest.mark.parametrize("author", ["alice", "bob"])
@pytest.mark.parametrize(
    "alter",
    [
        pytest.param(lambda n, record, _: (flipped(record),) if n == 1 else (record,), id="changes"),
        pytest.param(lambda n, record, _: (record, record) if n == 0 else (record,), id="repeats"),
        pytest.param(lambda n, record, _: () if n == 0 else (record,), id="drops"),
        pytest.param(lambda n, record, before: () if n == 0 else (record, before), id="reorders"),
    ],
)
def test_nothing_gets_through_a_forwarder_that(met: tuple[Meeting, Loop, Evil], author: str, alter: Alter) -> None:
    meeting, loop, evil = met

    async def call() -> None:
        caller = meeting.caller(meeting.frank, meeting.organizer)
        async with caller.open(meeting.bob.signer.peer, Echo) as stream:
            assert await asked(stream, b"one") == b"one", "as long as it is honest"
            evil.alter[author] = alter
            with pytest.raises((ConnectionError, EOFError, TimeoutError)):
                await asked(stream, b"two")
            stream.writer.transport.abort()
        assert meeting.echo.heard == [b"one"] if author == "alice" else [b"one", b"two"]

    loop.run(call())


@asynccontextmanager
async def on_a_line(caller: Caller, peer: str, service: type[Echo]) -> AsyncIterator[Stream]:
    async with Lines(caller, peer, service, (20.0, 20.0)).use() as used:
        yield used.stream


@pytest.mark.parametrize("opened", [Caller.open, on_a_line])
def test_after_a_forwarder_has_changed_something_others_are_tried_before_it(
    met: tuple[Meeting, Loop, Evil], opened: Any
) -> None:
    meeting, loop, evil = met

    async def altered(caller: Caller, bob: str) -> None:
        async with opened(caller, bob, Echo) as stream:
            evil.alter["bob"] = lambda _, record, before: (flipped(record),)
            await asked(stream, b"one")

    async def call() -> None:
        caller, bob = meeting.caller(meeting.frank, meeting.organizer), meeting.bob.signer.peer
        with pytest.raises(OSError, match=r"."):
            await altered(caller, bob)
        evil.alter.clear()
        evil.callers.clear()
        async with caller.open(bob, Echo) as stream:
            assert await asked(stream, b"two") == b"two"
        assert not evil.callers

    loop.run(call())


async def in_its_own_name(evil: Evil, alice: Stream, bob: Stream) -> Stream:
    greeting = Greeting.parse(decode(await alice.receive(MAX_GREETING_BYTES)))
    frank, mine = evil.met.frank, Certificate()
    await alice.send(Greeter(frank.gate, frank.signer).write(evil.met.alice.signer.peer, Echo.name, mine.der))
    return await secured(alice, mine, greeting.certificate, server_side=True)


async def with_its_own_certificate(evil: Evil, alice: Stream, bob: Stream) -> Stream:
    """In Bob's greeting."""
    said = await alice.receive(MAX_GREETING_BYTES)
    await bob.send(said)
    answer, mine = Greeting.parse(decode(await bob.receive(MAX_GREETING_BYTES))), Certificate()
    await alice.send(encode(answer.model_copy(update={"certificate": mine.der})))
    return await secured(alice, mine, Greeting.parse(decode(said)).certificate, server_side=True)


async def with_tls_of_its_own(evil: Evil, alice: Stream, bob: Stream) -> Stream:
    """Toward Alice; each end has the other's true greeting."""
    said = await alice.receive(MAX_GREETING_BYTES)
    await bob.send(said)
    await alice.send(await bob.receive(MAX_GREETING_BYTES))
    return await secured(alice, Certificate(), Greeting.parse(decode(said)).certificate, server_side=True)


async def for_another_service(evil: Evil, alice: Stream, bob: Stream) -> Stream:
    """Bob himself answers, but for a service that Alice has not called."""
    await alice.receive(MAX_GREETING_BYTES)
    place, mine = evil.met.alice, Certificate()
    await bob.send(Greeter(place.gate, place.signer).write(evil.met.bob.signer.peer, "pouring", mine.der))
    await alice.send(await bob.receive(MAX_GREETING_BYTES))
    return await secured(alice, mine, mine.der, server_side=True)


@pytest.mark.parametrize(
    "intrude", [in_its_own_name, with_its_own_certificate, with_tls_of_its_own, for_another_service]
)
def test_nobody_else_answers_in_place_of_the_one_who_is_called(
    met: tuple[Meeting, Loop, Evil], intrude: Intrude
) -> None:
    meeting, loop, evil = met
    evil.intrude = intrude

    async def call() -> None:
        with pytest.raises(ConnectionError):
            async with meeting.caller(meeting.frank).open(meeting.bob.signer.peer, Echo, b"a secret"):
                pass
        async with meeting.caller(meeting.frank, meeting.organizer).open(meeting.bob.signer.peer, Echo) as stream:
            assert await asked(stream, b"one") == b"one"
        assert not evil.heard

    loop.run(call())


# Who calls; the forwarder, through whom they come, is in league with them


@asynccontextmanager
async def come(met: Meeting, greeting: bytes, mine: Certificate) -> AsyncIterator[Stream]:
    """To Bob, from Frank's machine."""
    async with met.endpoints[met.frank].open(met.bob.signer.peer, ForwardedService, greeting) as stream:
        answer = Greeting.parse(decode(await stream.receive(MAX_GREETING_BYTES)))
        yield await secured(stream, mine, answer.certificate, server_side=False)


@pytest.fixture(scope="module")
def mallory(met: tuple[Meeting, Loop, Evil], tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Nobody has invited him."""
    return Place(tmp_path_factory.mktemp("mallory"), "mallory", met[0].organizer)


KINDS = (
    "alice, without her key's certificate",
    "alice, by her old greeting",
    "another's token",
    "no token",
    "another run",
    "to another peer",
    "a service that is not named",
    "nonsense",
    "too long",
)


def greeting_of(kind: str, met: Meeting, mallory: Place, mine: Certificate) -> bytes:
    alice, bob = Greeter(met.alice.gate, met.alice.signer), met.bob.signer.peer
    hers = Greeting.parse(decode(alice.write(bob, Echo.name, Certificate().der)))
    match kind:
        case "alice, without her key's certificate":
            return encode(hers.model_copy(update={"certificate": mine.der}))
        case "alice, by her old greeting":
            return encode(hers)
        case "another's token" | "no token":
            his = Greeting.parse(decode(Greeter(mallory.gate, mallory.signer).write(bob, Echo.name, mine.der)))
            return encode(his.model_copy(update={"token": hers.token if kind == "another's token" else b""}))
        case "another run":
            digest = hashlib.sha256(mine.der).hexdigest()
            other = Credential(run_id="other-0123456789abcdef", to=bob, service=Echo.name, certificate=digest)
            signed = met.alice.signer.sign(other)
            return encode(hers.model_copy(update={"certificate": mine.der, "credential": signed}))
        case "to another peer":
            return alice.write(met.organizer.signer.peer, Echo.name, mine.der)
        case "a service that is not named":
            return alice.write(bob, Unforwarded.name, mine.der)
        case "nonsense":
            return b"\xc1" * 100
        case "too long":
            return bytes(MAX_GREETING_BYTES + 1)
        case _:
            return alice.write(bob, Echo.name, mine.der)


@pytest.mark.parametrize("kind", [*KINDS, "honest"])
def test_only_who_may_take_part_and_proves_who_it_is_is_served(
    met: tuple[Meeting, Loop, Evil], mallory: Place, kind: str
) -> None:
    meeting, loop, _ = met

    async def call() -> None:
        mine = Certificate()
        async with come(meeting, greeting_of(kind, meeting, mallory, mine), mine) as stream:
            assert await asked(stream, b"one") == b"one"

    if kind == "honest":
        loop.run(call())
        assert meeting.echo.callers == [meeting.alice.signer.peer]
    else:
        with pytest.raises((OSError, EOFError)):
            loop.run(call())
        assert not meeting.echo.callers


def test_without_a_token_nobody_gets_as_far_as_the_forwarder(
    met: tuple[Meeting, Loop, Evil], mallory: Place, tmp_path: Path
) -> None:
    meeting, loop, _ = met
    bob, organizer = meeting.bob.signer.peer, meeting.organizer.signer.peer

    async def call() -> None:
        known = await meeting.endpoints[meeting.organizer].p2p.get_visible_maddrs()
        async with mallory.open(*known, **QUICK, **OUTGOING) as endpoint:
            meeting.endpoints[mallory] = endpoint
            with pytest.raises(ConnectionError):
                async with meeting.caller_of(mallory, meeting.organizer).open(bob, Echo):
                    pass
            # Nor past his own gate.
            name = Names(RUN_ID).service(ForwardingService.name)
            _, reader, writer = await P2P.call_binary_stream_handler(endpoint.p2p, PeerID.from_base58(organizer), name)
            stream, mine = Stream(reader, writer), Certificate()
            await stream.send(encode(Wanted(peer=bob)))
            await stream.send(Greeter(mallory.gate, mallory.signer).write(bob, Echo.name, mine.der))
            with pytest.raises((EOFError, OSError)):
                await stream.receive(MAX_GREETING_BYTES)
            writer.close()

    loop.run(call())
    assert not meeting.echo.callers


def test_who_says_nothing_does_not_keep_its_place(
    met: tuple[Meeting, Loop, Evil], monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting, loop, _ = met
    monkeypatch.setattr(forwarded, "GREETING_SECONDS", 0.2)

    async def call() -> None:
        mine = Certificate()
        greeting = Greeter(meeting.alice.gate, meeting.alice.signer).write(meeting.bob.signer.peer, Echo.name, mine.der)
        for first in (b"", greeting):
            async with meeting.endpoints[meeting.frank].open(meeting.bob.signer.peer, ForwardedService) as stream:
                if first:
                    await stream.send(first)
                    await stream.receive(MAX_GREETING_BYTES)
                with pytest.raises((EOFError, OSError)):
                    await stream.receive(1)

    loop.run(call())


def test_a_caller_floods_nobody_through_many_forwarders(met: tuple[Meeting, Loop, Evil]) -> None:
    meeting, loop, _ = met
    bob, ways = meeting.bob.signer.peer, (meeting.organizer, meeting.frank)
    each, _ = forwarded.STREAMS_AT_A_TIME

    async def call() -> None:
        async with AsyncExitStack() as stack:
            for number in range(each):
                stream = await stack.enter_async_context(meeting.caller(ways[number % 2]).open(bob, Echo))
                assert await asked(stream, b"one") == b"one"
            async with meeting.caller(meeting.frank).open(bob, Echo) as stream:
                with pytest.raises((EOFError, OSError)):
                    await asked(stream, b"one more")
            others = meeting.caller_of(meeting.organizer)._through(meeting.frank.signer.peer, bob, Echo, b"")
            async with others as stream:
                assert await asked(stream, b"one") == b"one"
        await until(lambda: not meeting.echo.open)

    loop.run(call())
