"""An all-reduce of some members in one process: the real objects, over pairs of sockets instead of libp2p.

A member can be killed, cut off from others or made to stand still at any moment.
"""

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from hivemind.utils import MSGPackSerializer
from torch import Tensor

from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.records.record import Record
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.averaging.agreement.handshake import GroupRefused, Handshake, Introductions
from dedloc_kit.swarm.averaging.agreement.roll import Signs, Votes
from dedloc_kit.swarm.averaging.allreduce import AllReduce, OpenStream, Patience
from dedloc_kit.swarm.averaging.encoding.codec import codec_of
from dedloc_kit.swarm.averaging.encoding.feedback import Coding, Feedback
from dedloc_kit.swarm.averaging.reduction.keeping import Holding, Keep
from dedloc_kit.swarm.averaging.reduction.plan import Plan
from dedloc_kit.swarm.averaging.reduction.reducer import MeanReducer, Reducer
from dedloc_kit.swarm.averaging.streams.link import Link, Message
from dedloc_kit.swarm.averaging.streams.messages import Says
from dedloc_kit.swarm.network.service import Stream

MakeReducer = Callable[[Sequence[Tensor]], Reducer]
GROUP = "ab" * 20


@dataclass
class Party:
    """A group: what each member brings, and with what it ended."""

    gradients: Sequence[Tensor]
    samples: Sequence[int]
    global_batch: int = 1
    compression: str = "none"
    make_reducer: MakeReducer = MeanReducer
    clients: int = 0
    """The last ones reduce nothing."""
    rows: Sequence[int] = ()
    """Of each member; one row if there are none."""
    organizer: int | None = None
    patience: Patience = Patience(5.0, 10.0)  # noqa: RUF009
    kinds: dict[int, type[AllReduce]] = field(default_factory=dict)
    """Members that are of another kind than usual."""
    lent: dict[int, Keep] = field(default_factory=dict)
    """Members that only lend their lines, and where they keep what comes."""
    averages: list[Tensor] = field(default_factory=list)
    members: list[AllReduce] = field(default_factory=list)
    codings: list[Coding] = field(default_factory=list)
    tasks: "list[asyncio.Task[Any]]" = field(default_factory=list)
    cuts: set[frozenset[int]] = field(default_factory=set)
    """Pairs that cannot reach each other."""
    lines: dict[int, "list[tuple[int, Stream, Stream, asyncio.Task[None]]]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        layout, count = FlatLayout.of([self.gradients[0]]), len(self.gradients)
        peers = tuple(f"peer{number}" for number in range(count))
        reducers, shares = count - self.clients, [0] * count
        for row in set(self.rows or (0,)):
            team = [n for n in range(reducers) if not self.rows or self.rows[n] == row]
            for number in team:
                shares[number] = layout.size // len(team)
            if team:
                shares[team[-1]] += layout.size - len(team) * shares[team[-1]]
        self.plan = Plan(peers, layout, tuple(shares), tuple(self.rows))

    def prepare(self) -> None:
        layout, peers = self.plan.layout, self.plan.members
        for number, peer in enumerate(peers):
            coding = Coding(codec_of(self.compression), Feedback(layout.size), Feedback(layout.size))
            coding.sent.begin(float(self.samples[number]))
            self.codings.append(coding)
            handshake = Handshake(peers, peer, self.introduction(number), self.introduced, self._check)
            average = torch.empty(layout.size)
            self.averages.append(average)
            organizer = "" if self.organizer is None else peers[self.organizer]
            self.members.append(
                self.kinds.get(number, AllReduce)(
                    self.plan,
                    Holding(torch.empty(0), None, self.lent[number])
                    if number in self.lent
                    else Holding(self.gradients[number], average),
                    coding,
                    self.make_reducer,
                    handshake,
                    Votes(GROUP, peers, organizer, self.signer(number)),
                    self.patience,
                    self._line_of(number),
                )
            )

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
    def votes(self) -> Votes:
        organizer = "" if self.organizer is None else self.plan.members[self.organizer]
        return Votes(GROUP, self.plan.members, organizer, PlainSigner("nobody"))

    @property
    def ranking(self) -> tuple[int, ...]:
        """Who leads, best first."""
        return self.plan.ranking(GROUP)

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

    def introduction(self, number: int) -> bytes:
        """What this member introduces itself with."""
        return str(self.samples[number]).encode()

    def introduced(self, peer: str, introduction: bytes) -> Contribution:
        """What that says; raises ValueError."""
        return introduced(peer, introduction)

    def signer(self, number: int) -> Signs:
        return PlainSigner(self.plan.members[number])

    async def connect(self, me: int, number: int) -> tuple[Stream, Stream]:
        """Both ends of a new stream between two members; raises OSError."""
        here, there = [Stream(*await asyncio.open_connection(sock=end)) for end in socket.socketpair()]
        return here, there

    async def serve(self, number: int, sender: int, there: Stream) -> None:
        """A member serves another."""
        await self.members[number].serve(self.plan.members[sender], self.introduction(sender), there)

    def _check(self, introductions: Introductions) -> None:
        if introductions.samples < self.global_batch:
            raise GroupRefused(f"{introductions.samples} of {self.global_batch} samples")

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


def keep_the_certificate(leader: AllReduce, but_for: Sequence[int] = ()) -> None:
    """This one leads, and tells only these when a quorum has acknowledged the average."""
    came = leader._voter.came

    def hushed(member: int, link: Link) -> None:
        post = link.post

        def told(*messages: Message) -> None:
            post(*(m for m in messages if callable(m) or m[0] != Says.CERTIFICATE or member in but_for))

        link.post = told  # type: ignore[method-assign]
        came(member, link)

    leader._voter.came = hushed  # type: ignore[method-assign]


def _break(stream: Stream) -> None:
    if not stream.writer.is_closing():
        stream.writer.transport.abort()


class PlainSigner:
    """Says who has signed what, and everyone believes it."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def sign(self, record: Record) -> bytes:
        body = MSGPackSerializer.dumps(record.model_dump())
        return bytes(MSGPackSerializer.dumps([self._peer, body, _seal(self._peer, body)]))

    def open(self, kind: type[Any], data: bytes) -> tuple[str, Any]:
        peer, body, seal = MSGPackSerializer.loads(data)
        if seal != _seal(peer, body):
            raise ValueError("the signature is not valid")
        return peer, kind.parse(MSGPackSerializer.loads(body))


def _seal(peer: str, body: bytes) -> bytes:
    return hashlib.sha256(f"of {peer}".encode() + body).digest()


def introduced(peer: str, introduction: bytes) -> Contribution:
    samples = int(introduction)
    return Contribution(
        run_id="tiny-0123456789abcdef",
        step=1,
        session="ab",
        samples=samples,
        session_samples=samples,
        loss=1.0,
        name=peer,
        time=1e9,
    )
