"""Experts go from peer to peer: as they were after a step, or from now on with every step that their keeper takes.

Who wants some opens a stream to the service "copies" of a peer that keeps them, and says which, in a Wanted. For each
comes a Copy with its tensors behind it, or a Gone; who says digests gets only the tensors of those that are others.
Who wants to follow hears of each later step in a Step, with the mean gradient that the keeper took it with, in the form
in which gradients travel. With a Given the keeper hands its part over; with a Gone it does not keep the expert any
more. In between both sides know that the other is still here.
Trainers may ask a follower, too: the gradients that it was told it sends to the keeper in a Told. Both name the samples
that their sums are of; a Told counts of the stand-in alone, and of whoever has just given the expert.
"""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, TypeAdapter, ValidationError, model_validator
from torch import Tensor

from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.experts.expert import AHEAD, Pinned, Sum
from dedloc_kit.experts.keeping import Given, Gone, Keeping, News, State, Stepped, Tell
from dedloc_kit.experts.refused import Refused
from dedloc_kit.learning.train.flat import Room, zeros_like
from dedloc_kit.learning.train.gradients.accumulator import MAX_STALENESS
from dedloc_kit.records.record import Count, Digest, Record
from dedloc_kit.swarm.experts.protocol import MAX_CELLS
from dedloc_kit.swarm.network.bounds import AtATime, TooMuch
from dedloc_kit.swarm.network.service import Service, Stream, decode, encode
from dedloc_kit.swarm.remote.tensors import (
    Exponent,
    Form,
    fill,
    receive_content,
    receive_tensor,
    scaled,
    send_content,
    send_packed,
    unpacked,
    unscaled,
)
from dedloc_kit.swarm.transfer.protocol import ALIVE_SECONDS, alive_until

MAX_WANTED_BYTES = 80_000
STREAMS_EACH, STREAMS = 8, 64
BEHIND = 4
"""Steps of each of its experts that a follower may be behind; then it has to begin anew."""
REACHED_SECONDS, LOOK_SECONDS = 10.0, 0.02
"""For which a peer waits for the step that an expert is wanted of, and how often it looks."""

_Experts = Annotated[tuple[Count, ...], Field(max_length=MAX_CELLS, strict=False)]
Rate = Annotated[float, Field(ge=0, le=1e3)]


class Wanted(Record):
    experts: _Experts
    """By their places among all of the run, in the order of their names."""
    steps: _Experts
    """Of each the step that it is wanted of; of who follows, what it holds and need not be sent, and one more."""
    follow: bool
    digests: Annotated[tuple[Digest, ...], Field(max_length=MAX_CELLS, strict=False)] = ()
    """Of who has them all as they were after these steps: what is the same is not sent."""

    @model_validator(mode="after")
    def _a_step_for_each(self) -> "Wanted":
        if len(set(self.experts)) < len(self.experts) or len(self.experts) != len(self.steps):
            raise ValueError("each expert is to be named once, with its step")
        if self.digests and (self.follow or len(self.digests) != len(self.experts)):
            raise ValueError("of each expert that is not followed there is to be a digest, or of none")
        return self


class CopyHead(Record):
    kind: Literal["copy"] = "copy"
    expert: Count
    step: Count
    here: bool = True
    """Do its tensors follow? If not, who asks has them."""


class StepHead(Record):
    kind: Literal["step"] = "step"
    expert: Count
    step: Count
    rate: Rate
    exponent: Exponent


MAX_SUMS = MAX_STALENESS + 1 + AHEAD
_Sums = Annotated[tuple[Count, ...], Field(max_length=MAX_SUMS, strict=False)]
"""The global steps that an expert was told gradients for; the sums follow, one for each."""
_Samples = Annotated[tuple[Annotated[int, Field(ge=1, le=2**53)], ...], Field(max_length=MAX_SUMS, strict=False)]


class _SumsHead(Record):
    expert: Count
    sums: _Sums
    samples: _Samples
    """That each of them is of."""

    @model_validator(mode="after")
    def _samples_of_each(self) -> Self:
        if len(set(self.sums)) < len(self.sums) or len(self.sums) != len(self.samples):
            raise ValueError("each step is to be named once, with its samples")
        return self


class GivenHead(_SumsHead):
    kind: Literal["given"] = "given"


class ToldHead(_SumsHead):
    kind: Literal["told"] = "told"


class GoneHead(Record):
    kind: Literal["gone"] = "gone"
    expert: Count


Head = CopyHead | StepHead | GivenHead | GoneHead
_HEADS: TypeAdapter[Any] = TypeAdapter(Annotated[Head, Field(discriminator="kind")])
_MAX_HEAD_BYTES = 500


class Coder:
    """Means and experts as bytes.

    :param like: tensors of the shapes and types of any expert's
    :param form: in which means travel
    :param room: where experts lie that come
    """

    def __init__(self, like: Mapping[str, Tensor], width: int, form: Form, room: Room = torch.zeros) -> None:
        self._like, self._width, self._form, self._room = dict(like), width, form, room
        self.size = sum(each.numel() for name, each in like.items() if name.startswith("model."))
        """Of a mean."""

    def code(self, mean: Tensor) -> tuple[Any, Tensor]:
        """As `keeping.Code`."""
        message, exponent = scaled(mean.view(-1, self._width), self._form)
        return (message, exponent), unscaled(unpacked(message).float(), exponent).view(-1)

    async def receive_mean(self, stream: Stream, exponent: int) -> Tensor:
        """Raises as `receive_tensor`."""
        mean = await receive_tensor(stream, (self.size // self._width, self._width))
        return unscaled(mean.float(), exponent).view(-1)

    async def receive_sums(self, stream: Stream, head: GivenHead | ToldHead) -> dict[int, Sum]:
        """Of each step; raises as `Stream.receive`, and ValueError for numbers that are not finite."""
        sums = {}
        for step, samples in zip(head.sums, head.samples, strict=True):
            total = torch.frombuffer(await receive_content(stream, 4 * self.size), dtype=torch.float32)
            if not total.isfinite().all():
                raise ValueError("a sum of gradients with NaN or infinity")
            sums[step] = Sum(total, samples)
        return sums

    async def receive_state(self, stream: Stream) -> dict[str, Tensor]:
        """Raises as `Stream.receive`; nobody has looked at the numbers."""
        found = dict(zip(self._like, zeros_like(self._like.values(), self._room), strict=True))
        for tensor in found.values():
            await fill(stream, _bytes_of(tensor))
        return found


def _bytes_of(tensor: Tensor) -> memoryview:
    content: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(content)


def digest_of(tensors: Mapping[str, Tensor]) -> Digest:
    """Of the bits of an expert."""
    digest = hashlib.sha256()
    for tensor in tensors.values():
        digest.update(_bytes_of(tensor))
    return digest.hexdigest()


async def send_state(stream: Stream, tensors: Mapping[str, Tensor]) -> None:
    """Raises OSError."""
    for tensor in tensors.values():
        await send_content(stream, _bytes_of(tensor))


async def send_sums(
    stream: Stream, kind: type[GivenHead] | type[ToldHead], expert: int, sums: Mapping[int, Sum]
) -> None:
    """Raises OSError."""
    samples = tuple(each.samples for each in sums.values())
    await stream.send(encode(kind(expert=expert, sums=tuple(sums), samples=samples)))
    await send_state(stream, {str(step): each.total for step, each in sums.items()})


async def receive_head(stream: Stream) -> Head:
    """Raises as `Stream.receive_record`."""
    try:
        head: Head = _HEADS.validate_python(decode(await stream.receive(_MAX_HEAD_BYTES)))
    except ValidationError as error:
        raise ValueError(f"it is none of what is sent here: {error!s:.200}") from None
    return head


class CopyService(Service):
    """Gives the experts that a peer keeps to others who are to hold them.

    :param may: is this peer one of those?
    :ivar followers: who has got which expert and hears of its steps, by peer id
    :ivar may_tell: may trainers ask that peer, too? Only then it counts what it was told for the expert
    """

    name = "copies"

    def __init__(self, keeping: Keeping, coder: Coder, may: Callable[[str], bool]) -> None:
        self._keeping, self._names, self._coder, self._may = keeping, keeping.names, coder, may
        self._numbers = {name: number for number, name in enumerate(keeping.names)}
        self._streams = AtATime(STREAMS_EACH, STREAMS)
        self.followers: dict[tuple[str, ExpertName], Tell] = {}
        self.may_tell: Callable[[str, ExpertName], bool] = lambda peer, name: False

    async def serve(self, peer: str, stream: Stream) -> None:
        wanted = Wanted.parse(decode(await stream.receive(MAX_WANTED_BYTES)))
        if not self._may(peer):
            raise ValueError("it is not to hold any expert")
        if any(number >= len(self._names) for number in wanted.experts):
            raise ValueError("the run has no such expert")
        with _bounded(self._streams, peer):
            asked = {self._names[number]: step for number, step in zip(wanted.experts, wanted.steps, strict=True)}
            if wanted.follow:
                await self._follow(peer, asked, stream)
            else:
                await self._give(asked, dict(zip(asked, wanted.digests, strict=False)), stream)

    async def _give(self, asked: Mapping[ExpertName, int], had: Mapping[ExpertName, Digest], stream: Stream) -> None:
        pinned = await alive_until(stream, self._pinned(asked))
        for name in asked:
            state, here = None, True
            if (pin := pinned.pop(name, None)) is not None:
                state = await alive_until(stream, asyncio.to_thread(pin.state))
                here = name not in had or await asyncio.to_thread(digest_of, state[0]) != had[name]
            await self._send(name, state, stream, here)
        await stream.closed()

    async def _pinned(self, asked: Mapping[ExpertName, int]) -> dict[ExpertName, Pinned]:
        """All at once, before the first is on its way: these steps may be over soon."""
        bank, found = self._keeping.bank, dict[ExpertName, Pinned]()
        async with asyncio.timeout(REACHED_SECONDS):
            while any(step < wanted for name, wanted in asked.items() for step in bank.steps([name])):
                await asyncio.sleep(LOOK_SECONDS)
        for name, step in asked.items():
            try:
                found[name] = await asyncio.to_thread(bank.pin, name, step)
            except Refused:
                continue
        return found

    async def _follow(self, peer: str, asked: Mapping[ExpertName, int], stream: Stream) -> None:
        loop, news = asyncio.get_running_loop(), asyncio.Queue[News]()

        def tell(what: News) -> None:
            loop.call_soon_threadsafe(news.put_nowait, what)

        hearing = asyncio.ensure_future(self._hear(peer, stream, {self._numbers[name] for name in asked}))
        try:
            for name, held in asked.items():
                state = await alive_until(stream, asyncio.to_thread(self._keeping.followed_by, name, tell))
                await self._send(name, state, stream, here=state is None or state[1] != held - 1)
                if state is not None:
                    self.followers[peer, name] = tell
                while not news.empty():
                    await self._tell(news.get_nowait(), stream)
            while not hearing.done():
                if news.qsize() > BEHIND * len(asked):
                    raise ValueError("it is too far behind")
                coming = asyncio.ensure_future(news.get())
                await asyncio.wait({coming, hearing}, timeout=ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    await self._tell(coming.result(), stream)
                else:
                    coming.cancel()
                    await stream.send(b"")
            hearing.result()
        finally:
            hearing.cancel()
            self._keeping.left_by(tell)
            self.followers = {key: other for key, other in self.followers.items() if other is not tell}

    async def _hear(self, peer: str, stream: Stream, asked: Collection[int]) -> None:
        """What a follower was told of these, until it closes the stream; raises ValueError for all else."""
        with suppress(OSError, EOFError):
            while True:
                told = ToldHead.parse(decode(await stream.receive(_MAX_HEAD_BYTES)))
                if told.expert not in asked:
                    raise ValueError("of an expert that it does not follow")
                sums = await self._coder.receive_sums(stream, told)
                name = self._names[told.expert]
                if self.may_tell(peer, name):  # else the newest plan is not known here, or there
                    await asyncio.to_thread(self._keeping.add, name, sums, peer)

    async def _send(self, name: ExpertName, state: State | None, stream: Stream, here: bool = True) -> None:
        number = self._numbers[name]
        if state is None:
            await stream.send(encode(GoneHead(expert=number)))
            return
        tensors, step = state
        await stream.send(encode(CopyHead(expert=number, step=step, here=here)))
        if here:
            await send_state(stream, tensors)

    async def _tell(self, news: News, stream: Stream) -> None:
        number = self._numbers[news.name]
        match news:
            case Stepped(step=step, rate=rate, message=(packed, exponent)):
                await stream.send(encode(StepHead(expert=number, step=step, rate=rate, exponent=exponent)))
                await send_packed(stream, packed)
            case Given(sums=sums):
                await send_sums(stream, GivenHead, number, sums)
            case Gone():
                await stream.send(encode(GoneHead(expert=number)))


@contextmanager
def _bounded(streams: AtATime, peer: str) -> Iterator[None]:
    try:
        with streams.place(peer):
            yield
    except TooMuch as error:
        raise ValueError(str(error)) from None
