"""Members commit to what they send before they send it, and can prove it; who lies in a proof is found."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of, read_part
from dedloc_kit.swarm.allreduce.encoding.codec import decode as decode_values
from dedloc_kit.swarm.allreduce.round import Round
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.audits.averages import FAR_OFF, averaged_again
from dedloc_kit.swarm.audits.kept import Kept
from dedloc_kit.swarm.audits.proofs import Proven
from dedloc_kit.swarm.audits.questions import Prove
from dedloc_kit.swarm.averaging.entries import new_entry
from dedloc_kit.swarm.averaging.pledges.pledges import LOTS
from dedloc_kit.swarm.averaging.pledges.proving import part_of, proven, work_of
from dedloc_kit.swarm.averaging.result import RoundResult
from dedloc_kit.swarm.averaging.service import AVERAGED_ROUNDS, Opening
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.service import Stream, decode, encode
from dedloc_kit.swarm.p2p.adapters import KeySigner
from dedloc_kit.swarm.trust.pledge import Pledged, nothing_lost
from dedloc_kit.swarm.trust.standing import Standing, signed
from tests.swarm.averaging.test_service import SAMPLES, LeavesOutTheSecond, Party
from tests.tiny import tiny_run

SIZE = 300_000


def a_party(folder: Path, compression: str = "4bit", **more: Any) -> Party:
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(SIZE, generator=generator) for _ in SAMPLES]
    averaging = {"compression": compression}
    return Party(folder, tiny_run(global_batch=8, averaging=averaging, trust={"checks": "on"}), vectors, **more)


def pledge_of(party: Party, member: int, result: RoundResult) -> Pledged:
    found = result.contributions[party.peers[member]]
    assert isinstance(found, Pledged)
    return found


def decode_part(encoded: bytes) -> torch.Tensor:
    part = read_part(encoded)
    return decode_values(part, part.size[0])


def asked(party: Party, member: int, pledged: Pledged, part: int) -> Proven:
    question = Prove(group=pledged.group, part=part)
    shown = party.pledges[member].prove(question)
    assert shown is not None
    layout = party.shared[0].layout
    return proven(pledged, question, shown, layout, codec_of(party.run.averaging.compression))


@pytest.mark.parametrize("compression", ["4bit", "8bit", "float16", "none"])
def test_of_every_part_the_gradient_that_was_compressed_can_be_proven_over_three_rounds(
    tmp_path: Path, compression: str
) -> None:
    async def check() -> None:
        party = a_party(tmp_path, compression)
        roots = [nothing_lost(SIZE)] * len(SAMPLES)
        for _ in range(3):
            results = await party.results()
            assert [result.outcome for result in results] == ["complete"] * 2, results
            assert torch.equal(*party.averages)
            for member, vector in enumerate(party.vectors):
                pledged = pledge_of(party, member, results[0])
                assert pledged.before == roots[member], "what was lost goes on into the next round"
                roots[member] = pledged.after
                seen = torch.zeros(SIZE, dtype=torch.bool)
                for part in range(len(party.shared[0].layout.grid())):
                    found = asked(party, member, pledged, part)
                    true = vector[found.window.begin : found.window.end]
                    assert torch.linalg.vector_norm(found.implied - true) <= 1e-6 * torch.linalg.vector_norm(true)
                    assert [line.content for line in found.work] == list(party.work(SAMPLES[member]))
                    seen[found.window.begin : found.window.end] = True
                assert seen.float().mean() > 0.7, "but for parts that lie in two pieces"

    asyncio.run(check())


def test_neither_a_round_that_failed_nor_one_without_this_peer_changes_what_it_has_lost(tmp_path: Path) -> None:
    async def check() -> None:
        party = a_party(tmp_path)
        first = pledge_of(party, 1, (await party.results())[0])
        party.samples = (2, 4)
        assert [result.outcome for result in await party.results()] == ["refused"] * 2
        party.samples, party.round = SAMPLES, LeavesOutTheSecond
        without = (await party.results())[0]
        assert (without.outcome, *without.absent) == ("complete", party.peers[1])
        party.round = Round
        last = pledge_of(party, 1, (await party.results())[0])
        assert last.before == first.after != first.before
        found = asked(party, 1, last, 1)
        torch.testing.assert_close(found.implied, party.vectors[1][found.window.begin : found.window.end])

    asyncio.run(check())


def test_another_state_has_lost_nothing_of_it(tmp_path: Path) -> None:
    async def check() -> None:
        party = a_party(tmp_path)
        await party.results()
        for service in party.services.values():
            await service.forget_feedback()
        pledged = pledge_of(party, 0, (await party.results())[0])
        assert pledged.before == nothing_lost(SIZE)
        assert asked(party, 0, pledged, 0).work

    asyncio.run(check())


def test_who_brings_nothing_commits_to_nothing_and_gets_the_average(tmp_path: Path) -> None:
    async def check() -> None:
        party = a_party(tmp_path, samples=(0, 8))
        pledged = pledge_of(party, 0, (await party.results())[0])
        assert {pledged.parts, pledged.before, pledged.after, pledged.work} == {bytes(32)}
        assert torch.equal(*party.averages)
        assert party.pledges[0].prove(Prove(group=pledged.group, part=0)) is None

    asyncio.run(check())


def test_only_the_last_few_rounds_can_be_shown_and_a_full_disk_costs_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    async def check() -> None:
        party = a_party(tmp_path)
        groups = [pledge_of(party, 0, (await party.results())[0]).group for _ in range(LOTS + 1)]
        shown = [party.pledges[0].prove(Prove(group=group, part=0)) is not None for group in groups]
        assert shown == [False] + [True] * LOTS
        monkeypatch.setattr(Kept, "put", full)
        result = (await party.results())[0]
        assert result.outcome == "complete"
        assert party.pledges[0].prove(Prove(group=pledge_of(party, 0, result).group, part=0)) is None
        assert party.pledges[0].prove(Prove(group=groups[-1], part=0)) is not None

    asyncio.run(check())


def test_who_shows_what_is_confirmed_of_it_counts_for_it_and_who_makes_it_up_for_nothing(tmp_path: Path) -> None:
    def standing(party: Party, by: Signer, member: int, confirmed: int) -> None:
        given = Standing(run_id=party.run.run_id, peer=party.peers[member], confirmed=confirmed)
        party.pledges[member].stand(confirmed, signed(by, given))

    async def check() -> None:
        generator = torch.Generator().manual_seed(0)
        _, few, many = vectors = [torch.randn(SIZE, generator=generator) for _ in range(3)]
        run = tiny_run(global_batch=8, averaging={"compression": "none"}, trust={"checks": "on"})
        party = Party(tmp_path, run, vectors, samples=(0, *SAMPLES))
        organizer = party.signers[0]
        torch.testing.assert_close(await party.meet(), (8 * few + 24 * many) / 32)
        standing(party, organizer, 2, 6)
        torch.testing.assert_close(await party.meet(), (3 * few + 12 * many) / 15)
        standing(party, organizer, 1, 100)
        torch.testing.assert_close(await party.meet(), (8 * few + 12 * many) / 20)
        standing(party, party.signers[2], 2, 100)
        party.patience = Patience(3.0, 3.0)
        *others, liar = await party.results()
        assert liar.outcome == "failed"
        assert all(party.peers[2] not in result.contributions for result in others)

    asyncio.run(check())


def test_where_members_are_not_checked_their_entries_say_nothing_of_pledges(tmp_path: Path) -> None:
    async def check() -> None:
        party = Party(tmp_path, tiny_run(global_batch=8, averaging={"compression": "4bit"}), [torch.ones(20_000)] * 2)
        result = (await party.results())[0]
        assert result.commit is not None
        for entry in result.commit.value.counted:
            mine = Contribution.model_validate_json(entry.about)
            assert list(json.loads(entry.about)) == list(Contribution.model_fields)
            assert result.contributions[entry.peer] == mine

    asyncio.run(check())


def test_of_its_own_share_too_what_a_peer_has_pledged_is_what_counts(tmp_path: Path) -> None:
    async def check() -> None:
        party = a_party(tmp_path)
        results = await party.results()
        part = next(n for n in range(16) if asked(party, 0, pledge_of(party, 0, results[0]), n).window.begin == 0)
        group = pledge_of(party, 0, results[0]).group
        shown = [pledges.prove(Prove(group=group, part=part)) for pledges in party.pledges]
        sent = [decode_part(each.part) for each in shown if each is not None]
        mean = (SAMPLES[0] * sent[0]).add_(sent[1], alpha=SAMPLES[1]).div_(sum(SAMPLES))  # to the bit, as reducers do
        way = codec_of("4bit").averages
        assert torch.equal(party.averages[0][: len(mean)], way.extract(way.compress(mean)))

    asyncio.run(check())


def test_what_all_of_six_members_have_pledged_is_averaged(tmp_path: Path) -> None:
    async def check() -> None:
        samples = (8, 24, 4, 6, 0, 10)
        run = tiny_run(global_batch=8, averaging={"compression": "8bit"}, trust={"checks": "on"})
        vectors = [torch.randn(SIZE, generator=torch.Generator().manual_seed(n)) for n in range(6)]
        party = Party(tmp_path, run, vectors, samples=samples)
        results = await party.results()
        assert [(result.outcome, len(result.contributions)) for result in results] == [("complete", 5)] * 6, results
        averages = party.averages
        assert all(torch.equal(average, averages[0]) for average in averages)
        true = sum(n * vector for n, vector in zip(samples, vectors, strict=True)) / sum(samples)
        torch.testing.assert_close(averages[0], true, rtol=0.0, atol=0.05)
        for member in (0, 1, 2, 3, 5):
            found = asked(party, member, pledge_of(party, member, results[0]), 0)
            torch.testing.assert_close(found.implied, vectors[member][found.window.begin : found.window.end])

    asyncio.run(check())


class Lies(Party):
    """The last member brings another pledge than its own to some of the others.

    :ivar other: what it changes
    :ivar told: to whom
    """

    other: dict[str, Any]
    told: Sequence[int]

    @asynccontextmanager
    async def line(self, me: str, peer: str, service: object, first: bytes) -> AsyncIterator[Stream]:
        liar = self.signers[-1]
        if me == liar.peer and self.peers.index(peer) in self.told:
            opening = Opening.parse(decode(first))
            promised, entry = wire.read_introduction(opening.introduction)
            pledged = Pledged.model_validate_json(entry.about).model_copy(update=self.other)
            instance = self.branches[liar.peer].head.instance
            another = new_entry(instance, entry.voter, pledged).signed(KeySigner(liar))
            first = encode(opening.model_copy(update={"introduction": wire.introduction(promised, another)}))
        async with super().line(me, peer, service, first) as stream:
            yield stream


@pytest.mark.parametrize(
    ("other", "told"), [({"work": bytes(32)}, [0]), ({"work": bytes(32)}, [1]), ({"group": "ab" * 20}, [0, 1, 2])]
)
def test_who_brings_two_pledges_or_that_of_another_round_is_left_out_and_no_reducer_is_blamed(
    tmp_path: Path, other: dict[str, Any], told: Sequence[int]
) -> None:
    async def check() -> None:
        run = tiny_run(global_batch=8, averaging={"compression": "4bit"}, trust={"checks": "on"})
        party = Lies(tmp_path, run, [torch.ones(20_000)] * 4, samples=(8, 8, 8, 8))
        party.other, party.told = other, told
        results = (await party.results())[:3]
        liar = party.peers[3]
        assert [(result.outcome, [*result.absent]) for result in results] == [("complete", [liar])] * 3, results
        assert all(result.culprits | result.named <= {liar} for result in results)
        assert torch.equal(*party.averages[:2])

    asyncio.run(check())


def test_a_vector_that_cannot_be_encoded_is_the_fault_of_who_brings_it(tmp_path: Path) -> None:
    async def check() -> None:
        run = tiny_run(global_batch=8, averaging={"compression": "4bit"}, trust={"checks": "on"})
        broken = torch.full((20_000,), float("nan"))
        party = Party(tmp_path, run, [torch.ones(20_000), torch.ones(20_000), broken], samples=(8, 8, 8))
        party.patience = Patience(3.0, 4.0)
        results, liar = await party.results(), party.peers[2]
        assert [result.outcome for result in results] == ["complete", "complete", "failed"], results
        assert all(result.culprits == {liar} for result in results), results

    asyncio.run(check())


@pytest.mark.parametrize("compression", ["4bit", "8bit", "none"])
def test_the_organizer_averages_again_what_each_reducer_has_averaged(tmp_path: Path, compression: str) -> None:
    party = a_party(tmp_path, compression)
    peers = party.peers
    organizer = party.services[peers[0]]

    async def meet() -> None:
        groups = list[str]()
        for _ in range(AVERAGED_ROUNDS + 1):
            results = await party.results()
            assert [result.outcome for result in results] == ["complete"] * 2, results
            pledges = [pledge_of(party, member, results[0]) for member in range(len(peers))]
            groups.append(pledges[0].group)
            averaged = await organizer.averaged(groups[-1])
            assert averaged is not None
            for pledges_of, pledged in zip(party.pledges, pledges, strict=True):
                shown_work = pledges_of.work_of(pledged.group)
                assert shown_work is not None
                assert len(work_of(pledged, shown_work)) == pledged.microbatches
            assert set(averaged.makers) == set(peers)
            for number, chunk in enumerate(averaged.chunks):
                question = Prove(group=pledges[0].group, part=number, only="part")
                shown = [pledges_of.prove(question) for pledges_of in party.pledges]
                parts = [part_of(p, number, chunk, s) for p, s in zip(pledges, shown, strict=True) if s is not None]
                right = averaged_again(parts, [p.samples for p in pledges], party.run.trust)
                made = decode_part(averaged.messages[number])
                off = float((made - right).norm() / right.norm())
                assert off < (1e-6 if compression == "none" else FAR_OFF / 2)
                with pytest.raises(ValueError, match="committed"):
                    part_of(pledges[0], number, chunk, shown[1])  # type: ignore[arg-type]
        assert await organizer.averaged("ab" * 20) is None
        assert [await organizer.averaged(group) is not None for group in groups] == [False] + [True] * AVERAGED_ROUNDS

    asyncio.run(meet())
