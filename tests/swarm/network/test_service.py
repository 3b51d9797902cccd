"""The one way to answer peers and to ask them; two real peers on loopback."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import BytesValue  # type: ignore[import-untyped]
from hivemind.p2p import P2P, P2PHandlerError, PeerID

from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.records.admission import Token
from dedloc_kit.swarm.network.gate import Gate, GatedP2P
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.names import Names
from dedloc_kit.swarm.network.service import (
    MAX_RECORD_BYTES,
    Endpoint,
    NoAnswer,
    Service,
    Stream,
    encode,
)
from tests.hang import HANG
from tests.identities import an_identity
from tests.swarm.network.doubling import Doubling, Number

RUN_ID = "toy-0123456789abcdef"


class Greeting(Doubling):
    """For everyone."""

    name, gated = "greeting", False


class Echo(Service):
    """Sends back what comes, until nothing does."""

    name = "echo"

    async def serve(self, peer: str, stream: Stream) -> None:
        while True:
            await stream.send(await stream.receive(100))


class Place:
    """A peer of a run that is not open."""

    def __init__(self, folder: Path, name: str, organizer: "Place | None" = None) -> None:
        self.identity = an_identity(folder / name)
        self.signer = Signer(self.identity)
        self.gate = Gate(RUN_ID, (organizer or self).signer.peer, self.signer, restricted=True)

    def invite(self, other: "Place") -> None:
        now = time.time()
        token = Token(run_id=RUN_ID, peer=other.signer.peer, name="alice", time=now, expires=now + 3600)
        other.gate.hold(self.signer.sign(token))

    @asynccontextmanager
    async def open(self, *known: Any, **options: Any) -> AsyncIterator[Endpoint]:
        """:param options: of its `P2P`"""
        p2p = await GatedP2P.behind(self.gate, "directory").create(
            initial_peers=known,
            identity_path=str(self.identity.path),
            **{"host_maddrs": ["/ip4/127.0.0.1/tcp/0"], "startup_timeout": 60.0, **options},
        )
        try:
            yield Endpoint(p2p, RUN_ID)
        finally:
            await p2p.shutdown()


def between(tmp_path: Path, do: Callable[[Endpoint, str], Awaitable[None]], *, invited: bool = True) -> None:
    """Do something as a peer that knows the organizer, which serves."""
    organizer = Place(tmp_path, "organizer")
    alice = Place(tmp_path, "alice", organizer)
    if invited:
        organizer.invite(alice)

    async def meet() -> None:
        async with organizer.open() as serving:
            await serving.add(Doubling())
            await serving.add(Greeting())
            await serving.add(Echo())
            async with alice.open(*await serving.p2p.get_visible_maddrs()) as asking:
                await do(asking, organizer.signer.peer)

    in_own_loop(meet())


@pytest.mark.soak
def test_a_service_of_one_class_and_one_line_answers_a_record_with_a_record(tmp_path: Path) -> None:
    async def ask(endpoint: Endpoint, peer: str) -> None:
        assert (await endpoint.ask(peer, Doubling, Number(value=21), HANG)).value == 42
        with pytest.raises(NoAnswer):
            await endpoint.ask(peer, Doubling, Number(value=1001), HANG)
        assert (await endpoint.ask(peer, Doubling, Number(value=1), HANG)).value == 2, "it serves on"

    between(tmp_path, ask)


@pytest.mark.soak
def test_who_is_not_invited_is_served_nothing(tmp_path: Path) -> None:
    async def ask(endpoint: Endpoint, peer: str) -> None:
        with pytest.raises(NoAnswer, match="refuses"):
            await endpoint.ask(peer, Doubling, Number(value=21), HANG)
        # Nor by going past its own gate.
        _, reader, writer = await P2P.call_binary_stream_handler(
            endpoint.p2p, next(iter(await endpoint.p2p.list_peers())).peer_id, f"{RUN_ID}::doubling"
        )
        stream = Stream(reader, writer)
        stream.writer.write(b"\x00\x00\x00\x08\x81\xa5value\x15")
        with pytest.raises((EOFError, OSError)):
            await asyncio.wait_for(stream.receive(100), HANG)
        writer.close()

    between(tmp_path, ask, invited=False)


@pytest.mark.soak
def test_a_service_for_everyone_answers_who_is_not_invited_and_reads_no_more_than_a_record(tmp_path: Path) -> None:
    async def ask(endpoint: Endpoint, peer: str) -> None:
        assert (await endpoint.ask(peer, Greeting, Number(value=21), HANG)).value == 42
        question, call = Number(value=1), P2P._call_unary_protobuf_handler
        for long in (encode(question) + b"x", encode(question) + bytes(MAX_RECORD_BYTES)):
            name, to = Names(RUN_ID).service(Greeting.name), PeerID.from_base58(peer)
            with pytest.raises(P2PHandlerError):
                await call(endpoint.p2p, to, name, BytesValue(value=long), BytesValue)
        with pytest.raises(NoAnswer):
            await endpoint.ask(peer, Greeting, Number(value=1001), HANG)

    between(tmp_path, ask, invited=False)


@pytest.mark.soak
def test_a_message_that_is_announced_too_long_ends_the_stream_before_it_is_read(tmp_path: Path) -> None:
    async def ask(endpoint: Endpoint, peer: str) -> None:
        async with endpoint.open(peer, Echo) as stream:
            await stream.send(b"")
            await stream.send(b"as it is")
            assert await stream.receive(100) == b"as it is", "an empty one is only a sign of life"
            stream.writer.write((2**31).to_bytes(4, "big"))
            with pytest.raises((EOFError, OSError)):
                await asyncio.wait_for(stream.receive(100), HANG)
        async with endpoint.open(peer, Echo) as stream:
            await stream.send(b"x" * 50)
            with pytest.raises(ValueError, match="at most 40"):
                await stream.receive(40)

    between(tmp_path, ask)


@pytest.mark.soak
def test_a_stream_that_is_served_until_the_end_leaves_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a peer that moves to another stage, or leaves, all are cancelled with their loop."""

    async def ask(endpoint: Endpoint, peer: str) -> None:
        async with endpoint.open(peer, Echo) as stream:
            await stream.send(b"here")
            await stream.receive(100)
            serving = [task for task in asyncio.all_tasks() if "_handler" in repr(task.get_coro())]
            assert serving
            for task in serving:
                task.cancel()
            with pytest.raises((EOFError, OSError)):
                await asyncio.wait_for(stream.receive(100), HANG)

    between(tmp_path, ask)
    assert not [record for record in caplog.records if record.name == "asyncio"]
