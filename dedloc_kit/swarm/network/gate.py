"""The gate of a peer: whom it serves and whom it asks.

libp2p proves who is at the other end of a connection. In a run that is not open, a peer shows its token, signed by the
organizer for its key, before its first call to another; that one checks it, answers with its own, and serves the peer
from then on until the token expires. All of it happens below hivemind, in the one class through which every call of
every service comes in and goes out, so that none can be forgotten: the directory's, the averager's, downloads and the
test of reachability alike. In an open run the same gate only refuses those whom the organizer has sent away.

Tokens last an hour, and age only while the organizer is heard of: if the coordinator dies, nobody new comes in, but
those who are in go on for as long as they like. While it is there, whoever it refuses is out within a minute: it says
so in a signed notice, which all follow.
"""

import asyncio
import base64
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from google.protobuf.message import Message  # type: ignore[import-untyped]
from google.protobuf.wrappers_pb2 import BytesValue  # type: ignore[import-untyped]
from hivemind.p2p import P2PContext, P2PDaemonError, P2PHandlerError, PeerID
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.utils import get_dht_time

from dedloc_kit.machine.dialling import host_and_port
from dedloc_kit.records.admission import Reached, Token
from dedloc_kit.records.orders import Notice
from dedloc_kit.swarm.network.bounds import BinaryHandler, BoundedP2P
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.names import Names

SILENT_SECONDS = 120.0
"""An organizer that was not heard of for so long is gone: from then on no token grows older."""
SHOW_AGAIN_SECONDS = 20.0
"""Whoever was started anew has forgotten who has shown it a token."""
REACHED_SECONDS = 30 * 86400.0
"""For so long others look for a peer where the organizer has reached it; it tries again when the peer starts anew."""
_REFUSAL = "this peer serves only those whom the organizer has let in"


class NotAdmitted(P2PDaemonError):
    """The peer at the other end may not take part, or does not take us for one that may."""


class Gate:
    """What one process of a peer knows of who may take part.

    :param organizer: the coordinator's peer id, whose word counts; it needs no token
    :param restricted: whether peers need a token
    :param parts: the ids of what of the run is averaged apart: whoever may take part may do so in each
    """

    def __init__(
        self, run_id: str, organizer: str, signer: Signer, *, restricted: bool, parts: Sequence[str] = ()
    ) -> None:
        self.run_id, self.organizer, self.restricted, self.parts = run_id, organizer, restricted, tuple(parts)
        self.token = b""
        """This peer's own; none in an open run, and for the organizer."""
        self.notice = Notice(run_id=run_id, time=0.0)
        """The newest of the organizer."""
        self._signer = signer
        self._heard = 0.0  # of the organizer, by its clock
        self._admitted: dict[str, float] = {}
        self._serving: defaultdict[str, set[asyncio.Task[Any]]] = defaultdict(set)

    def read(self, token: bytes) -> Token:
        """What a token says, if the organizer has signed it for this run; raises NotAdmitted."""
        try:
            author, read = self._signer.open(Token, token)
        except ValueError as error:
            raise NotAdmitted(str(error)) from None
        if (author, read.run_id) != (self.organizer, self.run_id):
            raise NotAdmitted("the token is not of this run's organizer")
        return read

    def expired(self, token: Token) -> bool:
        return token.expires <= min(float(get_dht_time()), self._heard + SILENT_SECONDS)

    def admit(self, peer: str, token: bytes) -> None:
        """Take note that this peer may take part; raises NotAdmitted unless its token says so."""
        if not self.restricted or peer == self.organizer:
            return
        read = self.read(token)
        if read.peer != peer:
            raise NotAdmitted("the token is another peer's")
        # Only now: a token that is stolen or late is the organizer's all the same, so it was there then.
        self._heard = max(self._heard, min(read.time, float(get_dht_time())))
        if self.expired(read):
            raise NotAdmitted("the token has expired")
        self._admitted[peer] = read.expires

    def admits(self, peer: str) -> bool:
        """May this peer take part, as far as it has shown?"""
        if self.notice.refuses(peer):
            return False
        if not self.restricted or peer == self.organizer:
            return True
        expires = self._admitted.get(peer)
        return expires is not None and expires > min(float(get_dht_time()), self._heard + SILENT_SECONDS)

    def check(self, peer: PeerID) -> None:
        """Raises NotAdmitted unless this peer may take part."""
        if not self.admits(peer.to_base58()):
            raise NotAdmitted(_REFUSAL)

    def hold(self, token: bytes) -> None:
        """Take this peer's own newest token; raises NotAdmitted unless the organizer has made it."""
        self._heard = max(self._heard, self.read(token).time)
        self.token = token

    def follow(self, token: bytes, notice: Notice) -> None:
        """Take this peer's newest token, which is checked, and the organizer's newest notice; calls of peers that it
        refuses end at once."""
        if token:
            self.hold(token)
        if notice.time < self.notice.time:
            return
        self.notice, self._heard = notice, max(self._heard, notice.time)
        for peer in filter(notice.refuses, self._serving):
            for task in self._serving[peer]:
                task.cancel()

    def replica(self) -> "Gate":
        """Return a gate of the same run for another thread of this process, to be kept current by `mirror`."""
        replica = Gate(self.run_id, self.organizer, self._signer, restricted=self.restricted)
        replica.mirror(self)
        return replica

    def mirror(self, other: "Gate") -> None:
        """Take over another gate's token and notice."""
        self.follow(other.token, other.notice)

    def vouch(self, peer: str, host: str, port: int) -> str:
        """The organizer's signed word that it has reached a peer there; nothing from anybody else, nor in an open
        run."""
        if not self.restricted or self._signer.peer != self.organizer:
            return ""
        now = float(get_dht_time())
        word = self._signer.sign(Reached(run_id=self.run_id, peer=peer, host=host, port=port, time=now))
        return base64.b64encode(word).decode()

    def vouched(self, peer: str, addresses: Sequence[str], word: str) -> tuple[str, ...]:
        """Those of a peer's addresses where others may look for it: in a run that is not open, where the organizer
        has reached it, as its word says."""
        if not self.restricted or peer == self.organizer:
            return tuple(addresses)
        try:
            author, reached = self._signer.open(Reached, base64.b64decode(word))
            places = {address: host_and_port(address) for address in addresses}
        except ValueError:
            return ()
        if (author, reached.run_id, reached.peer) != (self.organizer, self.run_id, peer):
            return ()
        if reached.time < float(get_dht_time()) - REACHED_SECONDS:
            return ()
        return tuple(address for address, place in places.items() if place == (reached.host, reached.port))

    @contextmanager
    def serving(self, peer: str) -> Iterator[None]:
        """While this task serves a peer: it is cancelled when the peer is refused."""
        task = asyncio.current_task()
        assert task is not None
        self._serving[peer].add(task)
        try:
            yield
        finally:
            self._serving[peer].discard(task)
            if not self._serving[peer]:
                del self._serving[peer]


class GatedP2P(BoundedP2P):
    """A P2P behind a gate: whatever is served or asked through it, only among those who may take part."""

    gate: Gate
    service: str

    @classmethod
    def behind(cls, gate: Gate, service: str) -> type[Self]:
        """The class for one process of a peer, for hivemind makes the objects; services only meet their like.

        :param service: this process, and whom it asks: `directory`, `averager`, or what a part of a run has
        """
        return type(cls.__name__, (cls,), {"gate": gate, "service": service})

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[PeerID, tuple[bytes, float]] = {}
        self._showing: defaultdict[PeerID, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._opening = asyncio.Lock()
        self._open = False

    # What others ask of us

    async def _add_protobuf_unary_handler(
        self,
        handle_name: str,
        handler: Callable[[Any, P2PContext], Awaitable[Any]],
        input_protobuf_type: type[Message],
        balanced: bool = False,
    ) -> None:
        async def gated(request: Any, context: P2PContext) -> Any:
            self.gate.check(context.remote_id)
            return await handler(request, context)

        await self._open_door()
        await super()._add_protobuf_unary_handler(handle_name, gated, input_protobuf_type, balanced)

    async def add_binary_stream_handler(self, name: str, handler: BinaryHandler, balanced: bool = False) -> None:
        """Also what hivemind's streams of messages are made of."""

        async def gated(stream: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = stream.peer_id.to_base58()
            if not self.gate.admits(peer):
                writer.close()
                return
            try:
                with self.gate.serving(peer):
                    await handler(stream, reader, writer)
            except asyncio.CancelledError:  # by the gate, or at the end of the loop
                writer.close()  # and no more: nobody awaits this, and asyncio of Python 3.11 logs a traceback of each

        await self._open_door()
        await super().add_binary_stream_handler(name, gated, balanced)

    async def _open_door(self) -> None:
        """Let others show their tokens, from the first service on."""
        async with self._opening:
            if not self._open:
                await super()._add_protobuf_unary_handler(self._door, self._shown_to_us, BytesValue)
                self._open = True

    @property
    def _door(self) -> str:
        return Names(self.gate.run_id).door(self.service)

    async def _shown_to_us(self, request: BytesValue, context: P2PContext) -> BytesValue:
        self.gate.admit(context.remote_id.to_base58(), request.value)
        self.gate.check(context.remote_id)
        return BytesValue(value=self.gate.token)

    # What we ask of others

    async def call_binary_stream_handler(
        self, peer_id: PeerID, handler_name: str
    ) -> tuple[StreamInfo, asyncio.StreamReader, asyncio.StreamWriter]:
        await self._show(peer_id)
        opened: tuple[StreamInfo, asyncio.StreamReader, asyncio.StreamWriter]
        opened = await super().call_binary_stream_handler(peer_id, handler_name)
        return opened

    async def _call_unary_protobuf_handler(
        self, peer_id: PeerID, handle_name: str, input: Message, output_protobuf_type: type[Message]
    ) -> Any:
        await self._show(peer_id)
        call = super()._call_unary_protobuf_handler
        try:
            return await call(peer_id, handle_name, input, output_protobuf_type)
        except P2PHandlerError as error:
            if _REFUSAL not in str(error) or self._shown.pop(peer_id, None) is None:
                raise
            await self._show(peer_id)  # it was started anew since
            return await call(peer_id, handle_name, input, output_protobuf_type)

    async def _show(self, peer_id: PeerID) -> None:
        """Show our token to a peer and see its own, unless we did; raises NotAdmitted unless both are let in."""
        peer = peer_id.to_base58()
        if self.gate.notice.refuses(peer):
            raise NotAdmitted(f"{peer} was sent away by the organizer")
        if not self.gate.restricted:
            return
        async with self._showing[peer_id]:
            token, shown = self._shown.get(peer_id, (b"", 0.0))
            fresh = token == self.gate.token and time.monotonic() < shown + SHOW_AGAIN_SECONDS
            if fresh and self.gate.admits(peer):
                return
            token = self.gate.token
            try:
                answer = await super()._call_unary_protobuf_handler(
                    peer_id, self._door, BytesValue(value=token), BytesValue
                )
            except P2PHandlerError as error:
                raise NotAdmitted(f"{peer} refuses us: {error}") from None
            self.gate.admit(peer, answer.value)
            self._shown[peer_id] = (token, time.monotonic())
