"""A stranger's machine, for benchmarks.hostile: `python -m benchmarks.lib.attackers NAME`.

Its job, one JSON line on standard input, says where the run is. It attacks until its standard input closes, at most for
the seconds that the job says; what it opens is bounded in number, and it talks to nobody but the run. It knows what any
stranger knows, the public invitation, and speaks the real protocols. Says `attacking` once it is under way.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2P, PeerID, ServicerBase
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer, get_dht_time
from hivemind.utils.multiaddr import Multiaddr

from dedloc_kit.client import fetch_state
from dedloc_kit.config.run import MAX_BATCHES
from dedloc_kit.machine.dialling import host_and_port
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.records.position import Position
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.averaging.service import AveragingService
from dedloc_kit.swarm.gathering.messages import Join, Verdict
from dedloc_kit.swarm.gathering.service import MAX_VERDICT_BYTES, GatheringService
from dedloc_kit.swarm.membership.admission import request_access
from dedloc_kit.swarm.network.identity import Identity, Signer
from dedloc_kit.swarm.network.names import Names
from dedloc_kit.swarm.network.service import Endpoint
from dedloc_kit.swarm.transfer.service import TransferService

ONE = ("127.0.0.2",)
TWENTY = tuple(f"127.0.0.{host}" for host in range(2, 22))
"""The whole of 127.0.0.0/8 is this machine: the run sees so many different hosts."""
AT_ONCE = 1000
"""Connections that one attack holds."""
AGAIN_SECONDS = 1.0
"""Whoever is turned away is back so soon."""
STREAMS_AT_ONCE, CALLS_AT_ONCE = 200, 16
IDENTITIES = 21
VISIT_SECONDS = 1.0
"""How long one of many identities stays between coming and going."""
RECORD_BYTES, RECORD_SECONDS = 400_000, 3 * 365 * 86400.0
MAX_MEGABYTES = 1000
PATIENCE = 10.0


@dataclass(frozen=True)
class Target:
    """The run, as a stranger knows it."""

    invitation: Invitation
    folder: Path
    """Where the attacker keeps keys of its own."""
    acts: Counter[str]
    """What came of what it tried."""

    @property
    def run_id(self) -> str:
        return self.invitation.run_id

    @property
    def organizer(self) -> PeerID:
        return PeerID.from_base58(self.invitation.organizer)

    @property
    def page(self) -> tuple[str, int]:
        url = urlsplit(self.invitation.url or "")
        return str(url.hostname), int(url.port or 80)

    @property
    def swarm(self) -> tuple[str, int]:
        return host_and_port(self.invitation.peers[0])

    async def tried(self, what: str, attempt: Coroutine[Any, Any, Any]) -> Any:
        """What came of it; nothing if it was refused, one way or another, or not answered."""
        try:
            answer = await asyncio.wait_for(attempt, PATIENCE)
            self.acts[f"{what}: done"] += 1
            return answer
        except Exception as error:  # hivemind and libp2p refuse with a dozen different errors
            self.acts[f"{what}: {type(error).__name__}"] += 1
            return None


# Plain connections


async def connections(target: Target, hosts: Sequence[str]) -> None:
    """To the swarm's port, which begin libp2p's handshake and do not go on."""
    await _hold_many(target, target.swarm, b"\x13/multistream/1.0.0\n", hosts)


async def half_requests(target: Target, hosts: Sequence[str]) -> None:
    await _hold_many(target, target.page, b"GET / HTTP/1.1\r\nHost: page\r\nX-", hosts)


async def viewers(target: Target, hosts: Sequence[str]) -> None:
    """Event streams of the page."""
    await _hold_many(target, target.page, b"GET /api/events HTTP/1.1\r\nHost: page\r\n\r\n", hosts)


async def _hold_many(target: Target, address: tuple[str, int], beginning: bytes, hosts: Sequence[str]) -> None:
    await asyncio.gather(*(_hold(target, address, beginning, hosts[number % len(hosts)]) for number in range(AT_ONCE)))


async def _hold(target: Target, address: tuple[str, int], beginning: bytes, host: str) -> None:
    """Connect from this host, say how it begins, listen until the other side closes; again and again."""
    while True:
        try:
            reader, writer = await asyncio.open_connection(*address, local_addr=(host, 0))
        except OSError:
            target.acts["connection: refused"] += 1
            await asyncio.sleep(AGAIN_SECONDS)
            continue
        target.acts["connection: opened"] += 1
        with suppress(OSError):
            writer.write(beginning)
            while await reader.read(65536):
                pass
        target.acts["connection: closed"] += 1
        writer.close()
        await asyncio.sleep(AGAIN_SECONDS)


# What libp2p carries


@asynccontextmanager
async def _outside(target: Target, identity: Path | None = None) -> AsyncIterator[P2P]:
    """Connected to the coordinator by libp2p, which cannot prevent it."""
    p2p = await P2P.create(
        initial_peers=target.invitation.peers[:1],
        identity_path=None if identity is None else str(identity),
        dht_mode="client",
        no_listen=True,
        use_relay=False,
        check_if_identity_free=False,
        idle_timeout=3600.0,
        startup_timeout=60.0,
    )
    try:
        yield p2p
    finally:
        await p2p.shutdown()


async def streams(target: Target) -> None:
    """Of every kind that a peer serves; opened, held while the other side lets us, and opened again."""
    names = _services(target)

    async def hold(p2p: P2P, name: str) -> None:
        while True:
            opened = await target.tried("stream", p2p.call_binary_stream_handler(target.organizer, name))
            if opened is not None:
                _, reader, writer = opened
                with suppress(OSError):
                    while await reader.read(65536):
                        pass
                writer.close()
            await asyncio.sleep(0)

    async with _outside(target) as p2p:
        await asyncio.gather(*(hold(p2p, names[number % len(names)]) for number in range(STREAMS_AT_ONCE)))


async def lengths(target: Target) -> None:
    """Messages that are said to be of four gigabytes, and come for as long as they are taken."""
    piece = b"x" * 2**20

    async def send(p2p: P2P, name: str) -> None:
        while True:
            opened = await target.tried("stream", p2p.call_binary_stream_handler(target.organizer, name))
            if opened is None:
                continue
            _, _, writer = opened
            with suppress(OSError):
                writer.write((2**32 - 1).to_bytes(4, "big"))
                while target.acts["megabyte"] < MAX_MEGABYTES:
                    writer.write(piece)
                    await writer.drain()
                    target.acts["megabyte"] += 1
            writer.close()
            await asyncio.sleep(AGAIN_SECONDS)

    async with _outside(target) as p2p:
        await asyncio.gather(*(send(p2p, name) for name in _services(target)))


def _services(target: Target) -> list[str]:
    """The names under which a peer's streams are opened."""
    return [Names(target.run_id).service(kind.name) for kind in (TransferService, GatheringService, AveragingService)]


async def questions(target: Target) -> None:
    """Asks to be let in, with codes that are none."""

    async def knock(p2p: P2P) -> None:
        while True:
            answer = await target.tried(
                "question", request_access(p2p, target.invitation.organizer, target.run_id, "x" * 1024)
            )
            target.acts[f"answer: {answer and answer.denial}"] += 1

    async with _outside(target) as p2p:
        await asyncio.gather(*(knock(p2p) for _ in range(CALLS_AT_ONCE)))


async def records(target: Target) -> None:
    """Large ones for three years, by turns under the key at which all look and under ever new ones."""
    value = MSGPackSerializer.dumps(b"x" * RECORD_BYTES)

    async def store(p2p: P2P, where: bytes) -> None:
        while True:
            key = DHTID.generate(where or os.urandom(16)).to_bytes()
            await target.tried("record", _store(p2p, target, key, MSGPackSerializer.dumps(os.urandom(16)), value))

    async with _outside(target) as p2p:
        where = (MSGPackSerializer.dumps(f"{target.run_id}_progress"), b"")
        await asyncio.gather(*(store(p2p, where[number % 2]) for number in range(CALLS_AT_ONCE)))


async def identities(target: Target) -> None:
    """Twenty-one peers that come, claim as much as is believed, and go; they never do what they promise."""
    global_batch = target.invitation.run_config().global_batch
    step = 0

    async def follow() -> None:
        nonlocal step
        while True:
            with suppress(Exception):
                step = (await asyncio.to_thread(fetch_state, str(target.invitation.url))).step
            await asyncio.sleep(VISIT_SECONDS)

    async def visit(number: int, p2p: P2P, identity: Identity) -> None:
        """By turns the batch is full by one peer's samples, and a peer is ahead of all others."""
        while True:
            claim = _claim(target.run_id, step + number % 2, MAX_BATCHES * global_batch)
            await target.tried("question", request_access(p2p, target.invitation.organizer, target.run_id, ""))
            await target.tried("claim", _claimed(p2p, target, identity, claim))
            await target.tried("group", _join(p2p, target))
            await asyncio.sleep(VISIT_SECONDS)
            await target.tried("going", p2p._client.disconnect(target.organizer))
            address = Multiaddr(target.invitation.peers[0].rpartition("/p2p/")[0])
            await target.tried("coming", p2p._client.connect(target.organizer, [address]))

    everyone = [Identity(target.folder / f"identity-{number}") for number in range(IDENTITIES)]
    async with AsyncExitStack() as stack:
        p2ps = [await stack.enter_async_context(_outside(target, identity.path)) for identity in everyone]
        await asyncio.gather(follow(), *map(visit, range(IDENTITIES), p2ps, everyone))


def _claim(run_id: str, step: int, samples: int) -> Progress:
    return Progress(
        run_id=run_id,
        step=step,
        round="ab",
        samples=samples,
        samples_per_second=1e9,
        boundary_seconds=3600.0,
        sketch=(1.0,),
        follower=False,
        client_mode=True,
        addresses=(),
        device="CPU",
        name="x" * 64,
        time=get_dht_time(),
    )


async def _claimed(p2p: P2P, target: Target, identity: Identity, claim: Progress) -> None:
    """As an honest peer stores its progress, signed by its own key."""
    key = DHTID.generate(MSGPackSerializer.dumps(f"{target.run_id}_progress")).to_bytes()
    subkey = MSGPackSerializer.dumps(Signer(identity).subkey)
    record = DHTRecord(key, subkey, MSGPackSerializer.dumps(claim.model_dump()), get_dht_time() + 60.0)
    signed = RSASignatureValidator(identity.key).sign_value(record)
    await _store(p2p, target, key, subkey, signed, record.expiration_time)


async def _store(
    p2p: P2P, target: Target, key: bytes, subkey: bytes, value: bytes, expires: float | None = None
) -> None:
    stub = ServicerBase.__dict__["get_stub"].__get__(None, DHTProtocol)(p2p, target.organizer)  # its own needs a node
    request = dht_pb2.StoreRequest(keys=[key], subkeys=[subkey], values=[value], in_cache=[False])
    request.expiration_time.append(expires or get_dht_time() + RECORD_SECONDS)
    if not all((await stub.rpc_store(request)).store_ok):
        raise ValueError("not stored")


async def _join(p2p: P2P, target: Target) -> None:
    position = Position(
        run_id=target.run_id,
        term=(0, ""),
        step=1,
        head="",
        incarnation=0,
        samples=0,
        samples_per_second=0.0,
        boundary_seconds=0.0,
        client=True,
        time=get_dht_time(),
    )
    join, leader = Join(position=position).to_bytes(), target.invitation.organizer
    async with Endpoint(p2p, target.run_id).open(leader, GatheringService, join) as stream:
        Verdict.from_bytes(await stream.receive(MAX_VERDICT_BYTES))


# What ends in 20 comes from twenty addresses.
ATTACKS: dict[str, Callable[[Target], Coroutine[Any, Any, None]]] = {
    "identities": identities,
    "connections": lambda target: connections(target, ONE),
    "connections-20": lambda target: connections(target, TWENTY),
    "streams": streams,
    "lengths": lengths,
    "questions": questions,
    "records": records,
    "half-requests": lambda target: half_requests(target, ONE),
    "half-requests-20": lambda target: half_requests(target, TWENTY),
    "viewers": lambda target: viewers(target, ONE),
    "viewers-20": lambda target: viewers(target, TWENTY),
}


async def main() -> None:
    job = json.loads(sys.stdin.readline())
    target = Target(Invitation.parse(json.dumps(job["invitation"])), Path(job["folder"]), Counter())
    over, told, until = threading.Event(), False, time.monotonic() + job["seconds"]

    def wait() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    attack = asyncio.create_task(ATTACKS[job["attack"]](target))
    while not over.is_set() and not attack.done() and time.monotonic() < until:
        await asyncio.wait({attack}, timeout=0.1)
        if target.acts and not told:
            told = True
            _tell("attacking")
    attack.cancel()
    with suppress(asyncio.CancelledError):
        await attack
    _tell("ended", acts=target.acts)


def _tell(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
