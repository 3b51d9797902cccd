"""The network's side of averaging: finds the group of a round and runs its all-reduce, in a process of its own.

A round has two halves, so that nobody waits for the slow one: the group gathers while the batch still fills up, and
begins when its members say so. Everyone ends with the same bits, or nobody uses the result.
"""

import asyncio
import contextlib
import gc
import logging
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from hivemind.utils import MSGPackSerializer
from pydantic import Field
from torch import Tensor

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.train.flat import SharedVector, untouched_zeros, zeros_on_disk
from dedloc_kit.records.record import Digest, Record
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.audits.equivocation import HANDED_IN, EquivocationService
from dedloc_kit.swarm.averaging.agreement.handshake import GroupRefused, Handshake, Introductions
from dedloc_kit.swarm.averaging.agreement.roll import Votes
from dedloc_kit.swarm.averaging.allreduce import AllReduce, Patience
from dedloc_kit.swarm.averaging.encoding.codec import codec_of
from dedloc_kit.swarm.averaging.encoding.feedback import Coding, Feedback
from dedloc_kit.swarm.averaging.matchmaking.group import Group, GroupRequest
from dedloc_kit.swarm.averaging.matchmaking.grouping import Grouping, Rows
from dedloc_kit.swarm.averaging.matchmaking.row_meeting import Matchmaking
from dedloc_kit.swarm.averaging.matchmaking.search import NoGroup
from dedloc_kit.swarm.averaging.pledges.pledges import Pledges
from dedloc_kit.swarm.averaging.reduction.keeping import Holding, OnDisk, in_memory
from dedloc_kit.swarm.averaging.reduction.plan import Plan, balanced
from dedloc_kit.swarm.averaging.reduction.reducer import MakeReducer, MeanReducer, RoundOver, let_go, reducer_of
from dedloc_kit.swarm.averaging.result import RoundResult
from dedloc_kit.swarm.averaging.streams.messages import gave_up
from dedloc_kit.swarm.directory.contributions import possible
from dedloc_kit.swarm.network.identity import MAX_RECORD_BYTES, Signer
from dedloc_kit.swarm.network.service import Endpoint, Service, Stream, encode
from dedloc_kit.swarm.transfer.contents import RecentAverage, StoredAverage
from dedloc_kit.swarm.transfer.donor import Donor
from dedloc_kit.swarm.trust.pledge import Pledged, contribution_kind
from dedloc_kit.swarm.trust.standing import check_standing
from dedloc_kit.swarm.trust.weight import weighing

AVERAGED_ROUNDS = 2
"""Whose averages the organizer keeps in memory."""

HEEDED = 8
"""So often a member may turn away from the groups of a step, and the others do at once."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """Begin the all-reduce as soon as the group stands."""

    mine: Contribution
    """Of this peer; it is signed when the plan of the round stands."""
    patience: Patience
    limit: float
    """Seconds for the whole all-reduce."""
    work: tuple[bytes, ...] = ()
    """A line for each microbatch (`pledge.Work`) where members are checked."""


@dataclass(frozen=True)
class Found:
    """A group that stands."""

    members: frozenset[str]
    seconds: float
    """What it took to find it."""


class Averaged(NamedTuple):
    """What came of a round, for who checks its reducers."""

    owners: tuple[str, ...]
    """The reducer of each chunk; nobody where there were rows."""
    chunks: tuple[tuple[int, int], ...]
    messages: tuple[bytes, ...]
    """Their averages, as encoded."""


@dataclass(frozen=True)
class Rules:
    """What may be another than usual: who averages together, what becomes of their values, how they exchange it, and
    whether they commit to it before."""

    grouping: Grouping
    make_reducer: MakeReducer = MeanReducer
    all_reduce: type[AllReduce] = AllReduce
    pledges: Pledges | None = None
    """This peer's, where members are checked."""
    equivocation: EquivocationService | None = None
    """Likewise."""
    lent: Path | None = None
    """Where that lies which who only lends its line has for others; none of who uses the averages itself."""


def rules_of(run: RunConfig) -> Rules:
    """The usual ones. In a stage the drivers say what a batch holds, which is less, or nothing, if one has died."""
    least = run.global_batch if run.stage is None else 0
    return Rules(Rows(least, weighing(run)), reducer_of(run.trust))


class Opening(Record):
    """The first message of a member to a reducer."""

    group: Digest
    introduction: Annotated[bytes, Field(max_length=MAX_RECORD_BYTES)]
    """Nothing where the member turns away: in a stage the others cannot go on without it, and need not wait for it."""


class _Round:
    """A round of this peer, from the search for its group on."""

    def __init__(self, request: GroupRequest) -> None:
        loop = asyncio.get_running_loop()
        self.request, self.task = request, asyncio.current_task()
        self.group: Group | None = None
        self.left = False
        """Has another member turned away from its group?"""
        self.found: asyncio.Future[Found] = loop.create_future()
        self.called: asyncio.Future[None] = loop.create_future()
        """Done when a member has begun, who so thinks that the batch is full."""
        self.start: asyncio.Future[Start] = loop.create_future()
        self.runner: asyncio.Future[AllReduce] = loop.create_future()

    def call_off(self) -> None:
        """Leave the group, unless this peer has begun."""
        if not self.start.done() and self.task is not None:
            self.task.cancel()

    def end(self) -> None:
        for future in (self.found, self.called, self.runner):
            let_go(future)


class AveragingService(Service):
    """Runs one round after the other. The vector is this peer's mean gradient, which a complete round replaces by the
    average, unless this peer only lends its line.

    :param donor: keeps the averages for those who miss them, and lets the all-reduce have the line
    :param organizer: the coordinator's id: where half of a group is gone, its half takes the step
    """

    name = "allreduce"

    def __init__(
        self,
        endpoint: Endpoint,
        groups: Matchmaking,
        signer: Signer,
        run: RunConfig,
        vector: SharedVector,
        donor: Donor,
        rules: Rules,
        organizer: str,
    ) -> None:
        self._endpoint, self._groups, self._signer, self._run = endpoint, groups, signer, run
        self._vector, self._donor, self._rules, self._organizer = vector, donor, rules, organizer
        size = vector.layout.size
        lost = untouched_zeros if rules.lent is None else partial(zeros_on_disk, rules.lent)
        self._coding = Coding(codec_of(run.averaging.compression), Feedback(size), Feedback(size, lost))
        # Kept from round to round: memory that is new each time costs more than the arithmetic.
        self._average = torch.empty(size) if rules.lent is None else None
        self._rounds: dict[int, _Round] = {}
        self._standing: dict[str, _Round] = {}
        self._searching, self._sealing = asyncio.Lock(), asyncio.Lock()
        self._over: dict[str, bytes] = {}
        """The last group, and what late members hear of it."""
        self._averaged: dict[str, Averaged] = {}
        self._left_out: Tensor | None = None
        """This peer's own vector, if the last round went well without it."""
        self._heeded: Counter[tuple[int, str]] = Counter()
        """How often each has turned away from a group of each of the last steps."""

    # Called by the training

    async def average(self, number: int, request: GroupRequest) -> RoundResult:
        """Find a group, and average with it once `begin` is called; every way to fail becomes a result.

        :param number: names this round in the other calls
        """
        current = self._rounds[number] = _Round(request)
        try:
            return await self._find_and_average(current)
        except asyncio.CancelledError:
            if not current.left:  # else they know
                await self._turn_away(current)
            return RoundResult("failed", detail="called off")
        except NoGroup as error:
            return RoundResult("failed", detail=str(error), named=frozenset({error.leader} - {""}))
        finally:
            current.end()
            del self._rounds[number]
            # What made up a round refers to each other, and holds all that travelled. Without looking for such garbage
            # now, which is quick as long as all that is older is frozen, that of several rounds would lie about.
            gc.collect()

    async def found(self, number: int) -> Found:
        """The group of a round, as soon as it stands; raises RoundOver if there is none."""
        return await asyncio.shield(self._rounds[number].found)

    async def called(self, number: int) -> None:
        """Returns when a member of the group has begun; raises RoundOver if the round ends before."""
        await asyncio.shield(self._rounds[number].called)

    async def widen(self, number: int, request: GroupRequest) -> None:
        """Look from now on as this says, if the group is still being found.

        :param request: of the same step and state, for more peers or open for another time
        """
        current = self._rounds.get(number)
        if current is not None:
            current.request = request
            self._groups.widen(request)

    async def begin(self, number: int, start: Start) -> None:
        current = self._rounds.get(number)
        if current is not None:
            current.start.set_result(start)

    async def call_off(self, number: int) -> None:
        """Leave the group, unless this peer has begun."""
        current = self._rounds.get(number)
        if current is not None:
            current.call_off()

    async def put_back(self) -> None:
        """The average was taken; a vector that was left out of it is to go into the next one."""
        if self._left_out is not None:
            async with self._vector.awaited() as flat:
                flat.copy_(self._left_out)
            self._left_out = None

    async def forget_feedback(self) -> None:
        """Another state was loaded: what compression lost on the way to the old one is of no use."""
        async with self._sealing:
            self._coding.sent.reset()
            self._coding.averaged.reset()
            if self._rules.pledges is not None:
                self._rules.pledges.forget()

    async def averaged(self, group: str) -> Averaged | None:
        """Of one of the last rounds, to the organizer where members are checked."""
        return self._averaged.get(group)

    # A round

    async def _find_and_average(self, current: _Round) -> RoundResult:
        async with self._searching:  # one that is called off may still be on its way out
            began = time.monotonic()
            group = await self._groups.find(current.request)
        over = gave_up(self._signer.peer, (), ())
        self._standing[group.id], current.group = current, group
        try:
            current.found.set_result(Found(frozenset(group.peers), time.monotonic() - began))
            if not self._rules.grouping.enough_members(len(group.members), group.expected_size):
                detail = f"{len(group.members)} of {group.expected_size:g} peers"
                return RoundResult("refused", group.id, detail=detail)
            result = await self._all_reduce(current, group, await current.start)
            over = gave_up(self._signer.peer, result.culprits, result.named)
            return result
        finally:
            self._over = {group.id: over}
            del self._standing[group.id]

    async def _all_reduce(self, current: _Round, group: Group, start: Start) -> RoundResult:
        began = time.monotonic()
        self._donor.line_free.clear()
        runner: AllReduce | None = None
        try:
            async with self._vector.awaited() as flat:
                runner = await self._runner(current.request.step, group, start, flat)
                current.runner.set_result(runner)
                await asyncio.wait_for(runner.complete(), start.limit)
                introductions = runner.introductions
                assert introductions is not None
                counts = self._signer.peer in introductions.contributions
                if self._average is not None:
                    self._left_out = None if counts else flat.clone()
                    flat.copy_(self._average)
            if counts:
                self._coding.sent.commit()
                if self._rules.pledges is not None:
                    self._rules.pledges.counted()
            else:
                self._coding.sent.discard()
            self._coding.averaged.commit()
            await self._keep(current.request, group, introductions, runner)
            return RoundResult(
                "complete",
                group.id,
                introductions.contributions,
                introductions.signed,
                culprits=frozenset(runner.culprits),
                named=frozenset(runner.doubted),
                absent=runner.absent,
                carried=runner.carried,
                seconds=time.monotonic() - began,
                longest_silence=runner.longest_silence,
                upload_rate=runner.upload_rate,
            )
        except GroupRefused as refusal:
            assert runner is not None
            assert runner.introductions is not None
            self._forget_round()
            brought = runner.introductions
            return RoundResult(
                "refused",
                group.id,
                brought.contributions,
                brought.signed,
                detail=str(refusal),
                culprits=frozenset(runner.culprits),
                named=frozenset(runner.doubted),
                absent=runner.absent,
            )
        except Exception as error:
            self._forget_round()
            detail = str(error)[:200] or repr(error)
            if runner is None:
                return RoundResult("failed", group.id, detail=detail, culprits=frozenset({self._signer.peer}))
            culprits, named = frozenset(runner.culprits), frozenset(runner.named)
            return RoundResult("failed", group.id, detail=detail, culprits=culprits, named=named)
        finally:
            self._donor.line_free.set()
            if runner is not None and self._rules.equivocation is not None:
                self._rules.equivocation.hand_in(runner.differing[:HANDED_IN])

    async def _runner(self, step: int, group: Group, start: Start, flat: Tensor) -> AllReduce:
        me, layout = self._signer.peer, self._vector.layout
        bandwidths = [0.0 if member.client_mode else member.bandwidth for member in group.members]
        loop = asyncio.get_running_loop()
        shares = await loop.run_in_executor(None, balanced, layout.size, bandwidths, group.rows)
        plan = Plan(group.peers, layout, shares, group.rows)

        def introduced(peer: str, introduction: bytes) -> Contribution:
            return self._introduced(peer, introduction, step, group.id)

        self._coding.sent.begin(float(start.mine.samples))
        introduction, coding = await self._pledge(group, start, plan, flat)
        weigh = self._rules.grouping.weigh
        check = partial(self._check, start.mine.batch)
        handshake = Handshake(group.peers, me, introduction, introduced, check, weigh, plan.rows)
        opening = encode(Opening(group=group.id, introduction=introduction))
        keep = in_memory if self._rules.lent is None else OnDisk(self._rules.lent)
        return self._rules.all_reduce(
            plan,
            Holding(flat, self._average, keep),
            coding,
            self._rules.make_reducer,
            handshake,
            Votes(group.id, group.peers, self._organizer, self._signer),
            start.patience,
            lambda peer: self._endpoint.open(peer, AveragingService, opening),
        )

    async def _pledge(self, group: Group, start: Start, plan: Plan, flat: Tensor) -> tuple[bytes, Coding]:
        """What this peer introduces itself with, and how it writes down what it sends."""
        pledges, loop = self._rules.pledges, asyncio.get_running_loop()
        if pledges is None:
            return self._signer.sign(start.mine), self._coding
        async with self._sealing:
            pledged, sealed = await loop.run_in_executor(
                None, pledges.seal, group.id, start.mine, start.work, plan, flat, self._coding
            )
        return self._signer.sign(pledged), replace(self._coding, sealed=sealed)

    def _check(self, batch: int | None, introductions: Introductions) -> None:
        """:param batch: what it holds in a stage, if this peer knows that; else others are to say so"""
        samples, least = introductions.samples, self._run.global_batch
        if self._run.stage is not None:
            said = [each.batch for each in introductions.contributions.values() if each.batch is not None]
            if batch is None and not said:
                raise GroupRefused("nobody says what the batch holds")
            least = min(said) if batch is None else batch
        if samples < least or not self._rules.grouping.enough_samples(samples):
            raise GroupRefused(f"{samples} of {least} samples")

    def _introduced(self, peer: str, introduction: bytes, step: int, group: str) -> Contribution:
        """What a member contributes; raises ValueError unless it is its own, for this round and believable."""
        author, contribution = self._signer.open(contribution_kind(self._run.trust), introduction)
        if isinstance(contribution, Pledged) and not contribution.fits(group):
            raise ValueError(f"{peer} brought a pledge of another round, or samples without work")
        if (author, contribution.step) != (peer, step):
            raise ValueError(f"{peer} brought a contribution that is not its own or not for this step")
        check_standing(self._signer, self._organizer, peer, contribution)
        return possible(contribution, self._run.run_id, self._run.global_batch)

    async def _keep(self, request: GroupRequest, group: Group, introductions: Introductions, runner: AllReduce) -> None:
        """Hold the average for members that missed it."""
        if self._rules.pledges is not None and self._signer.peer == self._organizer:
            self._averaged[group.id] = Averaged(runner.owners, tuple(runner.plan.chunks), tuple(runner.messages))
            for old in list(self._averaged)[:-AVERAGED_ROUNDS]:
                del self._averaged[old]
        metadata = MSGPackSerializer.dumps(list(introductions.signed))
        average = RecentAverage(
            after=request.after, round=group.id, step=request.step, metadata=metadata, parts=tuple(runner.messages)
        )
        if self._rules.lent is None:
            self._donor.keep(average)
            return
        try:
            self._donor.keep(await asyncio.to_thread(StoredAverage, average, self._rules.lent))
        except OSError as error:
            _log.warning("an average cannot be kept for those who missed it: %s", error)

    def _forget_round(self) -> None:
        """After a failure: a member that had stalled may still send its parts; they must not get into the next round,
        so the memory of this one is not used again."""
        self._average = None if self._average is None else torch.empty_like(self._average)
        self._coding.sent.discard()
        self._coding.averaged.discard()

    async def _turn_away(self, current: _Round) -> None:
        group = current.group
        if group is None or not current.start.cancelled() or self._run.stage is None:
            return  # there is none, it has begun, or the others go on without this member
        opening = encode(Opening(group=group.id, introduction=b""))

        async def tell(peer: str) -> None:
            with contextlib.suppress(OSError):
                async with self._endpoint.open(peer, AveragingService, opening) as stream:
                    await stream.closed()

        others = [m.peer for m in group.members if not m.client_mode and m.peer != self._signer.peer]
        await asyncio.gather(*map(tell, others))

    def _left_by(self, peer: str, current: _Round) -> None:
        """The others cannot go on without this one: leave the group as well. Whoever does so all the time is waited for
        until it counts as gone."""
        step, group = current.request.step, current.group
        self._heeded = Counter({each: times for each, times in self._heeded.items() if each[0] >= step})
        if group is not None and peer in group.peers and self._heeded[step, peer] < HEEDED:
            self._heeded[step, peer] += 1
            current.left = True
            current.call_off()

    # Called by the other members

    async def serve(self, peer: str, stream: Stream) -> None:
        """A member sends its gradients; who begins before us also tells us that it is time."""
        opening = await stream.receive_question(Opening)
        if opening.group not in self._standing.keys() | self._over.keys() and self._searching.locked():
            async with self._searching:
                pass  # our leader has told others of the group first
        current = self._standing.get(opening.group)
        if not opening.introduction and (current is None or not current.start.done()):
            if current is not None:
                self._left_by(peer, current)
            return
        try:
            if current is None:
                raise RoundOver("there is no such group")
            if not current.called.done():
                current.called.set_result(None)
            runner = await asyncio.shield(current.runner)
        except RoundOver:
            await stream.send(self._over.get(opening.group, gave_up(self._signer.peer, (), ())))
            await stream.closed()
            return
        await runner.serve(peer, opening.introduction, stream)
