"""One round after the other among services in one process, over pairs of sockets instead of libp2p."""

import asyncio
import gc
import socket
import time
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.train.flat import FlatLayout, SharedVector
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.round import Round
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.audits.kept import Kept
from dedloc_kit.swarm.averaging.pledges.introduced_rounds import IntroducedRounds
from dedloc_kit.swarm.averaging.pledges.pledges import LOTS, Pledges
from dedloc_kit.swarm.averaging.result import RoundResult
from dedloc_kit.swarm.averaging.service import HEEDED, AveragingService, Opening, Start, rules_of
from dedloc_kit.swarm.chain.branch import Branch, World
from dedloc_kit.swarm.consensus.events import Event, PartsComplete, PartsLost
from dedloc_kit.swarm.consensus.records import Commit
from dedloc_kit.swarm.consensus.resets import ResetOptions
from dedloc_kit.swarm.gathering.messages import Attempt, Member
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.service import Stream, encode
from dedloc_kit.swarm.p2p.adapters import KeySigner, KeyVerifier
from dedloc_kit.swarm.p2p.local import SystemClock
from dedloc_kit.swarm.transfer.contents import RecentAverage, StoredAverage
from dedloc_kit.swarm.trust.pledge import Work
from tests.identities import an_identity
from tests.swarm.p2p import in_memory
from tests.tiny import tiny_run

SAMPLES = (8, 24)


class Party:
    """Members that meet in every round; the first one is the coordinator.

    :ivar lent: who only lends a line, and where it keeps what comes
    :ivar pledges: of each member, where members are checked
    :ivar batch: what each says that it holds, in a stage
    """

    def __init__(
        self,
        folder: Path,
        run: RunConfig,
        vectors: Sequence[Tensor],
        round: type[Round] = Round,
        samples: Sequence[int] = SAMPLES,
        lent: dict[int, Path] | None = None,
    ) -> None:
        self.round, self.samples, self.lent, self.previous = round, samples, lent or {}, ""
        self.run, self.vectors, self.number, self._folder = run, vectors, 0, folder
        self.kept: list[RecentAverage | StoredAverage] = []
        self.pledges: list[Pledges] = []
        self.patience = Patience(30.0, 30.0)
        self.batch: Sequence[int | None] = (None,) * len(vectors)
        signers = [Signer(an_identity(folder / str(number))) for number in range(len(vectors))]
        self.signers = sorted(signers, key=lambda signer: signer.peer)
        layout = FlatLayout.of([vectors[0]])
        self.shared = [SharedVector(layout) for _ in vectors]
        self._world = in_memory.World(1)
        self.branches = {signer.peer: self._branch(signer) for signer in self.signers}
        self.services = {
            signer.peer: self._service(signer, vector) for signer, vector in zip(self.signers, self.shared, strict=True)
        }
        self._anchored = False

    @property
    def peers(self) -> list[str]:
        return [signer.peer for signer in self.signers]

    @property
    def averages(self) -> list[Tensor]:
        """What lies in the vector of each."""
        found = list[Tensor]()
        for shared in self.shared:
            with shared.held() as flat:
                found.append(flat.clone())
        return found

    def _branch(self, signer: Signer) -> Branch:
        network = in_memory.MemoryNetwork(self._world, signer.peer)
        disk = in_memory.MemoryDisk()
        world = World(network, SystemClock(), disk, self._world.random, KeySigner(signer), KeyVerifier())
        return Branch(self.run.run_id, self.signers[0].peer, world, ResetOptions(self.run.global_batch))

    def _service(self, signer: Signer, vector: SharedVector) -> AveragingService:
        endpoint: Any = SimpleNamespace(open=lambda *where: self.line(signer.peer, *where))
        donor: Any = SimpleNamespace(line_free=asyncio.Event(), keep=self.kept.append)
        make: Any = lambda *arguments: self.round(*arguments)  # noqa: E731
        rules = replace(rules_of(self.run), round=make, lent=self.lent.get(self.signers.index(signer)))
        if self.run.trust.checks == "on":
            rounds = IntroducedRounds(self._folder / f"rounds of {signer.peer}")
            self.pledges.append(Pledges(Kept(self._folder / f"pledged by {signer.peer}", LOTS), rounds))
            rules = replace(rules, pledges=self.pledges[-1])
        return AveragingService(endpoint, signer, self.run, vector, donor, rules, self.branches[signer.peer])

    async def _anchor(self) -> int:
        """All stand at the coordinator's state, if they have not begun yet; the step that they decide on."""
        first, *others = self.branches.values()
        if not self._anchored:
            head = await first.begin(0, "", "7" * 64)
            for branch in others:
                await branch.load(head.anchor)
            self._anchored = True
        return first.head.instance.step

    @property
    def attempt(self) -> Attempt:
        """The group that meets now."""
        members = tuple(Member(peer=peer, bandwidth=1.0) for peer in sorted(self.peers))
        return Attempt(nonce=f"{self.number:032x}", previous=self.previous, members=members)

    @asynccontextmanager
    async def line(self, me: str, peer: str, _: object, first: bytes) -> AsyncIterator[Stream]:
        here, there = [Stream(*await asyncio.open_connection(sock=end)) for end in socket.socketpair()]
        serving = asyncio.create_task(self.services[peer].serve(me, there))
        serving.add_done_callback(lambda _: there.close())
        try:
            await here.send(first)
            yield here
        finally:
            here.close()

    def work(self, samples: int) -> tuple[bytes, ...]:
        """Of a member, in this round: microbatches of half of its samples."""
        half, block = samples // 2, 8 * self.number
        sizes = ((block, half), (block + 1, samples - half)) if self.pledges else ()
        return tuple(Work(block, None, 0, size, self.number - 1).content for block, size in sizes if size)

    async def meet(self) -> Tensor:
        """The average of one round, which all have."""
        results = await self.results()
        assert [result.outcome for result in results] == ["complete"] * len(results), results
        averages = self.averages
        assert all(torch.equal(average, averages[0]) for average in averages)
        return averages[0]

    async def results(self) -> list[RoundResult]:
        """What becomes of one round, as each of them sees it; who has a commit takes the step."""
        self.number += 1
        step = await self._anchor()
        tasks = []
        members = zip(self.signers, self.shared, self.vectors, self.samples, self.batch, strict=True)
        for signer, shared, own, samples, batch in members:
            with shared.held() as flat:
                flat.copy_(own)
            mine = Contribution(
                run_id=self.run.run_id,
                step=step,
                session="ab",
                samples=samples,
                session_samples=samples * self.number,
                loss=1.0,
                name="",
                time=time.time(),
                batch=batch,
            )
            service = self.services[signer.peer]
            tasks.append(self.stand(signer.peer))
            await asyncio.sleep(0)  # it is known from here on
            await service.begin(0, Start(mine, self.patience, 60.0, self.work(samples)))
        results = list(await asyncio.gather(*tasks))
        for branch, result in zip(self.branches.values(), results, strict=True):
            if isinstance(result.commit, Commit):
                await branch.take([result.commit])
        return results

    def stand(self, peer: str) -> asyncio.Task[RoundResult]:
        return asyncio.create_task(self.services[peer].average(0, self.attempt))

    async def group_ends(self, says: str = "") -> bool:
        """Does the second member leave a group that stands, if the first one does, or somebody says that it does?"""
        first, second = self.services
        tasks = [self.stand(peer) for peer in (first, second)]
        await asyncio.sleep(0)
        if says:
            opening = encode(Opening(group=self.attempt.id, introduction=b""))
            async with self.line(says, second, None, opening) as stream:
                await stream.closed()
        else:
            await self.services[first].call_off(0)
            await tasks[0]  # then it has told the others
        ends = tasks[1].cancelling() > 0
        for service in self.services.values():
            await service.call_off(0)
        await asyncio.gather(*tasks)
        return ends


class LeavesOutTheSecond(Round):
    """Its reducers say that the second one's parts are not there."""

    def post(self, *events: Event) -> None:
        second = next((entry.peer for entry in self.present if entry.samples == SAMPLES[1]), "")
        super().post(
            *(
                PartsLost(second) if isinstance(event, PartsComplete) and event.member == second else event
                for event in events
            )
        )


def test_who_is_left_out_takes_the_average_and_gets_its_own_vector_back_for_the_next_round(tmp_path: Path) -> None:
    vectors = [torch.full((20_000,), 1.0), torch.full((20_000,), 5.0)]

    async def check() -> None:
        run = tiny_run(global_batch=SAMPLES[0], averaging={"compression": "none"})
        party = Party(tmp_path, run, vectors, LeavesOutTheSecond)
        assert torch.equal(await party.meet(), vectors[0])
        for service in party.services.values():
            await service.put_back()
        assert [float(average[0]) for average in party.averages] == [1.0, 5.0], "the first one took the average"

    asyncio.run(check())


def test_a_member_that_comes_late_is_told_at_once_that_the_last_group_is_over(tmp_path: Path) -> None:
    run = tiny_run(global_batch=SAMPLES[0], averaging={"compression": "none"})
    party = Party(tmp_path, run, [torch.ones(20_000)] * 2)

    async def late() -> wire.Kind:
        await party.meet()
        first, second = party.peers
        opening = encode(Opening(group=party.attempt.id, introduction=b"late"))
        async with party.line(second, first, None, opening) as stream, asyncio.timeout(5.0):
            return wire.Kind((await stream.receive(1024))[0])

    assert asyncio.run(late()) == wire.Kind.GAVE_UP


def test_a_member_that_begins_before_another_one_knows_of_the_group_is_waited_for(tmp_path: Path) -> None:
    run = tiny_run(global_batch=SAMPLES[0], averaging={"compression": "none"})
    party = Party(tmp_path, run, [torch.ones(20_000)] * 2)

    async def called() -> None:
        party.number = 1
        first, second = party.peers
        opening = encode(Opening(group=party.attempt.id, introduction=b"early"))
        async with party.line(second, first, None, opening):
            await asyncio.sleep(0.1)  # it has come
            stands = party.stand(first)
            await asyncio.sleep(0)
            async with asyncio.timeout(5.0):
                await party.services[first].called(0)
            stands.cancel()
            await asyncio.wait([stands])

    asyncio.run(called())


@pytest.mark.parametrize(
    ("batch", "outcomes"),
    [
        ((None, None), ("refused", "refused")),
        ((None, sum(SAMPLES)), ("complete", "complete")),
        ((None, sum(SAMPLES) + 1), ("refused", "refused")),
        ((sum(SAMPLES), 0), ("complete", "complete")),
    ],
    ids=["nobody says", "one says", "there is less", "less is said"],
)
def test_a_stage_takes_a_step_with_what_its_batch_holds_as_a_member_says_who_knows_that(
    tmp_path: Path, batch: tuple[int | None, int | None], outcomes: tuple[str, str]
) -> None:
    run = tiny_run(global_batch=2 * sum(SAMPLES), averaging={"compression": "none"}).of_stage(0)
    party = Party(tmp_path, run, [torch.ones(20_000)] * 2)
    party.batch = batch
    assert tuple(result.outcome for result in asyncio.run(party.results())) == outcomes


def test_who_turns_away_from_the_group_of_a_stage_is_waited_for_by_nobody_unless_it_does_so_all_the_time(
    tmp_path: Path,
) -> None:
    party = Party(tmp_path, tiny_run(averaging={"compression": "none"}).of_stage(0), [torch.ones(20_000)] * 2)

    async def check() -> None:
        first = next(iter(party.services))
        assert not await party.group_ends("a stranger")
        assert await party.group_ends()
        for _ in range(HEEDED - 1):
            assert await party.group_ends(first)
        assert not await party.group_ends(first)
        party.previous = "ab" * 32
        assert await party.group_ends(first)

    asyncio.run(check())


@pytest.mark.parametrize(("global_batch", "outcome"), [(SAMPLES[0], "complete"), (SAMPLES[0] + 1, "refused")])
def test_whether_a_round_that_left_somebody_out_is_refused_or_not_all_say_who_it_was(
    tmp_path: Path, global_batch: int, outcome: str
) -> None:
    run = tiny_run(global_batch=global_batch, averaging={"compression": "none"})
    party = Party(tmp_path, run, [torch.ones(20_000)] * 2, LeavesOutTheSecond)
    found = asyncio.run(party.results())
    assert [(result.outcome, result.absent) for result in found] == [(outcome, {party.peers[1]: "was not counted"})] * 2


ROUNDS = 24


def test_who_lends_a_line_has_on_its_disk_what_it_keeps_for_others_and_takes_no_average(tmp_path: Path) -> None:
    async def meet() -> Party:
        run = tiny_run(global_batch=24, averaging={"compression": "4bit"})
        lent = {0: tmp_path / "lent"}
        party = Party(tmp_path, run, [torch.zeros(20_000), torch.ones(20_000)], samples=(0, 24), lent=lent)
        assert [result.outcome for result in await party.results()] == ["complete"] * 2
        return party

    party = asyncio.run(meet())
    lent, own = party.averages
    assert not lent.any(), "the memory of its vector is never touched"
    assert own.sum() > 0
    stored, kept = sorted(party.kept, key=lambda average: isinstance(average, RecentAverage))
    assert isinstance(stored, StoredAverage)
    assert isinstance(kept, RecentAverage)
    assert (stored.content().metadata, stored.content().data) == (kept.content().metadata, kept.content().data)
    assert not list((tmp_path / "lent").iterdir()), "files without names"


def test_of_a_round_that_is_over_nothing_stays_in_memory_once_the_next_one_is(tmp_path: Path) -> None:
    made = list[weakref.ref[Round]]()

    class Watched(Round):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(weakref.ref(self))

    async def alive() -> list[bool]:
        party = Party(tmp_path, tiny_run(global_batch=32), [torch.ones(100)] * 2, Watched)
        for _ in range(3):
            await party.meet()
        return [each() is not None for each in made]

    gc.disable()
    try:
        assert not any(asyncio.run(alive())[:4])
    finally:
        gc.enable()


def test_over_many_rounds_the_mean_of_what_arrives_comes_to_that_of_what_was_given(tmp_path: Path) -> None:
    # Four bits round the same numbers always in the same way.
    generator = torch.Generator().manual_seed(0)
    vectors = [0.2 * torch.rand(20_000, generator=generator) for _ in SAMPLES]
    for vector in vectors:
        vector[::10] = 1.0
    truth = sum(n * vector for n, vector in zip(SAMPLES, vectors, strict=True)) / sum(SAMPLES)

    async def errors() -> tuple[float, float]:
        party = Party(tmp_path, tiny_run(global_batch=sum(SAMPLES), averaging={"compression": "4bit"}), vectors)
        arrived = [await party.meet() for _ in range(ROUNDS)]
        mean = torch.stack(arrived).double().mean(0)
        return tuple(float((found - truth).abs().max()) for found in (arrived[0], mean))  # type: ignore[return-value]

    once, on_average = asyncio.run(errors())
    assert once > 0.05, "one round alone is coarse"
    assert on_average < 0.015, "two residuals, spread over all rounds; without either feedback it is 0.05"
