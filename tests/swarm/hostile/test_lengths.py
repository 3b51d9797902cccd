"""Lengths that no honest peer announces, floods and stalls: hostile libp2p clients and servers, on loopback."""

import asyncio
import gzip
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf.wrappers_pb2 import BytesValue  # type: ignore[import-untyped]
from hivemind.p2p import P2P, P2PContext, P2PDaemonError, P2PHandlerError, PeerID
from hivemind.proto import dht_pb2, runtime_pb2
from huggingface_hub import constants

from dedloc_kit import client
from dedloc_kit.access.denials import Denied
from dedloc_kit.access.hub_account import whose_token
from dedloc_kit.client import fetch_invitation
from dedloc_kit.errors import UserError
from dedloc_kit.events import StepDone
from dedloc_kit.learning.train.flat import CHUNK
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.steering.webhook import Webhook
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of, decode_all
from dedloc_kit.swarm.allreduce.streams import MAX_CHUNK_BYTES
from dedloc_kit.swarm.averaging.service import AveragingService
from dedloc_kit.swarm.chain import messages as chain
from dedloc_kit.swarm.consensus.records import MAX_MEMBERS
from dedloc_kit.swarm.gathering.messages import Attempt
from dedloc_kit.swarm.gathering.service import MAX_VERDICT_BYTES, GatheringService
from dedloc_kit.swarm.network import bounds, service
from dedloc_kit.swarm.network.bounds import AtATime, BoundedP2P, TooMuch
from dedloc_kit.swarm.network.names import Names
from dedloc_kit.swarm.network.reach import Reachability
from dedloc_kit.swarm.network.service import MAX_RECORD_BYTES, Endpoint, Service, Stream, encode
from dedloc_kit.swarm.transfer.contents import RecentAverage
from dedloc_kit.swarm.transfer.donor import MAX_UPLOADS
from dedloc_kit.swarm.transfer.protocol import MAX_HEADER_BYTES, Header, Request
from dedloc_kit.swarm.transfer.service import TransferService
from tests.hang import HANG
from tests.swarm.harness import Swarm, join, processes_of
from tests.swarm.network.doubling import Doubling
from tests.swarm.transfer import sharing_peer
from tests.swarm.transfer import swarm as sharing
from tests.tiny import tiny_run

RUN = tiny_run("lengths")
HUGE = 2**40
SENT = 50_000_000
"""Bytes that a hostile peer sends where the other side goes on taking them."""
GROWTH = 15_000_000
"""Bytes that a process may grow by meanwhile."""


@asynccontextmanager
async def hostile(kind: type[P2P] = P2P, **options: Any) -> AsyncIterator[P2P]:
    p2p = await kind.create(dht_mode="client", startup_timeout=60.0, **options)
    try:
        yield p2p
    finally:
        await p2p.shutdown()


def varint(number: int) -> bytes:
    head = bytes([number & 127 | (128 if number > 127 else 0)])
    return head + varint(number >> 7) if number > 127 else head


IN_A_STREAM = (2**32 - 1).to_bytes(4, "big")
SERVICES = (GatheringService, AveragingService, TransferService, Reachability)
ANNOUNCED = {
    **{Names(RUN.run_id).service(name): IN_A_STREAM for name in (*(kind.name for kind in SERVICES), chain.SERVICE)},
    f"{RUN.run_id}::admission": varint(HUGE),
    f"{RUN.run_id}::access::averager": varint(HUGE),
    "DHTProtocol.rpc_store": varint(HUGE),
    "DHTProtocol.rpc_find": varint(HUGE),
    "DHTProtocol.rpc_ping": varint(HUGE),
}
"""How a message begins, by the service that it is for."""


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """A run in which a volunteer trains."""
    with Swarm(RUN, tmp_path_factory.mktemp("swarm")) as swarm:
        swarm.coordinator()
        swarm.volunteer("alice", {"TINY_PAUSE": "0.1"}, microbatch=4)
        yield swarm


class Memory:
    """The most that processes have held since this moment, beyond what they held then; in bytes."""

    def __init__(self, processes: list[int]) -> None:
        self._before = {}
        for process in processes:
            Path(f"/proc/{process}/clear_refs").write_text("5")  # the peak is measured anew
            self._before[process] = self._peak(process)

    def growth(self) -> int:
        return max(self._peak(process) - before for process, before in self._before.items())

    @staticmethod
    def _peak(process: int) -> int:
        status = Path(f"/proc/{process}/status").read_text()
        return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def goes_on(swarm: Swarm) -> None:
    """The run takes another step, and the one after it."""
    volunteer = swarm.peers[1]
    seen = len(volunteer.events)
    volunteer.wait_for(StepDone, lambda e: volunteer.events.index(e) >= seen and e.step.step > 1)


def attacked(swarm: Swarm, attack: Callable[[P2P, PeerID], Coroutine[Any, Any, Any]]) -> Any:
    """What an attack on the coordinator comes to; no process of it takes memory for that, and the run goes on."""

    async def come() -> Any:
        async with hostile(initial_peers=swarm.invitation.peers, no_listen=True) as p2p:
            return await attack(p2p, PeerID.from_base58(swarm.invitation.organizer))

    goes_on(swarm)  # whatever a first round needs is there
    memory = Memory(processes_of(swarm.peers[0].worker.pid))
    result = in_own_loop(come())
    goes_on(swarm)
    assert memory.growth() < GROWTH
    return result


async def pushed(writer: asyncio.StreamWriter, reader: asyncio.StreamReader, beginning: bytes) -> int:
    """Send a message that begins so, and as much of it as the other side takes; returns how many bytes it was."""
    sent = 0
    with suppress(OSError):
        writer.write(beginning)
        while sent < SENT and not reader.at_eof():
            writer.write(bytes(2**16))
            await writer.drain()
            sent += 2**16
            await asyncio.sleep(0.001)
    return sent


# A hostile client


@pytest.mark.soak
def test_a_message_that_announces_a_terabyte_is_not_taken_by_any_service(swarm: Swarm) -> None:
    async def announce(p2p: P2P, organizer: PeerID, service: str) -> int:
        _, reader, writer = await p2p.call_binary_stream_handler(organizer, service)
        sent = await pushed(writer, reader, ANNOUNCED[service])
        await asyncio.wait_for(read_all(reader), HANG)  # until it is closed
        return sent

    async def announce_all(p2p: P2P, organizer: PeerID) -> dict[str, int]:
        return {service: await announce(p2p, organizer, service) for service in ANNOUNCED}

    taken = attacked(swarm, announce_all)
    assert {service: sent for service, sent in taken.items() if sent > SENT / 2} == {}


@pytest.mark.soak
def test_one_peer_gets_its_share_of_streams_and_others_are_served_meanwhile(swarm: Swarm) -> None:
    async def flood(p2p: P2P, organizer: PeerID) -> int:
        async def opened(p2p: P2P) -> Stream | None:
            with suppress(OSError):
                return await held.enter_async_context(Endpoint(p2p, RUN.run_id).open(peer, TransferService))
            return None

        async def answered(stream: Stream | None) -> bool:
            with suppress(OSError, EOFError):
                if stream is not None:
                    async with asyncio.timeout(HANG):
                        await stream.send(encode(Request(what="average", after="ab")))
                        return (await stream.receive_record(Header, MAX_HEADER_BYTES)).answer == "nothing"
            return False

        peer = organizer.to_base58()
        async with AsyncExitStack() as held:
            streams = await asyncio.gather(*(opened(p2p) for _ in range(100)))
            async with hostile(initial_peers=swarm.invitation.peers, no_listen=True) as other:
                assert await answered(await opened(other))
            return sum(await asyncio.gather(*map(answered, streams)))

    assert 0 < attacked(swarm, flood) <= bounds.STREAMS_AT_A_TIME[0]


@pytest.mark.soak
def test_a_message_that_begins_and_does_not_end_holds_its_stream_for_so_long_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "RECEIVE_SECONDS", 0.3)

    async def trickle() -> float:
        async with between(BoundedP2P, P2P) as (server, client):
            await Endpoint(server, RUN.run_id).add(Doubling())
            name = Names(RUN.run_id).service(Doubling.name)
            _, reader, writer = await client.call_binary_stream_handler(server.peer_id, name)
            closed = asyncio.create_task(read_all(reader))
            began = time.monotonic()
            writer.write((1000).to_bytes(4, "big"))
            while not closed.done() and time.monotonic() < began + HANG:
                with suppress(OSError):
                    writer.write(b"x")
                await asyncio.sleep(0.05)
            return time.monotonic() - began

    assert in_own_loop(trickle()) < HANG / 2


def test_the_fewer_places_are_left_the_fewer_may_one_peer_have() -> None:
    shares, held = AtATime(8, 64), ExitStack()

    def takes_all(peer: str) -> int:
        for number in range(100):
            try:
                held.enter_context(shares.place(PeerID(peer.encode())))
            except TooMuch:
                return number
        return 100

    with held:
        taken = [takes_all(f"{number}") for number in range(30)]
        assert taken[0] == 8
        assert min(taken[:20]) > 0
        assert sum(taken) <= 64
    assert takes_all("another") == 8, "what is over is given back"


@pytest.mark.soak
def test_who_says_too_much_to_a_group_is_not_heard(swarm: Swarm) -> None:
    async def ask(p2p: P2P, organizer: PeerID) -> bytes:
        said = join(RUN.run_id).to_bytes() + bytes(MAX_RECORD_BYTES)
        with suppress(ConnectionError):  # it may be closed before all is said
            async with Endpoint(p2p, RUN.run_id).open(organizer.to_base58(), GatheringService, said) as stream:
                return await asyncio.wait_for(stream.reader.read(2**16), HANG)
        return b""

    assert attacked(swarm, ask) == b""


# A hostile server


@asynccontextmanager
async def between(server_kind: type[P2P], client_kind: type[P2P]) -> AsyncIterator[tuple[P2P, P2P]]:
    """Two peers that are connected."""
    async with hostile(server_kind) as server:
        addresses = [str(address) for address in await server.get_visible_maddrs()]
        async with hostile(client_kind, initial_peers=addresses, no_listen=True) as client:
            yield server, client


async def read_all(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(2**16):
            pass


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "most"), [(GatheringService, MAX_VERDICT_BYTES), (AveragingService, MAX_CHUNK_BYTES)])
def test_a_server_that_answers_with_a_terabyte_gets_an_error_and_no_memory(kind: type[Service], most: int) -> None:
    async def call() -> int:
        async with between(P2P, BoundedP2P) as (server, client):

            async def answer(_: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await pushed(writer, reader, IN_A_STREAM)

            await server.add_binary_stream_handler(Names(RUN.run_id).service(kind.name), answer)
            memory = Memory([os.getpid()])
            async with Endpoint(client, RUN.run_id).open(server.peer_id.to_base58(), kind) as stream:
                with pytest.raises(ValueError, match="announced"):
                    await asyncio.wait_for(stream.receive(most), HANG)
            return memory.growth()

    assert in_own_loop(call()) < GROWTH


@pytest.mark.soak
def test_an_answer_to_a_call_is_not_read_if_it_is_longer_than_such_an_answer_can_be() -> None:
    async def call() -> int:
        async with between(P2P, BoundedP2P) as (server, client):

            async def answer(_request: Any, _context: P2PContext) -> BytesValue:
                return BytesValue(value=bytes(3_000_000))

            async def announce(_: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await pushed(writer, reader, varint(HUGE))

            await server.add_protobuf_handler("DHTProtocol.rpc_ping", answer, BytesValue)
            await server.add_binary_stream_handler("DHTProtocol.rpc_find", announce)
            memory = Memory([client._child.pid, os.getpid()])
            for method, kind, error in (
                ("rpc_ping", dht_pb2.PingResponse, TooMuch),
                ("rpc_find", dht_pb2.FindResponse, (P2PHandlerError, P2PDaemonError)),  # p2pd refuses it
            ):
                called = client.call_protobuf_handler(server.peer_id, f"DHTProtocol.{method}", BytesValue(), kind)
                with pytest.raises(error):
                    await asyncio.wait_for(called, HANG)
            return memory.growth()

    assert in_own_loop(call()) < SENT - GROWTH


# A hostile leader, and hostile averages

MEMBERS = [{"peer": f"Qm{number:06}", "bandwidth": 1.0, "client": False} for number in range(MAX_MEMBERS + 1)]


@pytest.mark.parametrize(
    "members",
    [
        MEMBERS,
        MEMBERS[:2] * 2,
        [*MEMBERS[:2], {**MEMBERS[2], "more": "x"}],
        [*MEMBERS[:2], {**MEMBERS[2], "bandwidth": 0.0}],
        [{**member, "client": True} for member in MEMBERS[:2]],
    ],
    ids=["too many members", "members twice", "too much of a member", "an impossible bandwidth", "clients alone"],
)
def test_a_leader_is_not_believed_that_names(members: list[dict[str, Any]]) -> None:
    def group(members: list[dict[str, Any]]) -> bytes:
        return json.dumps({"nonce": "ab" * 16, "previous": "", "members": members}).encode()

    most = group(MEMBERS[:MAX_MEMBERS])
    assert len(Attempt.model_validate_json(most).to_bytes()) < MAX_VERDICT_BYTES
    with pytest.raises(ValueError, match="members"):
        Attempt.model_validate_json(group(members))


def average_of(*parts: bytes) -> RecentAverage:
    """As it comes from a donor."""
    content = RecentAverage("aa", "bb", 1, b"", parts).content()
    return RecentAverage.read(content.metadata, content.data)


def test_an_average_that_is_larger_than_the_model_takes_no_memory() -> None:
    part = codec_of("4bit").gradients.compress(torch.zeros(CHUNK)).SerializeToString()
    average = average_of(*[part] * 240)  # 16 MB that become 126
    memory = Memory([os.getpid()])
    with pytest.raises(ValueError, match="not as many values"):
        decode_all(average.parts, 1000)
    assert memory.growth() < GROWTH
    assert torch.equal(decode_all(average_of(part, part).parts, 2 * CHUNK), torch.zeros(2 * CHUNK))


def test_a_part_of_an_average_that_is_nothing_but_sizes_is_refused_before_the_next_one_is_read() -> None:
    bomb = runtime_pb2.Tensor(size=[1] * 500_000).SerializeToString()
    average = average_of(*[bomb] * 30)
    memory = Memory([os.getpid()])
    with pytest.raises(ValueError, match="cannot be decoded"):
        decode_all(average.parts, 30 * CHUNK)
    assert memory.growth() < GROWTH


# A hostile page


@contextmanager
def a_page(packed: bool) -> Iterator[str]:
    """Whatever is asked, it answers with more than anyone can hold; packed, that is some hundred kilobytes."""
    content = gzip.compress(bytes(200_000_000), 1) if packed else bytes(2**20)

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            if packed:
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            with suppress(OSError):
                for _ in range(1 if packed else 200):
                    self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Be quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "endless"])
def test_a_page_that_answers_without_end_gets_no_memory(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_page(packed) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        warned: list[str] = []
        memory = Memory([os.getpid()])
        with pytest.raises(UserError, match="did not answer like a coordinator"):
            fetch_invitation(url)
        with pytest.raises(Denied):
            whose_token("hf_x")
        webhook = Webhook(url, warned.append)
        webhook.send("hello")
        webhook.close()
        assert memory.growth() < client.MAX_BYTES + GROWTH
    assert not warned


# Downloads that stall


async def stalled(p2p: P2P, donor: PeerID) -> Any:
    """Ask for the newest state and take nothing of it."""
    stream = await p2p.call_binary_stream_handler(donor, Names(sharing_peer.RUN).service(TransferService.name))
    asked = encode(Request(what="state", end=2**22))
    stream[2].write(len(asked).to_bytes(4, "big") + asked)
    return stream


@pytest.mark.soak
def test_stalled_downloads_hold_a_version_for_each_place_and_a_newcomer_gets_the_newest(tmp_path: Path) -> None:
    peers = sharing.Swarm(tmp_path)
    try:
        (donor,) = peers.start(False)
        (newcomer,) = peers.start(True)
        donor.has(next(sharing.ROUNDS))
        newcomer.downloads(donor)
        memory = Memory(processes_of(donor.process.pid))

        async def attack() -> None:
            async with AsyncExitStack() as identities:
                attackers = [
                    await identities.enter_async_context(hostile(initial_peers=peers.addresses, no_listen=True))
                    for _ in range(3)
                ]
                streams = []
                for number in range(10):  # two streams of each, so 60, at ten versions
                    digest = donor.has(next(sharing.ROUNDS), seed=number)
                    streams += [await stalled(p2p, PeerID.from_base58(donor.id)) for p2p in 2 * attackers]
                    held = await asyncio.to_thread(donor.ask, "tell")
                    assert held["contents"] <= MAX_UPLOADS + 1
                answer = await asyncio.to_thread(newcomer.downloads, donor)
                assert answer["result"]["digest"] == digest

        in_own_loop(attack())
        # Three that are held, the one that is made, what is on its way to the averager's process, the test's own two.
        assert memory.growth() < 8 * sharing.SIZE, "more than new states and their making take"
    finally:
        for peer in peers.peers:
            peer.end()
