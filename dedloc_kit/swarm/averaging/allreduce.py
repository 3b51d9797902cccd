"""One all-reduce: every member ends with the same bits, or with an error that says who is to blame.

Each reachable member reduces its own share of the flat gradient vector for all (butterfly all-reduce, DeDLOC section
3.2) and sends everyone the same encoded average, which it also takes itself. Members introduce themselves with their
signed contributions when they begin, so the weights are not what a sender claims and all see the same numbers.
"""

import asyncio
import contextlib
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from dedloc_kit.swarm.averaging.compression import ChunkCompression, Codec, decode, read_part
from dedloc_kit.swarm.averaging.feedback import Feedback
from dedloc_kit.swarm.averaging.handshake import Handshake, Introductions
from dedloc_kit.swarm.averaging.messages import Ended, Says, gave_up, payload_of, told
from dedloc_kit.swarm.averaging.reducer import Reducer
from dedloc_kit.swarm.averaging.window import SendWindow
from dedloc_kit.swarm.network.service import MAX_RECORD_BYTES, Stream
from dedloc_kit.swarm.network.unpacking import unpack
from dedloc_kit.training.flat import CHUNK, FlatLayout

MAX_PART_BYTES = 4 * CHUNK + 1024
MAX_NAMED_BYTES = 65_536

T = TypeVar("T")
OpenStream = Callable[[str], AbstractAsyncContextManager[Stream]]
"""To a reducer, its first message sent: this peer's introduction."""


class GroupRefused(Exception):
    """The group must not take a step; all of its members see the same reason."""


class Fault(Exception):
    """A member did not do its part."""


@dataclass(frozen=True)
class Plan:
    """Who reduces which values: the flat vector in chunks, in the order of the members."""

    members: tuple[str, ...]
    layout: FlatLayout
    shares: tuple[int, ...]
    """How many values each member reduces; 0 for clients."""

    def chunks(self) -> list[list[tuple[int, int]]]:
        """The chunks (begin, end) that each member reduces."""
        return self.layout.chunks(self.shares)


@dataclass(frozen=True)
class Coding:
    """How chunks are written down, and what that loses is made good."""

    codec: Codec
    sent: Feedback
    """Of what this peer sends as a member."""
    averaged: Feedback
    """Of what it sends as a reducer."""


@dataclass(frozen=True)
class Patience:
    """Seconds of silence after which a member counts as gone."""

    usual: float
    start: float
    """Until it has begun."""


class AllReduce:
    """Butterfly all-reduce of one flat vector, all of it or an error.

    All arithmetic is done between two messages, in the thread that exchanges them: a part takes a millisecond, and
    handing it to other threads would cost as much again.

    :param me: this peer's id; it is one of the members
    :param flat: this peer's vector, float32 [size] on the CPU; it is only read
    :param average: of the same size; takes the average. After a round that failed, late members may still write to it
    :param reducer: for the chunks of this peer's share
    :param handshake: with this peer's introduction; also says what makes the group too small
    :param open_stream: to another member that reduces
    """

    def __init__(
        self,
        me: str,
        plan: Plan,
        vectors: tuple[Tensor, Tensor],
        coding: Coding,
        reducer: Reducer,
        handshake: Handshake,
        patience: Patience,
        open_stream: OpenStream,
    ) -> None:
        flat, average = vectors
        self._me, self._members, self._layout = me, plan.members, plan.layout
        self._mine = plan.members.index(me)
        pieces = plan.chunks()
        chunks = [chunk for peer in pieces for chunk in peer]
        self._begins = [begin for begin, _ in chunks]
        self._values = [flat[begin:end] for begin, end in chunks]
        self._places = [average[begin:end] for begin, end in chunks]
        self._parts = [len(peer) for peer in pieces]
        self._first = [sum(self._parts[:peer]) for peer in range(len(pieces))]  # index of each peer's first chunk
        self._coding, self._reducer, self._handshake = coding, reducer, handshake
        self._patience, self._open_stream = patience, open_stream
        self._part = torch.empty(CHUNK)
        """What one member sent, until it is added up."""
        self._untold = {peer for peer, parts in zip(plan.members, self._parts, strict=True) if parts} - {me}
        """Reducers that have not told us yet what everyone brought."""
        self._told = asyncio.Event()
        if not self._untold:
            self._told.set()
        self._failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._window = SendWindow([0 if peer == self._mine else count for peer, count in enumerate(self._parts)])
        self._encodings: dict[int, asyncio.Future[bytes]] = {}
        self.messages: list[bytes] = [b""] * len(chunks)
        """The encoded average, as everyone got it."""
        self.culprits: set[str] = set()
        """Who fell silent, broke off or sent nonsense, as far as this peer saw."""
        self.named: set[str] = set()
        """Who did so as others say."""
        self.longest_silence = 0.0
        """Seconds between two messages of a stream."""

    @property
    def upload_rate(self) -> float | None:
        """Bytes per second at which this peer's gradients came to the reducers, if it sent any."""
        return self._window.rate or None

    # The round as a whole

    async def complete(self) -> None:
        """Fill the average; raises GroupRefused, or Fault or RoundOver if any part of it is missing."""
        self._agree(self._handshake.begin())
        collecting = asyncio.create_task(self._collect())
        try:
            waiting: set[asyncio.Future[Any]] = {collecting, self._failure}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if collecting.done() and (not self._failure.done() or collecting.exception() is None):
                collecting.result()
                await self._let_all_begin()
                return
            if isinstance(self._failure.result(), GroupRefused):
                # The others need our introduction to see the same; a stream that breaks before looks like a fault.
                all_told, usual = asyncio.create_task(self._told.wait()), self._patience.usual
                await asyncio.wait({all_told, collecting}, timeout=usual, return_when=asyncio.FIRST_COMPLETED)
                all_told.cancel()
            raise self._failure.result()
        finally:
            collecting.cancel()  # closes every stream of this round, so that the others need not wait for a timeout
            await asyncio.wait({collecting})
            _look_at(collecting)
            self._reducer.abandon()

    async def _let_all_begin(self) -> None:
        """A member without samples may begin after this peer has everything: its averages are still to be had here."""
        if self._parts[self._mine]:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._handshake.all_met.wait(), self._patience.usual)

    async def _collect(self) -> None:
        async with asyncio.TaskGroup() as exchanges:
            if self._parts[self._mine]:
                exchanges.create_task(self._look_for_senders())
                exchanges.create_task(self._reduce_own())
            for index, parts in enumerate(self._parts):
                if parts and index != self._mine:
                    exchanges.create_task(self._exchange(index))

    async def introductions(self) -> Introductions:
        """Everyone's, once they are known; raises RoundOver if the round has failed before."""
        return await asyncio.shield(self._handshake.result)

    def _fail(self, reason: Exception, culprit: str | None = None) -> None:
        if culprit is not None:
            self.culprits.add(culprit)
        if not self._failure.done():
            self._failure.set_result(reason)
        self._handshake.fail(reason)

    # Introductions

    def _agree(self, introductions: Introductions | None) -> None:
        """Once all members have begun, they know the weights and whether they may average at all."""
        if introductions is None:
            return
        self._coding.averaged.begin(float(introductions.samples))
        try:
            self._handshake.check(introductions)
        except GroupRefused as refusal:
            self._fail(refusal)
            return
        self._reducer.expect({p: float(c.samples) for p, c in introductions.contributions.items() if c.samples})

    async def _look_for_senders(self) -> None:
        begun: set[asyncio.Future[Any]] = {self._handshake.result, self._failure}
        await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED, timeout=self._patience.start)
        for peer in self._handshake.missing():
            self._fail(Fault(f"{peer} did not begin"), peer)
        if self._failure.done():
            return
        # Who has begun elsewhere may be gone before it comes to us, and then the others wait for our share.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._handshake.senders_met.wait(), self._patience.usual)
        for peer in self._handshake.absent_senders():
            self._fail(Fault(f"{peer} did not come to this peer"), peer)

    # As a member: send gradients to a reducer, receive its averages

    async def _exchange(self, reducer: int) -> None:
        peer, limit = self._members[reducer], len(self._members) * (MAX_RECORD_BYTES + 16)
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self._patience.start + self._patience.usual):
                    stream = await stack.enter_async_context(self._open_stream(peer))
                    sending = asyncio.create_task(self._send(reducer, stream))
                    stack.callback(sending.cancel)
                    signed = payload_of(await stream.receive(max(limit, MAX_NAMED_BYTES)), Says.INTRODUCTIONS)
                self._agree(self._handshake.told(tuple(unpack(bytes(signed)))))
                self._untold.discard(peer)
                if not self._untold:
                    self._told.set()
                for index in range(self._first[reducer], self._first[reducer] + self._parts[reducer]):
                    # A reducer falls silent when one of its senders does; it must find that out before we blame it.
                    message = await self._timed(stream.receive(MAX_PART_BYTES), 2 * self._patience.usual)
                    average = payload_of(message, Says.AVERAGE)
                    (waited,) = struct.unpack_from("d", average)
                    self._take(index, bytes(average[8:]))
                    self._window.came(reducer, waited)
        except Ended as ended:
            if ended.by_itself:
                self._fail(Fault(f"{peer} failed"), peer)
            else:
                self.named |= set(self._members) & ended.named
                self._fail(Fault(f"{peer} gave the round up"))
            raise
        except Exception as error:
            self._fail(Fault(f"{peer} did not deliver its part ({error!r:.100})"), peer)
            raise

    async def _send(self, reducer: int, stream: Stream) -> None:
        if not self._handshake.mine.samples:
            return  # nothing to add: a follower's zeros need not travel
        try:
            for number in range(self._first[reducer], self._first[reducer] + self._parts[reducer]):
                await self._window.room(reducer)
                begin = self._begins[number]
                part = self._coding.sent.encode(
                    self._way(begin, self._coding.codec.gradients), self._values[number], begin
                ).SerializeToString()
                self._window.sent(reducer, len(part))
                await stream.send(part)
        except OSError:
            pass  # the other side is gone or has given up: what it said last tells which
        except Exception as error:
            self._fail(Fault(f"encoding failed here ({error!r:.100})"), self._me)

    def _way(self, begin: int, large: ChunkCompression) -> ChunkCompression:
        """How the chunk that begins there is written down, if chunks of large tensors are written so."""
        return self._coding.codec.small if begin >= self._layout.large else large

    def _take(self, number: int, message: bytes) -> None:
        """The average of a chunk."""
        place = self._places[number]
        decode(read_part(message), len(place), place)
        self.messages[number] = message

    async def _timed(self, receiving: Awaitable[T], patience: float) -> T:
        """Raises TimeoutError after a silence."""
        before = time.monotonic()
        async with asyncio.timeout(patience):
            message = await receiving
        self.longest_silence = max(self.longest_silence, time.monotonic() - before)
        return message

    # As a reducer: reduce what the members send, send them all the same average

    async def _reduce_own(self) -> None:
        first, weight = self._first[self._mine], float(self._handshake.mine.samples)
        try:
            await self.introductions()
            for index in range(self._parts[self._mine]):
                if weight:
                    exact = self._coding.sent.exact(self._values[first + index], self._begins[first + index])
                    self._reducer.add(self._me, index, exact, weight)
                    await asyncio.sleep(0)  # messages must not wait for all of it
            for index in range(self._parts[self._mine]):
                self.messages[first + index] = await asyncio.shield(self._encoding(index))
        except Exception as error:
            if not self._failure.done():
                self._fail(Fault(f"adding up failed here ({error!r:.100})"), self._me)
            raise

    async def serve(self, sender: str, introduction: bytes, stream: Stream) -> None:
        """Serve one member: take its gradients for our share, answer with the averages as they are done."""
        if sender not in self._members or self._handshake.contribution_of(sender):
            return
        receiving: asyncio.Task[None] | None = None
        try:
            try:
                self._agree(self._handshake.meet(sender, introduction))
            except ValueError as error:
                self._fail(Fault(f"{sender} did not introduce itself ({error!r:.100})"), sender)
                raise
            arrivals: list[float] = []
            receiving = asyncio.create_task(self._receive(sender, stream, arrivals))
            receiving.add_done_callback(_look_at)
            await stream.send(told((await self.introductions()).signed))
            for index in range(self._parts[self._mine]):
                average = await asyncio.shield(self._encoding(index))
                waited = time.monotonic() - arrivals[index] if index < len(arrivals) else 0.0
                await stream.send(bytes([Says.AVERAGE]) + struct.pack("d", waited) + average)
            await receiving
            await stream.closed()
        except Exception:  # whatever it is, the round is over here, and this member need not wait
            if receiving is not None:  # a stream has one reader at a time
                receiving.cancel()
                await asyncio.wait({receiving})
            with contextlib.suppress(OSError):
                await stream.send(gave_up(self._me, self.culprits, self.named))
                await stream.closed()
        finally:
            if receiving is not None:
                receiving.cancel()

    async def _receive(self, sender: str, stream: Stream, arrivals: list[float]) -> None:
        """A member's gradients for the values that this peer reduces, and when each part of them has come."""
        contribution = self._handshake.contribution_of(sender)
        if contribution is None or not contribution.samples:
            return
        first, weight = self._first[self._mine], float(contribution.samples)
        try:
            for index in range(self._parts[self._mine]):
                message = await self._timed(stream.receive(MAX_PART_BYTES), self._patience.usual)
                arrivals.append(time.monotonic())
                size = len(self._places[first + index])
                part = decode(read_part(message), size, self._part[:size])
                self._reducer.add(sender, index, part, weight)
        except (ConnectionError, EOFError):
            # It broke off. If that was because of a third one, it says so on our stream to it before this.
            if not self._failure.done():
                broke_off = Fault(f"{sender} broke off")
                asyncio.get_running_loop().call_later(self._patience.usual, self._fail, broke_off, sender)
            raise
        except Exception as error:
            self._fail(Fault(f"{sender} stopped sending ({error!r:.100})"), sender)
            raise

    def _encoding(self, index: int) -> "asyncio.Future[bytes]":
        """The average of a part as it travels; made once, and taken by this peer as everyone reads it.

        Several streams wait for it: none must cancel it for the others.
        """
        if index not in self._encodings:
            self._encodings[index] = asyncio.ensure_future(self._encode(index))
            self._encodings[index].add_done_callback(_look_at)
        return self._encodings[index]

    async def _encode(self, index: int) -> bytes:
        average = await self._reducer.result(index)
        number = self._first[self._mine] + index
        begin, place = self._begins[number], self._places[number]
        way = self._way(begin, self._coding.codec.averages)
        return bytes(self._coding.averaged.encode(way, average, begin, place).SerializeToString())


def _look_at(done: "asyncio.Future[Any]") -> None:
    """When a round fails, nobody may be left to ask how this ended: without this asyncio complains."""
    if not done.cancelled():
        done.exception()
