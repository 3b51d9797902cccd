"""One all-reduce: all who live end with the same bits, or with an error that says who is to blame.

Each reachable member reduces its own share of the flat gradient vector for all (butterfly all-reduce, DeDLOC section
3.2). It keeps what members send until the leader's roll says who counts; averages exactly those, and sends everyone the
same encoded average. Who dies is left out, and its share is dealt out anew. docs/how_it_works.md says why that is safe.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dedloc_kit.swarm.averaging import messages
from dedloc_kit.swarm.averaging.ballots import Ballots
from dedloc_kit.swarm.averaging.compression import ChunkCompression, Codec
from dedloc_kit.swarm.averaging.feedback import Feedback
from dedloc_kit.swarm.averaging.handshake import Handshake, Introductions
from dedloc_kit.swarm.averaging.link import Link
from dedloc_kit.swarm.averaging.messages import Ended, Says, gave_up, say
from dedloc_kit.swarm.averaging.parts import Averages, Parts, counts
from dedloc_kit.swarm.averaging.plan import Plan
from dedloc_kit.swarm.averaging.reducer import Reducer
from dedloc_kit.swarm.averaging.roll import Fault, Held, Votes
from dedloc_kit.swarm.averaging.window import SendWindow
from dedloc_kit.swarm.network.service import CLOSE_SECONDS, Stream
from dedloc_kit.training.flat import CHUNK

MAX_PART_BYTES = 4 * CHUNK + 1024
JUDGED = 8
"""So often in its patience a peer looks who has fallen silent."""

OpenStream = Callable[[str], AbstractAsyncContextManager[Stream]]
"""To a reducer, its first message sent: this peer's introduction."""
MakeReducer = Callable[[Sequence[tuple[int, int]]], Reducer]
"""For chunks (begin, end) of the vector."""


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
    """Butterfly all-reduce of one flat vector.

    All arithmetic is done between two messages, in the thread that exchanges them: a part takes a millisecond, and
    handing it to other threads would cost as much again.

    :param vectors: this peer's, float32 [size] on the CPU, which is only read; and one of the same size that takes the
        average. After a round that failed, late members may still write to it
    :param handshake: with this peer's introduction; also says what makes the group too small
    :param open_stream: to another member that reduces
    """

    def __init__(
        self,
        plan: Plan,
        vectors: tuple[Tensor, Tensor],
        coding: Coding,
        make_reducer: MakeReducer,
        handshake: Handshake,
        votes: Votes,
        patience: Patience,
        open_stream: OpenStream,
    ) -> None:
        flat, average = vectors
        self._plan, self._members, self._me = plan, plan.members, handshake.me
        self._mine = plan.members.index(handshake.me)
        self._values = [flat[begin:end] for begin, end in plan.chunks]
        self._coding, self._make_reducer, self._handshake = coding, make_reducer, handshake
        self._patience, self._open_stream = patience, open_stream
        self._up: dict[int, Link] = {}
        """To reducers."""
        self._down: dict[int, Link] = {}
        """From members."""
        self._window = SendWindow(counts(plan.first_owners, len(plan.members)))
        self._sent: set[tuple[int, int]] = set()
        self._dealt = asyncio.Event()
        self._parts = Parts(plan)
        self.averages = Averages(plan, average)
        self._averaged: list[asyncio.Future[bytes]] = []
        self._reducing: asyncio.Task[None] | None = None
        self._sending: tuple[Sequence[int], Held] | None = None
        self._lost: set[int] = set()
        """Members that will not send any more."""
        self._dead: set[int] = set()
        """Reducers from which nothing more comes."""
        self._since = self._began = time.monotonic()
        self._progress = 0.0
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.introductions: Introductions | None = None
        """Of those on the roll, once they are known."""
        self.culprits: set[str] = set()
        """Who fell silent, broke off or sent nonsense, as far as this peer saw."""
        self.named: set[str] = set()
        """Who did so as others say."""
        self.doubted: set[str] = set()
        """Who may have, or believed whoever has."""
        self.longest_silence = 0.0
        """Seconds between two parts of a stream."""
        self._ballots = Ballots(self, votes)
        self.deal(plan.reducers)

    @property
    def upload_rate(self) -> float | None:
        """Bytes per second at which this peer's gradients came to the reducers, if it sent any."""
        return self._window.rate or None

    @property
    def messages(self) -> list[bytes]:
        """The encoded average, as everyone got it."""
        return self.averages.messages

    # The round as a whole

    async def complete(self) -> None:
        """Fill the average; raises GroupRefused, or Fault if it cannot be had here."""
        self._since = self._began = time.monotonic()
        tasks = [asyncio.create_task(self._exchange(r)) for r in self._plan.reducers if r != self._mine]
        tasks.append(asyncio.create_task(self._watch()))
        try:
            self._ballots.begin()
            await asyncio.shield(self._end)
        finally:
            if not self._end.done():
                self.finish(Fault("it was broken off"))
            if isinstance(self._end.exception(), Fault):
                for link in self._down.values():
                    link.post(gave_up(self._me, self.culprits, self.named))
                if self._reducing is not None:
                    self._reducing.cancel()
            for task in tasks:
                task.cancel()  # closes every stream of this peer; those of the others it goes on serving
            await asyncio.wait(tasks)

    def finish(self, failure: Exception | None = None) -> None:
        """The round is over here."""
        if self._end.done():
            return
        if failure is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(failure)
            self._end.exception()  # maybe nobody waits any more: without this asyncio complains

    @property
    def over(self) -> bool:
        return self._end.done()

    async def _watch(self) -> None:
        """Say that this peer is here, and find out who is not."""
        period, before = self._patience.usual / JUDGED, time.monotonic()
        while True:
            await asyncio.sleep(period)
            now = time.monotonic()
            late, before = now - before - period, now
            if late > period:  # this process stood still: what came meanwhile is yet to be read
                self._since += late
                self._progress += late
                for link in (*self._up.values(), *self._down.values()):
                    link.heard = None if link.heard is None else link.heard + late
                continue
            for link in self._ballots.to_reassure():
                link.here()
            self._judge(now)

    def _judge(self, now: float) -> None:
        usual, starting = self._patience.usual, now - self._began < self._patience.start
        for member in range(len(self._members)):
            link = self._down.get(member)
            if self._mine not in self._plan.reducers or member in self._lost or self.whole(member):
                continue
            if link is None and not starting:
                self.lose(member, "did not begin", blame=True)
            elif link is not None and min(link.silent(), now - self._since) > usual:
                self.lose(member, "stopped sending", blame=True)
        self._ballots.judge(now, starting)

    def lose(self, member: int, why: str, *, blame: bool) -> None:
        """Nothing more comes from this member."""
        if member in self._lost or self.over:
            return
        self._lost.add(member)
        if blame:
            self.culprits.add(self._members[member])
        self._ballots.lost(member, f"{self._members[member]} {why}")

    def bury(self, reducer: int, why: str, *, blame: bool) -> None:
        """Nothing more comes from this reducer."""
        if reducer in self._dead or self.over:
            return
        self._dead.add(reducer)
        self._window.gone(reducer)
        if blame:
            self.culprits.add(self._members[reducer])
        self._ballots.buried(reducer, f"{self._members[reducer]} {why}")

    # As a member: send gradients to a reducer, receive what it says

    async def _exchange(self, reducer: int) -> None:
        limit = MAX_PART_BYTES + 1024 * len(self._members)
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self._patience.start + self._patience.usual):
                    stream = await stack.enter_async_context(self._open_stream(self._members[reducer]))
                link = self._up[reducer] = Link(stream)
                self._ballots.reached(reducer)
                sending = asyncio.create_task(self._send(reducer, link))
                stack.callback(sending.cancel)
                while True:
                    says, content = messages.read(await link.receive(limit))
                    if says == Says.CAME:
                        self._window.came(reducer)
                    elif says == Says.AVERAGE:
                        self._measure(link, says)
                        self.take_average(reducer, content)
                    else:
                        self._ballots.hear_reducer(reducer, link, says, content)
        except Ended as ended:
            self.named |= set(self._members) & ended.named
            if not ended.by_itself:
                self.lose(reducer, "gave the round up", blame=False)
            self.bury(reducer, "failed" if ended.by_itself else "gave the round up", blame=ended.by_itself)
        except Exception as error:
            self.bury(reducer, f"broke off ({error!r:.100})", blame=True)
        finally:
            self._up.pop(reducer, None)

    async def _send(self, reducer: int, link: Link) -> None:
        """The parts of this reducer's share, and of what it inherits."""
        if not self._handshake.mine.samples:
            return  # nothing to add: a follower's zeros need not travel
        try:
            while True:
                dealt = self._dealt
                for number, owner in enumerate(self._owners):
                    if owner != reducer or (number, reducer) in self._sent:
                        continue
                    self._sent.add((number, reducer))
                    await self._window.room(reducer)
                    begin = self._plan.chunks[number][0]
                    way = self._way(begin, self._coding.codec.gradients)
                    part = self._coding.sent.encode(way, self._values[number], begin).SerializeToString()
                    self._window.sent(reducer, len(part))
                    await link.send(messages.part(number, part))
                await dealt.wait()
        except OSError:
            pass  # the other side is gone or has given up: what it said last tells which
        except Exception as error:
            self.culprits.add(self._me)
            self.finish(Fault(f"encoding failed here ({error!r:.100})"))

    def _way(self, begin: int, large: ChunkCompression) -> ChunkCompression:
        """How the chunk that begins there is written down, if chunks of large tensors are written so."""
        return self._coding.codec.small if begin >= self._plan.layout.large else large

    def take_average(self, sender: int, content: bytes) -> None:
        """An average from its reducer, or from whoever holds it; raises ValueError."""
        number, name, encoded = messages.read_average(content)
        if number >= len(self._values):
            raise ValueError("an average of a chunk that there is not")
        roll = self._ballots.roll
        if roll is None or name != roll.name:
            self.averages.hold_back(sender, number, name, encoded)
        elif self._ballots.may_have(sender, number):
            self.averages.take(number, encoded)
            self._progress = time.monotonic()
            self._ballots.average_came(number)

    def _measure(self, link: Link, says: Says) -> None:
        now = time.monotonic()
        kind, then = link.before
        if kind == says:
            self.longest_silence = max(self.longest_silence, now - then)
        link.before = says, now

    # As a reducer: keep what the members send, average those on the roll

    async def serve(self, sender: str, introduction: bytes, stream: Stream) -> None:
        """Serve one member: take its gradients for our share, answer with the averages."""
        member = self._members.index(sender) if sender in self._members else self._mine
        if member in self._handshake.met or self.over:
            return
        link = Link(stream)
        try:
            self._handshake.meet(member, introduction)
        except ValueError as error:
            self.lose(member, f"did not introduce itself ({error!r:.100})", blame=True)
            await link.send(gave_up(self._me, self.culprits, self.named))
            await stream.closed()
            return
        self._down[member] = link
        link.heard = time.monotonic()
        listening = asyncio.create_task(self._listen(member, link))
        try:
            self._ballots.came(member, link)
            waiting: set[asyncio.Future[Any]] = {listening, self._end}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if link.busy is not None:
                await asyncio.wait({link.busy, listening}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({listening}, timeout=CLOSE_SECONDS)
        finally:
            listening.cancel()
            if link.busy is not None:
                link.busy.cancel()
            self._down.pop(member, None)

    async def _listen(self, member: int, link: Link) -> None:
        try:
            while True:
                says, content = messages.read(await link.receive(MAX_PART_BYTES + 64 * len(self._members)))
                if says == Says.PART:
                    self._measure(link, says)
                    number, encoded = messages.read_numbered(content)
                    await self._await_deal(number)
                    self._parts.take(member, number, encoded)
                    link.post(say(Says.CAME))
                    self._ballots.part_came()
                elif says == Says.AVERAGE:
                    self.take_average(member, content)
                else:
                    self._ballots.hear_member(member, link, says, content)
        except (OSError, EOFError):
            self.lose(member, "broke off", blame=not self.whole(member))
        except Exception as error:
            self._parts.forget(member)
            self._handshake.met.pop(member, None)
            self.lose(member, f"sent nonsense ({error!r:.100})", blame=True)
            if not self.over:
                link.post(gave_up(self._me, self.culprits, self.named))
                await link.flushed()

    async def _await_deal(self, number: int) -> None:
        """A member may have heard before this peer does that it inherits a share."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience.usual):
                while number not in self._parts.mine and not self.over:
                    await self._dealt.wait()

    @property
    def delivered(self) -> bool:
        """Have all of this peer's parts come to those who reduce them, as they say?"""
        dealt = {(number, owner) for number, owner in enumerate(self._owners) if owner != self._mine}
        return dealt <= self._sent and self._window.empty

    def whole(self, member: int) -> bool:
        """Has this member introduced itself, and sent all that this peer reduces?"""
        if member == self._mine:
            return True
        brought = self._handshake.met.get(member)
        return brought is not None and (not brought.samples or self._parts.all_of(member))

    def deal(self, living: Sequence[int]) -> None:
        """These reduce from now on."""
        self._owners = self._plan.owners(living)
        self._parts.mine = tuple(n for n, owner in enumerate(self._owners) if owner == self._mine)
        shares = counts(self._owners, len(self._members))
        self._window.deal([0 if p == self._mine or p in self._dead else n for p, n in enumerate(shares)])
        self._since = time.monotonic()
        self._dealt.set()
        self._dealt = asyncio.Event()

    def reduce(self, roll: Held) -> None:
        """Average those on the roll, and send it to all members, in place of what was averaged before."""
        assert self.introductions is not None
        self.stop_reducing()
        owners = self._plan.owners(roll.roll.reducers)
        mine = [number for number, owner in enumerate(owners) if owner == self._mine]
        if mine and self._mine in roll.roll.reducers:
            self._coding.averaged.begin(float(self.introductions.samples))
            loop = asyncio.get_running_loop()
            self._averaged = [loop.create_future() for _ in mine]
            self._reducing = asyncio.create_task(self._reduce(mine, roll, self._averaged))
            for link in self._down.values():
                self.send_averages(link, mine, roll)
            self._sending = mine, roll

    def stop_reducing(self) -> None:
        self._sending = None
        if self._reducing is not None:
            self._reducing.cancel()
        for link in self._down.values():
            if link.busy is not None:
                link.busy.cancel()

    def resend(self, link: Link) -> None:
        """To a member that has come late."""
        if self._sending is not None:
            self.send_averages(link, *self._sending)

    def send_averages(self, link: Link, mine: Sequence[int], roll: Held) -> None:
        averaged, name = list(self._averaged), roll.roll.name

        async def send() -> None:
            with contextlib.suppress(OSError):
                for number, average in zip(mine, averaged, strict=True):
                    await link.send(messages.average(number, name, await asyncio.shield(average)))

        link.busy = asyncio.create_task(send())

    async def _reduce(self, mine: Sequence[int], roll: Held, averaged: "Sequence[asyncio.Future[bytes]]") -> None:
        assert self.introductions is not None
        contributions = self.introductions.contributions
        weights = {p: float(c.samples) for p, c in contributions.items() if c.samples}
        reducer = self._make_reducer([self._plan.chunks[number] for number in mine])
        reducer.expect(weights)
        try:
            for index, number in enumerate(mine):
                begin = self._plan.chunks[number][0]
                for peer, weight in weights.items():
                    if peer == self._me:
                        values = self._coding.sent.exact(self._values[number], begin)
                    else:
                        values = self._parts.of(self._members.index(peer), number)
                    reducer.add(peer, index, values, weight)
                way, place = self._way(begin, self._coding.codec.averages), self.averages.place(number)
                average = self._coding.averaged.encode(way, await reducer.result(index), begin, place)
                averaged[index].set_result(bytes(average.SerializeToString()))
                self.take_average(self._mine, messages.average(number, roll.roll.name, averaged[index].result())[1:])
                await asyncio.sleep(0)  # messages must not wait for all of it
        except Exception as error:
            self.culprits.add(self._me)
            self.finish(Fault(f"adding up failed here ({error!r:.100})"))
