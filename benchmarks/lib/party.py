"""An all-reduce of some members in one process: the real objects, over pairs of sockets instead of libp2p.

A member can be killed, cut off from others or made to stand still at any moment.
"""

import asyncio
import hashlib
import random
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.agreement import Setting
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding, Feedback
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.allreduce.reduction.keeping import Holding, Keep
from dedloc_kit.swarm.allreduce.reduction.reducer import MakeReducer, MeanReducer
from dedloc_kit.swarm.allreduce.round import Round
from dedloc_kit.swarm.allreduce.streams import OpenStream, Patience
from dedloc_kit.swarm.consensus.electorate import Electorate
from dedloc_kit.swarm.consensus.events import Persist, Send
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import Options
from dedloc_kit.swarm.consensus.records import Entry, Piece, Vote, Voter
from dedloc_kit.swarm.consensus.votes import VoteBook, Write
from dedloc_kit.swarm.network.service import Stream
from dedloc_kit.swarm.p2p.seams import Signer, Verifier

HEAD = hashlib.sha256(b"head").hexdigest()


@dataclass(frozen=True)
class HashSigner:
    """Signs with a hash that everybody can make: nobody lies here."""

    peer: str

    def sign(self, content: bytes) -> str:
        return hashlib.sha256(self.peer.encode() + content).hexdigest()


class HashVerifier:
    def valid(self, author: str, content: bytes, signature: str) -> bool:
        return HashSigner(author).sign(content) == signature


class VotesInMemory:
    """A vote file that outlives rounds, and no process."""

    def __init__(self, voter: Voter) -> None:
        self.mute = False
        self._book = VoteBook(voter, None)
        self._average: tuple[str, Sequence[bytes]] = ("", ())

    def vote(self, instance: Instance) -> Vote:
        return self._book.vote(instance)

    async def persist(self, effect: Persist, average: Sequence[bytes] | None) -> list[Send]:
        if average is not None and effect.vote.value is not None:
            self._average = effect.vote.value.link, average
        if self.mute:
            return []
        due, writing = list[Send](), bool(self._book.persist(effect))
        while writing:
            written = self._book.written(True)
            due += [each for each in written if isinstance(each, Send)]
            writing = any(isinstance(each, Write) for each in written)
        return due

    def accepted_average(self, link: str) -> Sequence[bytes] | None:
        return self._average[1] if link == self._average[0] else None


@dataclass
class Party:
    """A group: what each member brings, and with what it ended.

    :ivar members: their rounds
    :ivar codings: of a round before, if any
    :ivar clients: the last ones reduce nothing
    :ivar row: members of a row on average; all have one if it is 0
    :ivar kinds: members that are of another kind than usual
    :ivar lent: members that only lend their lines, and where they keep what comes
    :ivar voters: their vote files
    :ivar cuts: pairs that cannot reach each other
    """

    gradients: Sequence[Tensor]
    samples: Sequence[int]
    global_batch: int = 1
    compression: str = "none"
    make_reducer: MakeReducer = MeanReducer
    clients: int = 0
    row: int = 0
    organizer: int | None = None
    patience: Patience = Patience(5.0, 10.0)  # noqa: RUF009
    kinds: dict[int, type[Round]] = field(default_factory=dict)
    lent: dict[int, Keep] = field(default_factory=dict)
    seed: int = 0
    limit: float = 120.0
    averages: list[Tensor] = field(default_factory=list)
    members: list[Round] = field(default_factory=list)
    codings: list[Coding] = field(default_factory=list)
    voters: list[VotesInMemory] = field(default_factory=list)
    tasks: "list[asyncio.Task[Any]]" = field(default_factory=list)
    cuts: set[frozenset[int]] = field(default_factory=set)
    lines: dict[int, "list[tuple[int, Stream, Stream, asyncio.Task[None]]]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        layout, count = FlatLayout.of([self.gradients[0]]), len(self.gradients)
        peers = tuple(f"peer{number}" for number in range(count))
        lines = [1.0] * (count - self.clients) + [0.0] * self.clients
        self.plan = Plan.of(peers, layout, lines, self.row or count)
        coordinator = "" if self.organizer is None else peers[self.organizer]
        voters = {Voter(peer, 1): 1 for peer in peers}
        electorate = Electorate(voters, Voter(coordinator, 1) if coordinator else None)
        self.instance = Instance("run", "", 7, HEAD, (0, ""), "organizer", coordinator, electorate)

    def prepare(self) -> None:
        layout, chance = self.plan.layout, random.Random(self.seed)
        for number, peer in enumerate(self.plan.members):
            if number == len(self.codings):
                coding = Coding(codec_of(self.compression), Feedback(layout.size), Feedback(layout.size))
                self.codings.append(coding)
            coding = self.codings[number]
            coding.sent.begin(float(self.samples[number]))
            self.voters.append(VotesInMemory(Voter(peer, 1)))
            average = torch.empty(layout.size)
            self.averages.append(average)
            setting = Setting(
                instance=self.instance,
                patience=self.patience,
                limit=self.limit,
                options=self._options,
                signer=self.signer(number),
                verifier=self.verifier(),
                random=random.Random(chance.getrandbits(64)),
            )
            holding = Holding(self.gradients[number], average)
            if number in self.lent:
                holding = Holding(torch.empty(0), None, self.lent[number])
            self.members.append(
                self.kinds.get(number, Round)(
                    setting,
                    self.plan,
                    self.entry(number),
                    holding,
                    coding,
                    self.make_reducer,
                    self.voters[number],
                    self._line_of(number),
                )
            )

    def _options(self, entries: Sequence[Entry]) -> Options:
        return Options(minimum=self.global_batch, patience=self.patience.usual, limit=self.limit)

    def entry(self, number: int) -> Entry:
        """What this member brings."""
        peer, samples = self.plan.members[number], self.samples[number]
        name = hashlib.sha256(f"{peer} {samples}".encode()).hexdigest()
        pieces = (Piece(hash=name, samples=samples, weight=samples),) if samples else ()
        made = Entry(run_id="run", part="", previous=HEAD, voter=Voter(peer, 1), pieces=pieces)
        return made.signed(self.signer(number))

    def signer(self, number: int) -> Signer:
        """With which this member signs."""
        return HashSigner(self.plan.members[number])

    def verifier(self) -> Verifier:
        """With which all look at signatures."""
        return HashVerifier()

    async def begin(self, but: Sequence[int] = ()) -> None:
        """All but these begin."""
        if not self.members:
            self.prepare()
        for number, member in enumerate(self.members):
            task = asyncio.create_task(member.complete() if number not in but else asyncio.sleep(0))
            self.tasks.append(task)

    async def end(self) -> list[BaseException | None]:
        """How it ended for each member."""
        return list(await asyncio.gather(*self.tasks, return_exceptions=True))

    async def meet(self) -> list[BaseException | None]:
        await self.begin()
        return await self.end()

    @property
    def ranking(self) -> tuple[int, ...]:
        """Who makes the group and decides, best first."""
        ranking = self.plan.ranking(HEAD)
        first = () if self.organizer is None else (self.organizer,)
        return (*first, *(reducer for reducer in ranking if reducer not in first))

    def enough(self, members: Collection[int]) -> bool:
        """Whether these are a quorum."""
        return self.instance.electorate.enough(Voter(self.plan.members[number], 1) for number in members)

    def kill(self, number: int) -> None:
        """Nothing of this member goes on, and its streams break."""
        self.cuts |= {frozenset((number, other)) for other in range(len(self.members)) if other != number}
        self.tasks[number].cancel()
        for me, lines in self.lines.items():
            for peer, here, there, serving in lines:
                if number in (me, peer):
                    for stream in (here, there):
                        _break(stream)
                    if peer == number:
                        serving.cancel()

    def cut(self, some: Sequence[int], others: Sequence[int]) -> None:
        """These cannot reach those any more."""
        self.cuts |= {frozenset((one, other)) for one in some for other in others}
        for me, lines in self.lines.items():
            for peer, here, there, _ in lines:
                if frozenset((me, peer)) in self.cuts:
                    for stream in (here, there):
                        _break(stream)

    def wrap(self, stream: Stream, member: int) -> None:
        """What this member's end of a new stream goes through; nothing as a rule."""

    async def connect(self, me: int, number: int) -> tuple[Stream, Stream]:
        """Both ends of a new stream between two members; raises OSError."""
        here, there = [Stream(*await asyncio.open_connection(sock=end)) for end in socket.socketpair()]
        return here, there

    async def serve(self, number: int, sender: int, there: Stream) -> None:
        """A member serves another."""
        introduction = wire.introduction(0, self.entry(sender))
        await self.members[number].serve(self.plan.members[sender], introduction, there)

    def _line_of(self, me: int) -> OpenStream:
        @asynccontextmanager
        async def line(peer: str) -> AsyncIterator[Stream]:
            number = int(peer.removeprefix("peer"))
            if frozenset((me, number)) in self.cuts:
                raise ConnectionError("the line is cut")
            here, there = await self.connect(me, number)
            self.wrap(here, me)
            self.wrap(there, number)
            serving = asyncio.create_task(self.serve(number, me, there))
            serving.add_done_callback(lambda _: there.close())
            self.lines.setdefault(me, []).append((number, here, there, serving))
            try:
                yield here
            finally:
                here.close()

        return line


def _break(stream: Stream) -> None:
    if not stream.writer.is_closing():
        stream.writer.transport.abort()
