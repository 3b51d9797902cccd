"""One all-reduce: every member ends with the same bits, or with an error that says who is to blame.

Each reachable member adds up its own share of the flat gradient vector for all (butterfly all-reduce, DeDLOC section
3.2) and sends everyone the same encoded average, which it also takes itself. Members introduce themselves with their
signed contributions when they begin, so the weights are not what a sender claims and all see the same numbers.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any

import torch
from hivemind.averaging.allreduce import AllreduceException, AllReduceRunner
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils import MSGPackSerializer

from dedloc_kit.records import Contribution
from dedloc_kit.swarm.averaging.compression import ChunkCompression, Codec, decode
from dedloc_kit.swarm.averaging.feedback import Feedback
from dedloc_kit.swarm.averaging.grouping import Grouping
from dedloc_kit.swarm.averaging.handshake import Introductions, RollCall
from dedloc_kit.swarm.averaging.reducer import Reducer
from dedloc_kit.swarm.averaging.window import SendWindow
from dedloc_kit.swarm.network.unpacking import unpack
from dedloc_kit.training.flat import CHUNK, FlatLayout


class Refused(Exception):
    """The group must not take a step; all of its members see the same reason."""


class ExactAllReduce(AllReduceRunner):
    """Butterfly all-reduce of one flat vector, all of it or an error.

    All arithmetic is done between two messages, in the thread that exchanges them: a part takes a millisecond, and
    handing it to other threads would cost as much again.

    :param flat: this peer's vector, float32 on the CPU; it is only read
    :param average: of the same size; takes the average
    :param sums: of the same size; room for the sums that this peer makes. After a round that failed, late members may
        still write to both
    :param shares: how many values each member reduces, in the order of the group; 0 for clients
    :param introduction: this peer's signed contribution
    :param introduced: checks a member's introduction and reads it; raises ValueError
    :param grouping: says whether the group has enough samples
    :param make_reducer: given room for each part that this peer reduces
    :param sent, averaged: error feedback of what this peer sends as a member and as a reducer
    :param patience: seconds of silence after which a member counts as gone
    :param start_patience: the same until it has begun
    """

    def __init__(
        self,
        *,
        flat: torch.Tensor,
        average: torch.Tensor,
        sums: torch.Tensor,
        layout: FlatLayout,
        shares: Sequence[int],
        introduction: bytes,
        introduced: Callable[[PeerID, bytes], Contribution],
        grouping: Grouping,
        make_reducer: Callable[[Sequence[torch.Tensor]], Reducer],
        codec: Codec,
        sent: Feedback,
        averaged: Feedback,
        patience: float,
        start_patience: float,
        **kwargs: Any,
    ) -> None:
        pieces = layout.chunks(shares)
        chunks = [chunk for peer in pieces for chunk in peer]
        self._begins = [begin for begin, _ in chunks]
        self._gradients = [flat[begin:end] for begin, end in chunks]
        self._places = [average[begin:end] for begin, end in chunks]
        self._introduction, self._grouping = introduction, grouping
        self._layout = layout
        self._codec, self._sent, self._averaged = codec, sent, averaged
        self._patience, self._start_patience = patience, start_patience
        super().__init__(
            tensors=self._gradients,
            peer_fractions=_safe_fractions(shares),
            part_size_bytes=2**40,  # our chunks are not to be cut any further
            **kwargs,
        )
        parts = self.tensor_part_container.num_parts_by_peer
        assert tuple(map(len, pieces)) == parts, "hivemind deals the chunks out to others than planned"
        self._mine = self.ordered_peer_ids.index(self.peer_id)
        self._first = [sum(parts[:peer]) for peer in range(len(parts))]  # index of each peer's first chunk
        self._parts = parts
        self.tensor_part_reducer.finished.set()  # hivemind's, not used; it would complain when it is collected
        self._reducer = make_reducer([sums[begin:end] for begin, end in pieces[self._mine]])
        self._part = torch.empty(CHUNK)
        """What one member sent, until it is added up."""
        self._untold = {
            peer for peer, share in zip(self.ordered_peer_ids, shares, strict=True) if share and peer != self.peer_id
        }
        """Reducers that have not told us yet what everyone brought."""
        self._told = asyncio.Event()
        if not self._untold:
            self._told.set()
        loop = asyncio.get_running_loop()
        self._roll_call = RollCall(self.ordered_peer_ids, introduced)
        self._failure: asyncio.Future[Exception] = loop.create_future()
        self._window = SendWindow([0 if peer == self._mine else count for peer, count in enumerate(parts)])
        self._encodings: dict[int, asyncio.Future[runtime_pb2.Tensor]] = {}
        self.messages: list[runtime_pb2.Tensor | None] = [None] * len(chunks)
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
        """Fill `average`; raises Refused, or AllreduceException if any part of it is missing."""
        self._agree(self._roll_call.meet(self.peer_id, self._introduction))
        collecting = asyncio.create_task(self._collect())
        try:
            waiting: set[asyncio.Future[Any]] = {collecting, self._failure}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if collecting.done() and (not self._failure.done() or collecting.exception() is None):
                collecting.result()
                await self._let_all_begin()
                return
            if isinstance(self._failure.result(), Refused):
                # The others need our introduction to see the same; a stream that breaks before looks like a fault.
                all_told = asyncio.create_task(self._told.wait())
                await asyncio.wait({all_told, collecting}, timeout=self._patience, return_when=asyncio.FIRST_COMPLETED)
                all_told.cancel()
            raise self._failure.result()
        finally:
            collecting.cancel()  # closes every stream of this round, so that the others need not wait for a timeout
            await asyncio.wait({collecting})
            failed = collecting.cancelled() or collecting.exception() is not None
            self.finalize(exception=AllreduceException("the round is over") if failed else None)
            self._reducer.abandon()
            self._future.exception()  # hivemind's own, for which nobody asks: without this asyncio complains

    async def _let_all_begin(self) -> None:
        """A member without samples may begin after this peer has everything: its averages are still to be had here."""
        if self._parts[self._mine]:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._roll_call.all_met.wait(), self._patience)

    async def _collect(self) -> None:
        """Exchange with all reducers; hivemind's own loop over them would copy every part once more."""
        async with asyncio.TaskGroup() as exchanges:
            if self._parts[self._mine]:
                exchanges.create_task(self._handle_missing_senders())
            for peer, parts in zip(self.ordered_peer_ids, self._parts, strict=True):
                if parts:
                    exchanges.create_task(self._communicate_with_peer(peer))

    async def introductions(self) -> Introductions:
        """Everyone's, once they are known; raises AllreduceException if the round has failed before."""
        return await asyncio.shield(self._roll_call.result)

    def _fail(self, reason: Exception, culprit: PeerID | None = None) -> None:
        if culprit is not None:
            self.culprits.add(culprit.to_base58())
        if not self._failure.done():
            self._failure.set_result(reason)
        self._roll_call.fail(reason)

    # Introductions

    def _agree(self, introductions: Introductions | None) -> None:
        """Once all members have begun, they know the weights and whether they may average at all."""
        if introductions is None:
            return
        self._averaged.begin(float(introductions.samples))
        if not self._grouping.enough_samples(introductions.samples):
            self._fail(Refused(f"{introductions.samples} samples are too few"))
            return
        self._reducer.expect({p: float(c.samples) for p, c in introductions.contributions.items() if c.samples})

    async def _handle_missing_senders(self) -> None:
        begun: set[asyncio.Future[Any]] = {self._roll_call.result, self._failure}
        await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED, timeout=self._start_patience)
        for peer in self._roll_call.missing():
            self._fail(AllreduceException(f"{peer} did not begin"), peer)
        if self._failure.done():
            return
        # Who has begun elsewhere may be gone before it comes to us, and then the others wait for our share.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._roll_call.senders_met.wait(), self._patience)
        for peer in self._roll_call.absent_senders():
            self._fail(AllreduceException(f"{peer} did not come to this peer"), peer)

    # As a member: send gradients to a reducer, receive its averages

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        if peer_id == self.peer_id:
            await self._reduce_own()
            return
        index = self.ordered_peer_ids.index(peer_id)
        try:
            async with asyncio.timeout(self._start_patience + self._patience):
                stream = await self._get_peer_stub(peer_id).rpc_aggregate_part(self._generate_input_for_peer(index))
                answers = aiter(stream)
                first = await anext(answers)
            self._check(first)
            self._agree(self._roll_call.told(tuple(unpack(first.tensor_part.buffer))))
            self._untold.discard(peer_id)
            if not self._untold:
                self._told.set()
            received = 0
            # A reducer falls silent when one of its senders does; it must find that out before we blame it.
            async for message in self._timed(answers, self._parts[index], 2 * self._patience):
                self._take(self._first[index] + received, message)
                self._window.came(index, message.weight)
                received += 1
            if received != self._parts[index]:
                raise AllreduceException(f"it sent {received} parts of {self._parts[index]}")
            await stream.aclose()  # tells the reducer that everything has arrived
        except _GaveUp:
            self._fail(AllreduceException(f"{peer_id} gave the round up"))
            raise
        except Exception as error:
            self._fail(AllreduceException(f"{peer_id} did not deliver its part ({error!r:.100})"), peer_id)
            raise

    async def _generate_input_for_peer(self, peer_index: int) -> AsyncIterator[averaging_pb2.AveragingData]:
        yield averaging_pb2.AveragingData(
            code=averaging_pb2.PART_FOR_AVERAGING,
            group_id=self.group_id,
            tensor_part=runtime_pb2.Tensor(buffer=self._introduction),
        )
        if not self.weight:
            return  # nothing to add: a follower's zeros need not travel
        first = self._first[peer_index]
        try:
            for number in range(first, first + self._parts[peer_index]):
                await self._window.room(peer_index)
                begin = self._begins[number]
                way = self._way(begin, self._codec.gradients)
                part = self._sent.encode(way, self._gradients[number], begin)
                self._window.sent(peer_index, len(part.buffer))
                yield averaging_pb2.AveragingData(tensor_part=part)
        except Exception as error:
            self._fail(AllreduceException(f"encoding failed here ({error!r:.100})"), self.peer_id)
            raise

    def _way(self, begin: int, large: ChunkCompression) -> ChunkCompression:
        """How the chunk that begins there is written down, if chunks of large tensors are written so."""
        return self._codec.small if begin >= self._layout.large else large

    def _take(self, number: int, message: averaging_pb2.AveragingData) -> None:
        """The average of chunk `number`."""
        self._check(message)
        decode(message.tensor_part, len(self._places[number]), self._places[number])
        self.messages[number] = message.tensor_part

    def _check(self, message: averaging_pb2.AveragingData) -> None:
        if message.code == averaging_pb2.CANCELLED:
            named = unpack(message.tensor_part.buffer)
            self.named |= {peer.to_base58() for peer in self.ordered_peer_ids} & set(named)
            raise _GaveUp
        if message.code != averaging_pb2.AVERAGED_PART:
            raise AllreduceException(f"it answered {averaging_pb2.MessageCode.Name(message.code)}")

    async def _timed(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], expected: int, patience: float
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """As many messages as there must be, and no look beyond the last; raises TimeoutError after a silence."""
        for _ in range(expected):
            before = time.monotonic()
            try:
                async with asyncio.timeout(patience):
                    message = await anext(stream)
            except StopAsyncIteration:
                return
            self.longest_silence = max(self.longest_silence, time.monotonic() - before)
            yield message

    # As a reducer: add up what the members send, send them all the same average

    async def _reduce_own(self) -> None:
        try:
            await self.introductions()
            first = self._first[self._mine]
            for index, part in enumerate(self.parts_for_local_averaging):
                if self.weight:
                    exact = self._sent.exact(part, self._begins[first + index])
                    self._reducer.add(self.peer_id.to_base58(), index, exact, self.weight)
                    await asyncio.sleep(0)  # messages must not wait for all of it
            for index in range(len(self.parts_for_local_averaging)):
                self.messages[first + index] = await asyncio.shield(self._encoding(index))
        except Exception as error:
            if not self._failure.done():
                self._fail(AllreduceException(f"adding up failed here ({error!r:.100})"), self.peer_id)
            raise

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Serve one member: take its gradients for our share, answer with the averages as they are done."""
        sender = context.remote_id
        receiving: asyncio.Task[None] | None = None
        handler = asyncio.current_task()
        assert handler is not None
        _handlers.add(handler)
        try:
            if sender not in self.ordered_peer_ids or self._roll_call.contribution_of(sender):
                yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
                return
            try:
                first = await asyncio.wait_for(anext(stream), self._start_patience)
                self._agree(self._roll_call.meet(sender, first.tensor_part.buffer))
            except Exception as error:
                self._fail(AllreduceException(f"{sender} did not introduce itself ({error!r:.100})"), sender)
                raise
            arrivals: list[float] = []
            receiving = asyncio.create_task(self._receive(sender, stream, arrivals))
            receiving.add_done_callback(_look_at)
            yield told(await self.introductions())
            for index in range(len(self.parts_for_local_averaging)):
                average = await asyncio.shield(self._encoding(index))
                waited = time.monotonic() - arrivals[index] if index < len(arrivals) else 0.0
                yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=average, weight=waited)
            await receiving
            # p2pd resets a stream as soon as its server closes it, and what is still on the way is lost (about one
            # last part in a hundred on a slow line). So the member closes, which cancels this handler.
            await asyncio.sleep(self._patience)
        except Exception:  # whatever it is, the round is over here, and this member need not wait
            yield gave_up(self.peer_id, self.culprits, self.named)
        finally:
            _handlers.discard(handler)
            if receiving is not None and not receiving.done():
                receiving.cancel()
                if not self._failure.done():
                    # It broke off. If that was because of a third one, it says so on our stream to it before this.
                    broke_off = AllreduceException(f"{sender} broke off")
                    asyncio.get_running_loop().call_later(self._patience, self._fail, broke_off, sender)

    async def _receive(
        self, sender: PeerID, stream: AsyncIterator[averaging_pb2.AveragingData], arrivals: list[float]
    ) -> None:
        """A member's gradients for the values that this peer reduces, and when each part of them has come."""
        contribution = self._roll_call.contribution_of(sender)
        if contribution is None or not contribution.samples:
            return
        sizes = [len(part) for part in self.parts_for_local_averaging]
        try:
            async for message in self._timed(stream, len(sizes), self._patience):
                index = len(arrivals)
                arrivals.append(time.monotonic())
                part = decode(message.tensor_part, sizes[index], self._part[: sizes[index]])
                self._reducer.add(sender.to_base58(), index, part, float(contribution.samples))
            if len(arrivals) != len(sizes):
                raise AllreduceException(f"it sent {len(arrivals)} parts of {len(sizes)}")
        except Exception as error:
            self._fail(AllreduceException(f"{sender} stopped sending ({error!r:.100})"), sender)
            raise

    def _encoding(self, index: int) -> "asyncio.Future[runtime_pb2.Tensor]":
        """The average of a part as it travels; made once, and taken by this peer as everyone reads it.

        Several streams wait for it: none must cancel it for the others.
        """
        if index not in self._encodings:
            self._encodings[index] = asyncio.ensure_future(self._encode(index))
            self._encodings[index].add_done_callback(_look_at)
        return self._encodings[index]

    async def _encode(self, index: int) -> runtime_pb2.Tensor:
        average = await self._reducer.result(index)
        number = self._first[self._mine] + index
        begin, place = self._begins[number], self._places[number]
        return self._averaged.encode(self._way(begin, self._codec.averages), average, begin, place)


def _look_at(done: "asyncio.Future[Any]") -> None:
    """When a round fails, nobody may be left to ask how this ended: without this asyncio complains."""
    if not done.cancelled():
        done.exception()


# hivemind keeps no reference to the tasks that serve a member, and asyncio's are weak (see `kept_alive`).
_handlers: set[asyncio.Task[Any]] = set()


def told(introductions: Introductions) -> averaging_pb2.AveragingData:
    """Tells a member what everyone brings."""
    signed = runtime_pb2.Tensor(buffer=MSGPackSerializer.dumps(list(introductions.signed)))
    return averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=signed)


def gave_up(me: PeerID, culprits: Collection[str], named: Collection[str]) -> averaging_pb2.AveragingData:
    """Tells a member that the round is over here, and whose fault that is as far as known."""
    if me.to_base58() in culprits:
        return averaging_pb2.AveragingData(code=averaging_pb2.INTERNAL_ERROR)
    told = runtime_pb2.Tensor(buffer=MSGPackSerializer.dumps(sorted({*culprits, *named})))
    return averaging_pb2.AveragingData(code=averaging_pb2.CANCELLED, tensor_part=told)


class _GaveUp(AllreduceException):
    """The other side ended the round because of a third one."""


def _safe_fractions(shares: Sequence[int]) -> tuple[float, ...]:
    """The shares, the first a quarter of a value larger.

    hivemind computes the borders between peers by a floating point division and rounds down; without the quarter a
    border may come out one value too low.
    """
    first = next(index for index, share in enumerate(shares) if share)
    return tuple(share + 0.25 * (index == first) for index, share in enumerate(shares))
