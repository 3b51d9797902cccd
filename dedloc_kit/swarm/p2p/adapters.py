"""The seams on hivemind: streams of libp2p, the DHT, and RSA keys."""

import asyncio
import hashlib
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, ClassVar

from hivemind.p2p import P2PDaemonError
from pydantic import Field

from dedloc_kit.records.record import SignedRecord
from dedloc_kit.swarm.network import identity
from dedloc_kit.swarm.network.bootstrap import REPLICAS
from dedloc_kit.swarm.network.node import Node
from dedloc_kit.swarm.network.service import Endpoint, Service, Stream
from dedloc_kit.swarm.p2p import seams


class Libp2pNetwork:
    """`Network` of one process of a peer, behind its gate."""

    def __init__(self, endpoint: Endpoint, peer: str) -> None:
        self._endpoint, self.peer = endpoint, peer

    async def serve(self, service: str, handler: seams.Handler, /) -> None:
        await self._endpoint.add(_Served(service, handler))

    @asynccontextmanager
    async def open(self, peer: str, service: str, /) -> AsyncIterator[seams.Stream]:
        async with self._endpoint.open(peer, _Served(service)) as stream:
            yield stream


class _Served(Service):
    """A service by its name."""

    def __init__(self, name: str, handler: seams.Handler | None = None) -> None:
        self.name, self._handler = name, handler

    async def serve(self, peer: str, stream: Stream) -> None:
        assert self._handler is not None
        await self._handler(peer, stream)


class DhtRecords:
    """`Records` of a peer's node, which runs in a process of its own."""

    def __init__(self, node: Node, signer: identity.Signer) -> None:
        self._node, self._signer = node, signer

    async def put(self, key: str, record: SignedRecord | None, expires: float, /) -> bool:
        stored = self._node.store(
            key,
            subkey=self._signer.subkey,
            value=None if record is None else record.model_dump(),
            expiration_time=expires,
            beam_size=REPLICAS,
            return_future=True,
        )
        return bool(await _result(stored))

    async def get(self, key: str, /, *, sufficient: float | None = None) -> Mapping[str, seams.Entry]:
        one: dict[str, Any] = {"sufficient_expiration_time": sufficient, "num_workers": 1}
        several: dict[str, Any] = {"latest": True}
        found = await _result(self._node.get(key, return_future=True, **(several if sufficient is None else one)))
        entries: dict[str, seams.Entry] = {}
        for subkey, entry in found.value.items() if found is not None and isinstance(found.value, dict) else ():
            with suppress(ValueError, TypeError):  # it hides no other
                entries[identity.author(subkey)] = seams.Entry(entry.value, entry.expiration_time)
        return entries


async def _result(future: "Future[Any]") -> Any:
    try:
        return await asyncio.wrap_future(future)
    except P2PDaemonError as error:
        raise ConnectionError(str(error)) from None


class SignedDigest(SignedRecord):
    """The SHA-256 of content whose signature stands apart from it."""

    wire: ClassVar[str] = "digest"

    digest: Annotated[bytes, Field(min_length=32, max_length=32)]


class KeySigner:
    """`Signer` with this peer's RSA key."""

    def __init__(self, signer: identity.Signer) -> None:
        self._signer, self.peer = signer, signer.peer

    def sign(self, content: bytes) -> str:
        return b64encode(self._signer.sign(_digest(content))).decode()


class KeyVerifier:
    """`Verifier` of RSA signatures, which bring their author's public key: a peer's id is its hash."""

    def valid(self, author: str, content: bytes, signature: str) -> bool:
        try:
            signed = b64decode(signature, validate=True)
            one_spelling = b64encode(signed).decode() == signature
            return one_spelling and identity.opened(SignedDigest, signed) == (author, _digest(content))
        except ValueError:
            return False


def _digest(content: bytes) -> SignedDigest:
    return SignedDigest(digest=hashlib.sha256(content).digest())
