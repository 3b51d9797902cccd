"""The hostile client: one machine more on loopback, with a key of its own and no honest intention."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from google.protobuf.message import Message  # type: ignore[import-untyped]
from google.protobuf.wrappers_pb2 import BytesValue  # type: ignore[import-untyped]
from hivemind.dht import DHTNode
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import P2P, PeerID, ServicerBase
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer
from hivemind.utils.timed_storage import ValueWithExpiration

from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.keeper import node_id_of
from tests.identities import an_identity
from tests.swarm.harness import Stranger

T = TypeVar("T")
PATIENCE = 10.0
"""Seconds for one call."""


@dataclass(frozen=True)
class Raw:
    """A record of the directory as it lies on the wire, so that it may be wrong in any part.

    :ivar key: the name of a key, which is hashed as an honest peer's is, or the 20 bytes of its hash
    :ivar subkey: msgpack bytes; those of nil are a value without a subkey, none at all a whole dictionary
    """

    key: str | bytes
    subkey: bytes
    value: bytes
    expires: float
    cached: bool = False

    @classmethod
    def under(cls, key: str, owner: bytes, value: object, seconds: float) -> Self:
        """Honest form, dishonest content: a value under a subkey, to stay for so many seconds."""
        return cls(key, pack(owner), pack(value), time.time() + seconds)

    @property
    def key_bytes(self) -> bytes:
        return self.key if isinstance(self.key, bytes) else bytes(DHTID.generate(self.key).to_bytes())


class Hostile:
    """Connects to a swarm by libp2p, which nobody can prevent, and does as it likes; leave the context to be gone.

    Its methods are coroutines of its own loop, which runs in a thread of its own: hand them to `do`.

    :param peers: addresses of swarm members, the organizer's first
    :param folder: where its key lies; the same folder is the same identity
    :param listens: whether others can reach it, for an attack by what it answers
    """

    def __init__(self, peers: Sequence[str], run_id: str, folder: Path, *, listens: bool = False) -> None:
        self.run_id, self._peers, self._listens = run_id, peers, listens
        self.organizer = peers[0].rpartition("/p2p/")[2]
        self.identity = an_identity(folder / "identity.key")
        self.signer = Signer(self.identity)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hostile")

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.p2p = self.do(self._connect(), 60.0)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(Exception):
            self.do(self.p2p.shutdown())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _connect(self) -> P2P:
        hidden = {"dht_mode": "client", "no_listen": True}
        how = {"host_maddrs": ["/ip4/127.0.0.1/tcp/0"]} if self._listens else hidden
        return await Stranger.create(
            initial_peers=self._peers,
            identity_path=str(self.identity.path),
            check_if_identity_free=False,
            startup_timeout=60.0,
            **how,
        )

    def do(self, work: Coroutine[Any, Any, T], seconds: float = PATIENCE) -> T:
        """Run something on this client's loop and wait for its result; raises TimeoutError after so many seconds."""
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), self._loop).result()

    @property
    def peer(self) -> str:
        """Its peer id."""
        return str(self.signer.peer)

    # Anything, to anyone; by default to the organizer

    async def call(self, handler: str, content: bytes | Message, to: str | None = None) -> bytes:
        """Call a unary handler with any bytes. Its answer; raises P2PHandlerError with what it says instead."""
        data = content if isinstance(content, bytes) else content.SerializeToString()
        return bytes(await self.p2p._client.call_unary_handler(self._id(to), handler, data))

    async def stream(self, handler: str, to: str | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a binary stream; use it on this client's loop."""
        _, reader, writer = await self.p2p.call_binary_stream_handler(self._id(to), handler)
        return reader, writer

    async def talk(self, handler: str, content: bytes, to: str | None = None) -> bytes:
        """Write any bytes into a binary stream and say no more: all that comes back."""
        reader, writer = await self.stream(handler, to)
        with closing(writer):
            writer.write(content)
            writer.write_eof()
            return await reader.read()

    async def show(self, token: bytes, to: str | None = None) -> set[str]:
        """Show a token at both doors; those that let us in, of `directory` and `averager`."""
        opened = set()
        for service in ("directory", "averager"):
            with suppress(Exception):  # refused
                await self.call(f"{self.run_id}::access::{service}", BytesValue(value=token), to)
                opened.add(service)
        return opened

    # The directory

    async def store(self, *records: Raw, to: str | None = None) -> list[bool]:
        """Ask a node to keep records, in one message: which it takes; raises P2PHandlerError if it refuses to talk."""
        request = dht_pb2.StoreRequest(
            keys=[record.key_bytes for record in records],
            subkeys=[record.subkey for record in records],
            values=[record.value for record in records],
            expiration_time=[record.expires for record in records],
            in_cache=[record.cached for record in records],
        )
        return list((await self._directory(to).rpc_store(request)).store_ok)

    async def find(self, key: str, to: str | None = None) -> dict[Any, bytes]:
        """What a node keeps under a key, by subkey, as it lies on the wire."""
        request = dht_pb2.FindRequest(keys=[DHTID.generate(key).to_bytes()])
        (result,) = (await self._directory(to).rpc_find(request)).results
        if result.type == dht_pb2.FOUND_DICTIONARY:
            dictionary = MSGPackSerializer.loads(result.value)
            with dictionary.freeze():
                return {subkey: item.value for subkey, item in dictionary.items()}
        return {None: result.value} if result.type == dht_pb2.FOUND_REGULAR else {}

    async def claim(self, *places: DHTID, to: str | None = None) -> None:
        """Say to be a node of the directory at these places."""
        for place in places:
            await self._directory(to).rpc_ping(dht_pb2.PingRequest(peer=dht_pb2.NodeInfo(node_id=place.to_bytes())))

    async def nearest(self, key: str, to: str | None = None) -> list[str]:
        """The peers, as often as a node knows of them, that stand next to a key."""
        request = dht_pb2.FindRequest(keys=[DHTID.generate(key).to_bytes()])
        (result,) = (await self._directory(to).rpc_find(request)).results
        return [PeerID(peer).to_base58() for peer in result.nearest_peer_ids]

    async def become_node(self) -> tuple[str, ...]:
        """Be a node of the directory, for whoever is reached; hivemind's own, which checks nothing. Its addresses."""
        here = node_id_of(self.p2p.peer_id)
        self._node = await DHTNode.create(p2p=self.p2p, initial_peers=self._peers, node_id=here)
        return tuple(map(str, await self.p2p.get_visible_maddrs()))

    async def answer(self, key: str, value: bytes | Mapping[Any, tuple[Any, float]], expires: float) -> None:
        """Hand this out from now on: a value, or values by subkey with their times of expiration."""
        kept: Any = value
        if not isinstance(value, bytes):
            kept = DictionaryDHTValue()
            kept.data.update({subkey: ValueWithExpiration(*entry) for subkey, entry in value.items()})
        self._node.protocol.storage.data[DHTID.generate(key)] = ValueWithExpiration(kept, expires)

    def signed(self, record: Raw) -> Raw:
        """The record with this client's signature, though its subkey may name another owner or none."""
        message = MSGPackSerializer.dumps((record.key_bytes, record.subkey, record.value, record.expires))
        signature = RSASignatureValidator.SIGNATURE_FORMAT.replace(b"_value_", self.identity.key.sign(message))
        return Raw(record.key, record.subkey, record.value + signature, record.expires, record.cached)

    def _directory(self, to: str | None) -> Any:
        return ServicerBase.__dict__["get_stub"].__get__(None, DHTProtocol)(self.p2p, self._id(to))

    def _id(self, peer: str | None) -> PeerID:
        return PeerID.from_base58(peer or self.organizer)


def pack(value: object) -> bytes:
    """As hivemind does."""
    return bytes(MSGPackSerializer.dumps(value))


def misspelt(owner: bytes) -> dict[str, bytes]:
    """Subkeys that some parser may take for that of this owner, by what is wrong with them."""
    key = owner[len(b"[owner:ssh-rsa ") : -1]
    return {
        "a newline at the end": b"[owner:ssh-rsa " + key + b"\n]",
        "a newline before the key": b"[owner:ssh-rsa \n" + key + b"]",
        "a newline at the beginning": b"[owner:\nssh-rsa " + key + b"]",
        "a newline in the key": b"[owner:ssh-rsa " + key[:64] + b"\n" + key[64:] + b"]",
        "a carriage return": b"[owner:ssh-rsa " + key + b"\r]",
        "a comment": b"[owner:ssh-rsa " + key + b" a comment]",
        "a comment after a newline": b"[owner:ssh-rsa " + key + b" \n]",
        "two spaces": b"[owner:ssh-rsa  " + key + b"]",
        "a tab": b"[owner:ssh-rsa\t" + key + b"]",
        "a newline after it": owner + b"\n",
        "something before it": b"x" + owner,
        "something after it": owner + b"x",
        "twice": owner + owner,
        "more padding": b"[owner:ssh-rsa " + key + b"=]",
        "a null byte": b"[owner:ssh-rsa " + key + b"\0]",
        "another case": b"[Owner:ssh-rsa " + key + b"]",
        "no brackets": b"ssh-rsa " + key,
        "nested": b"[owner:" + owner + b"]",
    }
