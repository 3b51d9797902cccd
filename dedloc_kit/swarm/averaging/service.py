"""The network's side of averaging: runs the rounds of groups that stand, in a process of its own.

A round has two halves, so that nobody waits for the slow one: the group gathers while the batch still fills up, and
begins when its members say so. Everyone ends with the same bits, or nobody uses the result.
"""

import asyncio
import gc
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.train.flat import SharedVector, untouched_zeros, zeros_on_disk
from dedloc_kit.records.record import Digest, Record
from dedloc_kit.records.steps import Carried, Contribution
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.agreement import GroupRefused, Setting
from dedloc_kit.swarm.allreduce.carried import carried
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding, Feedback
from dedloc_kit.swarm.allreduce.plan import MAX_ROW, Plan
from dedloc_kit.swarm.allreduce.reduction.keeping import Holding, OnDisk, in_memory
from dedloc_kit.swarm.allreduce.reduction.reducer import MakeReducer, MeanReducer, RoundOver, let_go, reducer_of
from dedloc_kit.swarm.allreduce.round import Round
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.audits.equivocation import HANDED_IN, EquivocationService
from dedloc_kit.swarm.averaging.entries import EntryReader, new_entry, piece_of
from dedloc_kit.swarm.averaging.pledges.pledges import Pledges
from dedloc_kit.swarm.averaging.result import RoundResult
from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.chain.branch import Branch
from dedloc_kit.swarm.consensus.messages import Options
from dedloc_kit.swarm.consensus.records import Entry
from dedloc_kit.swarm.gathering.messages import Attempt
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.service import Endpoint, Service, Stream, encode
from dedloc_kit.swarm.transfer.contents import RecentAverage, StoredAverage
from dedloc_kit.swarm.transfer.donor import Donor
from dedloc_kit.swarm.trust.pledge import Pledged
from dedloc_kit.swarm.trust.weight import Weigh, weighing

AVERAGED_ROUNDS = 2
"""Whose averages the organizer keeps in memory."""

STANDS_SECONDS = 3.0
"""For which a member that has begun waits until this peer knows of its group."""
HEEDED = 8
"""So often a member may turn away from the groups of a step, and the others do at once."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """Begin the all-reduce as soon as the group stands."""

    mine: Contribution
    patience: Patience
    limit: float
    """Seconds for the whole all-reduce."""
    work: tuple[bytes, ...] = ()
    """A line for each microbatch (`pledge.Work`) where members are checked."""


class Averaged(NamedTuple):
    """What came of a round, for who checks its reducers."""

    makers: tuple[str, ...]
    """The reducer of each chunk; nobody where that is not known."""
    chunks: tuple[tuple[int, int], ...]
    messages: tuple[bytes, ...]
    """Their averages, as encoded."""


@dataclass(frozen=True)
class Rules:
    """What may be another than usual: what counts of what members claim, what becomes of their values, how they
    exchange it, and whether they commit to it before."""

    weigh: Weigh
    make_reducer: MakeReducer = MeanReducer
    round: type[Round] = Round
    pledges: Pledges | None = None
    """This peer's, where members are checked."""
    equivocation: EquivocationService | None = None
    """Likewise."""
    lent: Path | None = None
    """Where that lies which who only lends its line has for others; none of who uses the averages itself."""

    def row_of(self, members: int) -> int:
        """How many members of a group have a row.

        One row has all if a reducer needs the values of all of them, not sums, to tell honest ones from others; or if
        the organizer checks what each reducer made of what each member had pledged.
        """
        return MAX_ROW if self.make_reducer is MeanReducer and self.pledges is None else members


def rules_of(run: RunConfig) -> Rules:
    """The usual ones."""
    return Rules(weighing(run), reducer_of(run.trust))


class Opening(Record):
    """The first message of a member to a reducer."""

    group: Digest
    introduction: Annotated[bytes, Field(max_length=wire.ENTRY_BYTES)]
    """Nothing where the member turns away: in a stage the others cannot go on without it, and need not wait for it."""


_MAX_OPENING_BYTES = wire.ENTRY_BYTES + 256


class _Pending:
    """A round of this peer, from when its group stands."""

    def __init__(self, attempt: Attempt) -> None:
        loop = asyncio.get_running_loop()
        self.attempt, self.task = attempt, asyncio.current_task()
        self.left = False
        """Has another member turned away from its group?"""
        self.called: asyncio.Future[None] = loop.create_future()
        """Done when a member has begun, who so thinks that the batch is full."""
        self.start: asyncio.Future[Start] = loop.create_future()
        self.round: asyncio.Future[Round] = loop.create_future()

    def call_off(self) -> None:
        """Leave the group, unless this peer has begun."""
        if not self.start.done() and self.task is not None:
            self.task.cancel()

    def end(self) -> None:
        for future in (self.called, self.round):
            let_go(future)


class AveragingService(Service):
    """Runs one round after the other. The vector is this peer's mean gradient, which a complete round replaces by the
    average, unless this peer only lends its line.

    :param donor: keeps the averages for those who miss them, and lets the all-reduce have the line
    :param branch: where this peer is, and its vote
    """

    name = "allreduce"

    def __init__(
        self,
        endpoint: Endpoint,
        signer: Signer,
        run: RunConfig,
        vector: SharedVector,
        donor: Donor,
        rules: Rules,
        branch: Branch,
    ) -> None:
        self._endpoint, self._me, self._run = endpoint, signer.peer, run
        self._vector, self._donor, self._rules, self._branch = vector, donor, rules, branch
        self._reader = EntryReader(run, branch.organizer, signer, rules.weigh)
        size = vector.layout.size
        lost = untouched_zeros if rules.lent is None else partial(zeros_on_disk, rules.lent)
        self._coding = Coding(codec_of(run.averaging.compression), Feedback(size), Feedback(size, lost))
        # Kept from round to round: memory that is new each time costs more than the arithmetic.
        self._average = torch.empty(size) if rules.lent is None else None
        self._rounds: dict[int, _Pending] = {}
        self._standing: dict[str, _Pending] = {}
        self._stands = asyncio.Condition()
        self._sealing = asyncio.Lock()
        self._over: dict[str, bytes] = {}
        """The last group, and what late members hear of it."""
        self._averaged: dict[str, Averaged] = {}
        self._left_out: Tensor | None = None
        """This peer's own vector, if the last round went well without it."""
        self._heeded: Counter[tuple[str, str]] = Counter()
        """How often each has turned away from a group of the next step, which follows this link."""

    # Called by the training

    async def average(self, number: int, attempt: Attempt) -> RoundResult:
        """Average with a group that stands once `begin` is called; every way to fail becomes a result.

        :param number: names this round in the other calls
        """
        current = self._rounds[number] = _Pending(attempt)
        try:
            return await self._await_and_average(current)
        except asyncio.CancelledError:
            if not current.left:  # else they know
                await self._turn_away(current)
            return RoundResult("failed", detail="called off")
        finally:
            current.end()
            del self._rounds[number]
            # What made up a round refers to each other, and holds all that travelled. Without looking for such garbage
            # now, which is quick as long as all that is older is frozen, that of several rounds would lie about.
            gc.collect()

    async def called(self, number: int) -> None:
        """Returns when a member of the group has begun; raises RoundOver if the round ends before."""
        await asyncio.shield(self._rounds[number].called)

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

    async def _await_and_average(self, current: _Pending) -> RoundResult:
        attempt = current.attempt
        over = wire.gave_up(self._me, ())
        self._standing[attempt.id] = current
        try:
            async with self._stands:
                self._stands.notify_all()
            result = await self._all_reduce(current, attempt, await current.start)
            over = wire.gave_up(self._me, result.culprits | result.named)
            return result
        finally:
            self._over = {attempt.id: over}
            del self._standing[attempt.id]

    async def _all_reduce(self, current: _Pending, group: Attempt, start: Start) -> RoundResult:
        began = time.monotonic()
        self._donor.line_free.clear()
        round: Round | None = None
        offered = ""
        try:
            async with self._vector.awaited() as flat:
                round = await self._round(group, start, flat)
                offered = piece_of(round.entry.about) if round.entry.samples else ""
                current.round.set_result(round)
                commit = await asyncio.wait_for(round.complete(), start.limit)
                counts = offered in {piece.hash for entry in commit.value.counted for piece in entry.pieces}
                if self._average is not None:
                    self._left_out = None if counts or not offered else flat.clone()
                    flat.copy_(self._average)
            if counts or not offered:
                self._coding.sent.commit()
                if self._rules.pledges is not None:
                    self._rules.pledges.counted()
            else:
                self._coding.sent.discard()
            self._coding.averaged.commit()
            self._branch.round_took(time.monotonic() - began)
            await self._keep(group, round)
            contributions = self._reader.in_commit(commit)
            weights = dict(zip(contributions, commit.value.weights, strict=True))
            return RoundResult(
                "complete",
                commit,
                contributions,
                weights,
                offered,
                culprits=frozenset(round.culprits),
                named=frozenset(round.named),
                absent=round.absent,
                carried=self._carried(round, contributions, weights),
                seconds=time.monotonic() - began,
                longest_silence=round.longest_silence,
                upload_rate=round.upload_rate,
            )
        except GroupRefused as refusal:
            assert round is not None
            self._forget_round()
            return RoundResult(
                "refused",
                contributions=self._reader.all_of(round.present),
                offered=offered,
                detail=str(refusal),
                culprits=frozenset(round.culprits),
                named=frozenset(round.named),
                absent=round.absent,
            )
        except Exception as error:
            self._forget_round()
            detail = str(error)[:200] or repr(error)
            if round is None:
                return RoundResult("failed", detail=detail, culprits=frozenset({self._me}))
            culprits, named = frozenset(round.culprits), frozenset(round.named)
            return RoundResult("failed", round.commit, offered=offered, detail=detail, culprits=culprits, named=named)
        finally:
            self._branch.attend()
            self._donor.line_free.set()
            if round is not None and self._rules.equivocation is not None:
                pairs = [tuple(entry.to_bytes() for entry in pair) for pair in round.differing[:HANDED_IN]]
                self._rules.equivocation.hand_in(pairs)

    async def _round(self, group: Attempt, start: Start, flat: Tensor) -> Round:
        layout, world = self._vector.layout, self._branch.world
        bandwidths = [0.0 if member.client else member.bandwidth for member in group.members]
        peers = tuple(member.peer for member in group.members)
        plan = Plan.of(peers, layout, bandwidths, self._rules.row_of(len(peers)))
        await self._branch.retry()
        instance = self._branch.head.instance
        self._coding.sent.begin(float(start.mine.samples))
        contribution, coding = await self._pledge(group, start, plan, flat)
        entry = new_entry(instance, self._branch.voter(), contribution).signed(world.signer)
        setting = Setting(
            instance=instance,
            patience=start.patience,
            limit=start.limit,
            options=partial(self._options, start, instance.step),
            signer=world.signer,
            verifier=world.verifier,
            random=world.random,
            check=partial(self._check, group.id, instance.step),
            unseal=partial(self._unseal, plan.chunks),
        )
        keep = in_memory if self._rules.lent is None else OnDisk(self._rules.lent)
        opening = partial(self._opening, group.id)
        made = self._rules.round(
            setting,
            plan,
            entry,
            Holding(flat, self._average, keep),
            coding,
            self._rules.make_reducer,
            self._branch,
            lambda peer: self._endpoint.open(peer, AveragingService, opening(made.introduction)),
        )
        self._branch.attend(lambda: made.participant)
        return made

    def _check(self, group: str, step: int, entry: Entry) -> None:
        """Raises ValueError for an entry that no honest peer brings to this group."""
        contribution = self._reader.read(entry, step)
        if isinstance(contribution, Pledged) and contribution.group != group:
            raise ValueError(f"{entry.peer} brings a pledge of another round")

    def _opening(self, group: str, introduction: bytes) -> bytes:
        return encode(Opening(group=group, introduction=introduction))

    async def _pledge(self, group: Attempt, start: Start, plan: Plan, flat: Tensor) -> tuple[Contribution, Coding]:
        """What this peer introduces itself with, and how it writes down what it sends."""
        pledges, loop = self._rules.pledges, asyncio.get_running_loop()
        if pledges is None:
            return start.mine, self._coding
        async with self._sealing:
            pledged, sealed = await loop.run_in_executor(
                None, pledges.seal, group.id, start.mine, start.work, plan, flat, self._coding
            )
        return pledged, replace(self._coding, sealed=sealed)

    def _options(self, start: Start, step: int, entries: Sequence[Entry]) -> Options:
        """Of a group with these entries; raises GroupRefused if it cannot know what a batch holds."""
        least = self._run.global_batch
        if self._run.stage is not None:
            contributions = self._reader.all_of(entries, step).values()
            said = [each.batch for each in contributions if each.batch is not None]
            if start.mine.batch is None and not said:
                raise GroupRefused("nobody says what the batch holds")
            least = min(said) if start.mine.batch is None else start.mine.batch
        patience = start.patience.usual
        return Options(minimum=least, weigh=self._reader.weights, patience=patience, limit=start.limit)

    def _unseal(self, chunks: Sequence[tuple[int, int]], entry: Entry, number: int, content: bytes) -> bytes:
        contribution = self._reader.read(entry)
        if not isinstance(contribution, Pledged):
            return content
        path, encoded = wire.read_with_path(content)
        if not contribution.sends(number, chunks, encoded, path):
            raise ValueError(f"part {number} is not what was pledged")
        return encoded

    def _carried(
        self, round: Round, contributions: Mapping[str, Contribution], weights: Mapping[str, int]
    ) -> dict[str, Carried]:
        """What the lines of those have carried who reduced and gave no samples."""
        names = {entry.peer: self._reader.read(entry).name for entry in round.present if not entry.samples}
        sizes = [
            self._coding.of_gradients(begin, self._vector.layout).byte_count(end - begin) + len(average)
            for (begin, end), average in zip(round.plan.chunks, round.average, strict=True)
        ]
        found = Counter[str]()
        for owners, row in round.owners:
            found.update(carried(owners, names.keys(), {p: w for p, w in weights.items() if p in row}, sizes))
        return {peer: Carried(bytes=size, name=names[peer]) for peer, size in found.items()}

    async def _keep(self, group: Attempt, round: Round) -> None:
        """Hold the average for members that missed it."""
        commit = round.commit
        assert commit is not None
        if self._rules.pledges is not None and self._me == self._branch.organizer:
            self._averaged[group.id] = Averaged(round.makers, tuple(round.plan.chunks), tuple(round.average))
            for old in list(self._averaged)[:-AVERAGED_ROUNDS]:
                del self._averaged[old]
        average = RecentAverage(
            after=commit.previous,
            round=commit.link,
            step=commit.value.step,
            metadata=files.encode(commit),
            parts=tuple(round.average),
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

    async def _turn_away(self, current: _Pending) -> None:
        group = current.attempt
        if not current.start.cancelled() or self._run.stage is None:
            return  # it has begun, or the others go on without this member
        opening = encode(Opening(group=group.id, introduction=b""))

        async def tell(peer: str) -> None:
            with suppress(OSError):
                async with self._endpoint.open(peer, AveragingService, opening) as stream:
                    await stream.closed()

        others = [m.peer for m in group.members if not m.client and m.peer != self._me]
        await asyncio.gather(*map(tell, others))

    def _left_by(self, peer: str, current: _Pending) -> None:
        """The others cannot go on without this one: leave the group as well. Whoever does so all the time is waited for
        until it counts as gone."""
        group = current.attempt
        key = group.previous, peer
        self._heeded = Counter({each: times for each, times in self._heeded.items() if each[0] == group.previous})
        if peer in group.peers and self._heeded[key] < HEEDED:
            self._heeded[key] += 1
            current.left = True
            current.call_off()

    # Called by the other members

    async def serve(self, peer: str, stream: Stream) -> None:
        """A member sends its gradients; who begins before us also tells us that it is time."""
        opening = await stream.receive_question(Opening, _MAX_OPENING_BYTES)
        with suppress(TimeoutError):  # it may know of the group a moment before this peer's training does
            async with asyncio.timeout(STANDS_SECONDS), self._stands:
                await self._stands.wait_for(lambda: opening.group in self._standing.keys() | self._over.keys())
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
            round = await asyncio.shield(current.round)
        except RoundOver:
            await stream.send(self._over.get(opening.group, wire.gave_up(self._me, ())))
            await stream.closed()
            return
        await round.serve(peer, opening.introduction, stream)
