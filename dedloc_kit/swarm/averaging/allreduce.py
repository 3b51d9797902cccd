"""One all-reduce: all who live end with the same bits, or with an error that says who is to blame.

Each reachable member reduces its own share of the flat gradient vector for all (butterfly all-reduce, DeDLOC section
3.2). It keeps what members send until the leader's roll says who counts; averages exactly those, and sends everyone the
same encoded average. Who dies is left out, and its share is dealt out anew. docs/internals.md says why that is safe.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dedloc_kit.learning.train.flat import CHUNK
from dedloc_kit.records.steps import Absence, Carried
from dedloc_kit.swarm.averaging.agreement.handshake import Handshake, Introductions
from dedloc_kit.swarm.averaging.agreement.heads import LACKED, UNFINISHED
from dedloc_kit.swarm.averaging.agreement.roll import Fault, Roll, Votes
from dedloc_kit.swarm.averaging.agreement.voter import Voter
from dedloc_kit.swarm.averaging.encoding.codec import decode, read_part
from dedloc_kit.swarm.averaging.encoding.feedback import Coding
from dedloc_kit.swarm.averaging.reduction.carried import carried
from dedloc_kit.swarm.averaging.reduction.keeping import DiskFailed, Holding
from dedloc_kit.swarm.averaging.reduction.parts import Averages, Parts, counts
from dedloc_kit.swarm.averaging.reduction.plan import Plan
from dedloc_kit.swarm.averaging.reduction.reducer import MakeReducer
from dedloc_kit.swarm.averaging.reduction.reducing import Reducing
from dedloc_kit.swarm.averaging.streams import messages
from dedloc_kit.swarm.averaging.streams.link import Link, Links
from dedloc_kit.swarm.averaging.streams.messages import Ended, Says, gave_up, say
from dedloc_kit.swarm.averaging.streams.window import SendWindow
from dedloc_kit.swarm.network.service import CLOSE_SECONDS, Stream

MAX_PART_BYTES = 4 * CHUNK + 1024
JUDGED = 8
"""So often in its patience a peer looks who has fallen silent."""

OpenStream = Callable[[str], AbstractAsyncContextManager[Stream]]
"""To a reducer, its first message sent: this peer's introduction."""


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

    :param handshake: with this peer's introduction; also says what makes the group too small
    :param open_stream: to another member that reduces
    """

    def __init__(
        self,
        plan: Plan,
        holding: Holding,
        coding: Coding,
        make_reducer: MakeReducer,
        handshake: Handshake,
        votes: Votes,
        patience: Patience,
        open_stream: OpenStream,
    ) -> None:
        self.plan, self.handshake, self.patience = plan, handshake, patience
        self.mine = plan.members.index(handshake.me)
        """This peer's place among the members."""
        self.row = plan.rows[self.mine]
        self.links, self.parts = Links(), Parts(plan, coding, holding.keep)
        self.averages = Averages(plan, coding, holding.average)
        self._values = [holding.own[begin:end] for begin, end in plan.chunks]
        self._coding, self._open_stream = coding, open_stream
        self._window = SendWindow(counts(plan.first.owners[self.row], len(plan.members)))
        self._sent: set[tuple[int, int]] = set()
        self._dealt = asyncio.Event()
        self._exchanges: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[int, list[bytes]] = {}
        self._since = self._began = time.monotonic()
        self._running = False
        self._why = ""
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.introductions: Introductions | None = None
        """Of those on the roll, once they are known."""
        self.culprits: set[str] = set()
        """Who fell silent, broke off or sent nonsense, as far as this peer saw."""
        self.named: set[str] = set()
        """Who did so as others say."""
        self.doubted: set[str] = set()
        """Who may have, or believed whoever has."""
        self._absent: dict[int, Absence] = {}
        """Of those from whom nothing more comes, as this peer saw it."""
        self.longest_silence = 0.0
        """Seconds between two parts of a stream."""
        self._reducing = Reducing(self, coding, make_reducer)
        self.deal(plan.reducers)
        self._voter = Voter(self, votes)

    @property
    def upload_rate(self) -> float | None:
        """Bytes per second at which this peer's gradients came to the reducers; of one that has none, at which its
        averages came to the members."""
        return (self._window.rate if self.handshake.mine.samples else self._reducing.rate) or None

    @property
    def messages(self) -> list[bytes]:
        """The encoded average, as everyone got it."""
        return self.averages.messages

    @property
    def absent(self) -> dict[str, Absence]:
        """Who of the group is not on the roll that the round ended with, and why, as far as this peer saw it itself; of
        most members of other rows it has seen nothing, so that they were just not counted."""
        assert self.introductions is not None
        return {
            peer: self._absent.get(member, "was not counted")
            for member, peer in enumerate(self.plan.members)
            if peer not in self.introductions.contributions
        }

    @property
    def owners(self) -> tuple[str, ...]:
        """Who averaged each chunk for those on the roll; nobody in rows, whose means are averaged again."""
        roll = self._voter.roll
        if roll is None or not self.plan.one_row:
            return ()
        return tuple(self.plan.members[owner] for owner in self.plan.deal(roll.reducers).owners[0])

    @property
    def carried(self) -> dict[str, Carried]:
        """What the lines of those have carried who reduced and gave no samples."""
        roll, brought = self._voter.roll, self.introductions
        assert roll is not None
        assert brought is not None
        lenders = [member for member in roll.counted if not brought.contributions[self.plan.members[member]].samples]
        parts = [
            self._coding.of_gradients(begin, self.plan.layout).byte_count(end - begin)
            for begin, end in self.plan.chunks
        ]
        sizes = [part + len(average) for part, average in zip(parts, self.messages, strict=True)]
        found = carried(self.plan, roll.reducers, lenders, brought.weights, sizes)
        peers = {self.plan.members[member]: size for member, size in found.items()}
        return {peer: Carried(bytes=size, name=brought.contributions[peer].name) for peer, size in peers.items()}

    @property
    def differing(self) -> list[tuple[bytes, ...]]:
        """Introductions that are not those on the roll (`Handshake.differing`), as far as there was one."""
        roll = self._voter.roll
        return [] if roll is None else self.handshake.differing(roll)

    @property
    def liars(self) -> set[int]:
        """Members that have sent this peer nonsense."""
        return {member for member, absence in self._absent.items() if absence == "sent nonsense"}

    # The round as a whole

    async def complete(self) -> None:
        """Fill the average; raises GroupRefused, or Fault if it cannot be had here."""
        self._since = self._began = time.monotonic()
        watching = asyncio.create_task(self._watch())
        self._running = True
        for reducer in (*self.plan.row_reducers[self.row], self._voter.leader):
            self.connect(reducer)
        self._connect_finishers()
        try:
            self._voter.begin()
            await asyncio.shield(self._end)
        finally:
            self.finish(Fault("it was broken off"))
            if isinstance(self._end.exception(), Fault):
                for link in self.links.down.values():
                    link.post(gave_up(self.plan.members[self.mine], self.culprits, self.named))
            if self._end.exception() is not None:
                self._reducing.stop()
            self._running = False
            tasks = [watching, *self._exchanges.values()]
            for task in tasks:
                task.cancel()  # closes every stream of this peer; those of the others it goes on serving
            await asyncio.wait(tasks)

    def connect(self, reducer: int) -> None:
        """Have a stream to this reducer, if there can be one."""
        if self._running and reducer not in self._exchanges and reducer not in self.links.dead | {self.mine}:
            self._exchanges[reducer] = asyncio.create_task(self._exchange(reducer))

    def _connect_finishers(self) -> None:
        for number in self.parts.mine:
            self.connect(self._finishers[number])

    def post(self, reducer: int, *messages: bytes) -> None:
        """To a reducer of another row, as soon as there is a stream to it."""
        if reducer in self.links.up:
            self.links.up[reducer].post(*messages)
        elif reducer not in self.links.dead:
            self.connect(reducer)
            self._waiting.setdefault(reducer, []).extend(messages)

    def finish(self, failure: Exception | None = None) -> None:
        """The round is over here."""
        if self._end.done():
            return
        if failure is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(failure)
            self._end.exception()  # maybe nobody waits any more: without this asyncio complains

    def fail(self, why: str) -> None:
        """The round cannot be completed here."""
        self.finish(Fault(f"{why}: {self._why}" if self._why else why))

    def fail_here(self, why: str) -> None:
        """The same, and it is this peer's own fault."""
        self.culprits.add(self.plan.members[self.mine])
        self.finish(Fault(why))

    @property
    def over(self) -> bool:
        return self._end.done()

    async def _watch(self) -> None:
        """Say that this peer is here, and find out who is not."""
        period, before = self.patience.usual / JUDGED, time.monotonic()
        while True:
            await asyncio.sleep(period)
            now = time.monotonic()
            late, before = now - before - period, now
            if late > period:  # this process stood still: what came meanwhile is yet to be read
                self._since += late
                self.averages.stir(late)
                self.links.forgive(late)
                continue
            for link in self._voter.to_reassure():
                link.here()
            self._judge(now)

    def _judge(self, now: float) -> None:
        usual, starting = self.patience.usual, now - self._began < self.patience.start
        for member in self.plan.teams[self.row] if self.mine in self.plan.reducers else ():
            link = self.links.down.get(member)
            if member in self.links.lost or self.whole(member):
                continue
            if link is None and not starting:
                self.lose(member, "did not begin", "did not come", blame=True)
            elif link is not None and self._silent(member, link, now) > usual:
                self.lose(member, "stopped sending", "fell silent", blame=not self.whole(member, first=True))
        self._voter.judge(now, starting)
        lacked = self._reducing.lacking() | self._voter.telling.awaited()
        for other in lacked | self._reducing.unfinished():
            if not any(link.arriving(usual) for link in self.links.of(other)):
                self._voter.lacks(other, now, LACKED if other in lacked else UNFINISHED)

    def _silent(self, member: int, link: Link, now: float) -> float:
        """Whoever had sent all may not have heard yet that more was dealt out."""
        more = self.whole(member, first=True) and member not in self.links.dead
        return min(link.silent(), now - self._since) if more else link.silent()

    def lose(self, member: int, why: str, absence: Absence, *, blame: bool) -> None:
        """Nothing more comes from this member."""
        if member not in self.links.lost and not self.over:
            self.links.lost.add(member)
            roll = self._voter.roll
            if roll is None or member in roll.counted:  # who is left out already may have ended, and leave for good
                self._absent[member] = absence
            self._note(member, why, blame)
            self._voter.lost(member)

    def bury(self, reducer: int, why: str, *, blame: bool) -> None:
        """Nothing more comes from this reducer."""
        if reducer not in self.links.dead and not self.over:
            self.links.dead.add(reducer)
            self._window.gone(reducer)
            self._note(reducer, why, blame)
            self._voter.buried(reducer)
            link = self.links.down.get(reducer)
            if link is not None and link.silent() > self.patience.usual:
                self.lose(reducer, why, "fell silent", blame=blame)

    def _note(self, member: int, why: str, blame: bool) -> None:
        self._why = f"{self.plan.members[member]} {why}"
        if blame:
            self.culprits.add(self.plan.members[member])

    # As a member: send gradients to a reducer, receive what it says

    async def _exchange(self, reducer: int) -> None:
        limit = MAX_PART_BYTES + 1024 * len(self.plan.members)
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self.patience.start + self.patience.usual):
                    stream = await stack.enter_async_context(self._open_stream(self.plan.members[reducer]))
                link = self.links.up[reducer] = Link(stream)
                link.post(*self._waiting.pop(reducer, ()))
                self._voter.reached(reducer)
                sending = asyncio.create_task(self._send(reducer, link))
                stack.callback(sending.cancel)
                while True:
                    says, content = messages.read(await link.receive(limit))
                    if says == Says.CAME:
                        self._window.came(reducer)
                    elif says == Says.AVERAGE:
                        silence = link.measure(says)
                        if self._voter.roll is not None:  # before it, one may wait for any member
                            self.longest_silence = max(self.longest_silence, silence)
                        self.take_average(reducer, content)
                        link.post(say(Says.CAME))
                    else:
                        self._voter.hear_reducer(reducer, link, says, content)
        except Ended as ended:
            self.named |= set(self.plan.members) & ended.named
            if not ended.by_itself:
                self.lose(reducer, "gave the round up", "left in the middle", blame=False)
            self.bury(reducer, "failed" if ended.by_itself else "gave the round up", blame=ended.by_itself)
        except Exception as error:
            over_there = self._voter.certified is not None
            self.bury(reducer, f"broke off ({error!r:.100})", blame=not over_there)
            if reducer not in self.links.down:  # if it comes all the same, it counts
                begun = reducer in self.links.up
                self.lose(reducer, "is not there", "left in the middle" if begun else "did not come", blame=False)
        finally:
            self.links.up.pop(reducer, None)

    async def _send(self, reducer: int, link: Link) -> None:
        """The parts of this reducer's share, and of what it inherits."""
        if not self.handshake.mine.samples:
            return  # nothing to add: a follower's zeros need not travel
        try:
            while True:
                dealt = self._dealt
                for number, owner in enumerate(self._owners):
                    if owner != reducer or (number, reducer) in self._sent:
                        continue
                    self._sent.add((number, reducer))
                    await self._window.room(reducer)
                    part = self._encoded(number)
                    self._window.sent(reducer, len(part))
                    await link.send(messages.part(number, part))
                await dealt.wait()
        except OSError:
            pass  # the other side is gone or has given up: what it said last tells which
        except Exception as error:
            self.fail_here(f"encoding failed here ({error!r:.100})")

    def _encoded(self, number: int) -> bytes:
        """What a reducer gets of a chunk."""
        sealed = self._coding.sealed
        if sealed is not None:
            return messages.with_path(sealed.commitment.opening(number).path, sealed.parts[number])
        begin = self.plan.chunks[number][0]
        way = self._coding.of_gradients(begin, self.plan.layout)
        return bytes(self._coding.sent.encode(way, self._values[number], begin).SerializeToString())

    def own(self, number: int) -> Tensor:
        """This peer's values of a chunk that it reduces itself, float32 [numel]: of a pledge what others would get."""
        begin, end = self.plan.chunks[number]
        sealed = self._coding.sealed
        if sealed is not None:
            return decode(read_part(sealed.parts[number]), end - begin)
        return self._coding.sent.exact(self._values[number], begin)

    def take_average(self, sender: int, content: bytes) -> None:
        """An average from its reducer, or from whoever holds it; raises ValueError."""
        number, name, encoded = messages.read_average(content)
        roll = self._voter.roll
        if number >= len(self._values):
            raise ValueError("an average of a chunk that there is not")
        if self.over:
            return  # where it would go may serve the next round already
        if roll is None or name != roll.name:
            self.averages.hold_back(sender, number, name, encoded)
        elif self._voter.fetching.may_have(sender, number):
            self.averages.take(number, encoded)
            self._reducing.has(number, encoded)
            self._voter.average_came(number)

    @property
    def delivered(self) -> bool:
        """Have all of this peer's parts come to those who reduce them, as they say?"""
        dealt = {(number, owner) for number, owner in enumerate(self._owners) if owner != self.mine}
        return dealt <= self._sent and self._window.empty

    # As a reducer: keep what the members send, average those on the roll

    async def serve(self, sender: str, introduction: bytes, stream: Stream) -> None:
        """Serve one member: take its gradients for our share, answer with the averages."""
        member = self.plan.members.index(sender) if sender in self.plan.members else self.mine
        if member in self.handshake.met or (self.over and self._end.exception() is not None):
            return
        if not introduction:
            self.lose(member, "turned away", "left in the middle", blame=False)
            return
        link = Link(stream)
        try:
            self.handshake.meet(member, introduction)
        except ValueError as error:
            self.lose(member, f"did not introduce itself ({error!r:.100})", "sent nonsense", blame=True)
            await link.send(gave_up(self.plan.members[self.mine], self.culprits, self.named))
            await stream.closed()
            return
        self.links.down[member] = link
        link.heard = time.monotonic()
        listening = asyncio.create_task(self._listen(member, link))
        try:
            self._voter.came(member, link)
            waiting: set[asyncio.Future[Any]] = {listening, self._end}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            await link.done_with_averages(listening)
            await asyncio.wait({listening}, timeout=CLOSE_SECONDS)
        finally:
            listening.cancel()
            link.stop_averages()
            self.links.down.pop(member, None)

    async def _listen(self, member: int, link: Link) -> None:
        try:
            while True:
                says, content = messages.read(await link.receive(MAX_PART_BYTES + 1024 * len(self.plan.members)))
                if says == Says.PART and self.plan.rows[member] == self.row:
                    self.longest_silence = max(self.longest_silence, link.measure(says))
                    number, encoded = messages.read_numbered(content)
                    await self._await_deal(member, number)
                    self.parts.take(member, number, encoded, self.handshake.met[member])
                    link.post(say(Says.CAME))
                    self._reducing.part_came()
                    self._voter.part_came()
                elif says == Says.CAME:
                    self._reducing.average_came(member)
                elif says == Says.AVERAGE:
                    self.take_average(member, content)
                elif says == Says.MEAN and self.plan.rows[member] != self.row:
                    self._reducing.take_mean(member, content)
                else:
                    self._voter.hear_member(member, link, says, content)
        except DiskFailed as error:
            self.fail_here(str(error))
        except (OSError, EOFError):
            self.lose(member, "broke off", "left in the middle", blame=not self.whole(member, first=True))
        except Exception as error:
            if not self.whole(member):  # else this peer may have reported it already, and who leads would seem to lie
                self.parts.forget(member)
                self.handshake.met.pop(member, None)
            self.lose(member, f"sent nonsense ({error!r:.100})", "sent nonsense", blame=True)
            if self.plan.rows[member] != self.row and member in self.plan.reducers and not self.over:
                self._voter.heads.complain(member)
            if not self.over:
                link.post(gave_up(self.plan.members[self.mine], self.culprits, self.named))
                await link.flushed()

    async def _await_deal(self, member: int, number: int) -> None:
        """It may have heard before this peer does how much it inherits."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.patience.usual):
                while not self.parts.room(member, number) and not self.over:
                    await self._dealt.wait()

    def whole(self, member: int, *, first: bool = False) -> bool:
        """Has this member introduced itself, and sent all that this peer reduces?

        :param first: or would reduce if all lived: of what is dealt anew it may not have heard
        """
        if member == self.mine or self.plan.rows[member] != self.row:
            return True
        brought = self.handshake.met.get(member)
        return brought is not None and (not brought.samples or self.parts.all_of(member, first=first))

    # What is agreed

    def deal(self, living: Sequence[int]) -> None:
        """These reduce from now on."""
        deal = self.plan.deal(living)
        self._owners, self._finishers = deal.owners[self.row], deal.finishers
        self.parts.deal(self.mine, self._owners)
        shares = counts(self._owners, len(self.plan.members))
        self._window.deal([0 if p == self.mine or p in self.links.dead else n for p, n in enumerate(shares)])
        self._connect_finishers()
        self._since = time.monotonic()
        self.links.measure_anew()
        self._dealt.set()
        self._dealt = asyncio.Event()

    def foresee(self, roll: Roll) -> None:
        """This will be the roll, if nobody is left out."""
        self._reducing.foresee(roll)

    def begin_roll(self, roll: Roll) -> None:
        """Others count than on the roll before."""
        self.introductions = None
        self.links.measure_anew()
        self._reducing.stop(but=roll.name)
        self.averages.begin()

    def know(self, introductions: Introductions) -> None:
        """All on the roll have been introduced."""
        self.introductions = introductions

    def take_early(self, roll: Roll) -> None:
        """Averages of this roll that came before it."""
        for sender, number, encoded in self.averages.held_back(roll.name):
            with contextlib.suppress(ValueError):  # whoever sent it is not the one that is being heard
                self.take_average(sender, messages.average(number, roll.name, encoded)[1:])

    def reduce(self, roll: Roll) -> None:
        """Average those on the roll, if this peer reduces."""
        self._reducing.begin(roll)

    def pause(self) -> None:
        """Send no averages as long as it is not known whether they are taken."""
        self._reducing.pause()

    def resume(self, roll: Roll) -> None:
        """Those of this roll are."""
        self._reducing.resume(roll)

    def average(self, introductions: Introductions) -> None:
        """Average the rows, if this peer does that."""
        self._reducing.finish(introductions)

    def resend(self, member: int, link: Link) -> None:
        """The averages, to a member that has come late."""
        self._reducing.send(member, link)
