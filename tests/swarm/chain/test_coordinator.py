"""Resets are written, taken and told in this order; peers of two branches come to one; parts stay together."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest

from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.chain.anchor import Anchor
from dedloc_kit.swarm.chain.coordinator import Coordinator, Part
from dedloc_kit.swarm.chain.follow import offer
from dedloc_kit.swarm.chain.service import ChainService
from dedloc_kit.swarm.chain.store import ChainStore
from dedloc_kit.swarm.chain.vote_file import open_votes
from dedloc_kit.swarm.consensus.chain import ChainRecord, Change
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.records import Goodbye, PartReset, Reset, Voter
from dedloc_kit.swarm.consensus.resets import Branch, Position, ResetOptions
from tests.swarm.chain.disks import FailingDisk
from tests.swarm.chain.following import follow
from tests.swarm.consensus.table import VERIFIER, digest, entry, signer, voter
from tests.swarm.consensus.test_chain import GENESIS, START, chain, commits, reset
from tests.swarm.p2p.in_memory import MemoryClock, MemoryDisk, MemoryNetwork, World, run

OPTIONS = ResetOptions(minimum=10)
LONG = commits(6)
TWO_PARTS = START.changed(
    parts=tuple(
        PartReset(part=part, previous="", state=digest(part), voters=((voter("p1"), 1), (voter("p2"), 1)))
        for part in ("first", "second")
    )
).signed(signer("organizer"))


@dataclass
class Swarm:
    """What a coordinator does to the peer around it.

    :ivar seconds: until a state is obtained
    :ivar lost: nobody has any state
    :ivar meanwhile: happens while a state is obtained
    """

    told: list[Reset] = field(default_factory=list)
    alerts: list[str] = field(default_factory=list)
    seconds: float = 0.5
    lost: bool = False
    meanwhile: tuple[ChainStore, Sequence[ChainRecord]] | None = None

    async def state(self, part: str, branch: Branch, /) -> str:
        await asyncio.sleep(self.seconds)
        if self.lost:
            raise LookupError("nobody has the state")
        if self.meanwhile is not None:
            self.meanwhile[0].adopt(self.meanwhile[1])
        return digest("state", part, branch.records[-1].link if branch.records else branch.base)

    def tell(self, reset: Reset, /) -> None:
        self.told.append(reset)

    def alert(self, reason: str, /) -> None:
        self.alerts.append(reason)


@dataclass
class Lead:
    """A coordinator and its surroundings."""

    coordinator: Coordinator
    stores: dict[str, ChainStore]
    swarm: Swarm
    me: Voter
    clock: MemoryClock = field(default_factory=MemoryClock)

    @property
    def store(self) -> ChainStore:
        return next(iter(self.stores.values()))

    async def wait(self, seconds: int, *there: str, samples: int = 5) -> list[Reset]:
        """So long, while these peers are heard every two seconds at the coordinator's heads."""
        signed = []
        for _ in range(0, seconds, 2):
            for part, store in self.stores.items():
                head = store.head
                for name in there:
                    position = Position(head.term, head.step, head.previous, samples, voter(name))
                    self.coordinator.heard(part, name, position)
            signed.append(await self.coordinator.tick({}))
            await self.clock.sleep(2)
        return [each for each in signed if each is not None]


async def lead(disk: MemoryDisk, genesis: Reset = START, adopt: Sequence[ChainRecord] = ()) -> Lead:
    clock, swarm = MemoryClock(), Swarm()
    stores = {
        part.part: await ChainStore.open(disk, genesis, part.part, "organizer", VERIFIER) for part in genesis.parts
    }
    for store in stores.values():
        store.adopt(adopt)
        await store.flush()
    votes = await open_votes(disk, [store.head for store in stores.values()], "p0", Random(0))
    parts = {part: Part(store, votes[part]) for part, store in stores.items()}
    made = Coordinator(parts, disk, clock, signer("organizer"), VERIFIER, swarm, OPTIONS)
    await made.resume()
    return Lead(made, stores, swarm, next(iter(votes.values())).me)


# The electorate is gone


def test_a_newcomer_gets_a_reset_that_is_on_disk_before_it_is_told() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        it = await lead(disk, adopt=LONG)
        (made,) = await it.wait(70, "p9")
        assert it.swarm.told == [made]
        assert (made.term, made.step, made.chosen, made.coordinator) == (1, 6, False, it.me)
        assert made.of("") == PartReset(
            part="", previous=LONG[-1].link, state=digest("state", "", LONG[-1].link), voters=((voter("p9"), 5),)
        )
        assert it.store.head.previous == made.link
        again = await lead(disk)
        assert again.store.head == it.store.head
        assert not again.swarm.told

    run(test())


def test_a_claim_of_many_samples_is_worth_one_batch() -> None:
    async def test() -> None:
        it = await lead(MemoryDisk(), adopt=LONG)
        (made,) = await it.wait(70, "p9", samples=2**53)
        assert made.of("").voters == ((voter("p9"), OPTIONS.minimum),)

    run(test())


def test_nobody_speaks_for_another_voter() -> None:
    async def test() -> None:
        it = await lead(MemoryDisk(), adopt=LONG)
        head = it.store.head
        with pytest.raises(ValueError, match="another peer"):
            it.coordinator.heard("", "p9", Position(head.term, head.step, head.previous, 5, voter("p8")))

    run(test())


def test_after_goodbyes_nobody_waits() -> None:
    async def test() -> None:
        it = await lead(MemoryDisk(), adopt=LONG)
        for name in ("p1", "p2"):
            goodbye = Goodbye(run_id="run", part="", head=LONG[-1].link, voter=voter(name))
            with pytest.raises(ValueError, match="not signed"):
                it.coordinator.said_goodbye(goodbye.signed(signer("p9")))
            with pytest.raises(ValueError, match="another run"):
                it.coordinator.said_goodbye(goodbye.changed(run_id="other").signed(signer(name)))
            with pytest.raises(ValueError, match="part"):
                it.coordinator.said_goodbye(goodbye.changed(part="other").signed(signer(name)))
            it.coordinator.said_goodbye(goodbye.signed(signer(name)))
        assert len(await it.wait(10, "p9")) == 1

    run(test())


def test_a_goodbye_of_somebody_who_does_not_vote_is_not_kept() -> None:
    async def test() -> None:
        it = await lead(MemoryDisk(), adopt=LONG)
        for name in ("p7", "p8"):
            goodbye = Goodbye(run_id="run", part="", head=LONG[-1].link, voter=voter(name))
            it.coordinator.said_goodbye(goodbye.signed(signer(name)))
        head = it.store.head
        it.store.adopt(commits(1, head, (entry(head, "p7"), entry(head, "p8"))))
        assert await it.wait(20, "p9") == []

    run(test())


def test_each_commit_begins_the_count_anew() -> None:
    async def test() -> None:
        it = await lead(MemoryDisk(), adopt=LONG[:3])
        assert await it.wait(40, "p9") == []
        it.store.adopt(LONG[:4])
        assert await it.wait(40, "p9") == []
        assert len(await it.wait(30, "p9")) == 1

    run(test())


def test_while_a_state_is_obtained_no_other_reset_is_signed() -> None:
    async def test() -> None:
        it = await lead(MemoryDisk(), adopt=LONG)
        it.swarm.seconds = 100
        first, second = await asyncio.gather(it.wait(66, "p9"), it.wait(150, "p9"))
        assert first + second == it.swarm.told
        (made,) = it.swarm.told
        assert made.of("").voters == ((voter("p9"), 5),), "those in reach when it began"

    run(test())


def test_a_commit_that_comes_meanwhile_needs_no_reset() -> None:
    async def test() -> None:
        disk = FailingDisk({}, 0)
        it = await lead(disk, adopt=LONG[:3])
        before = disk.changes
        it.swarm.meanwhile = it.store, LONG[:4]
        assert await it.wait(70, "p9") == []
        assert disk.changes == before
        assert it.store.head == chain(LONG[:4]).head
        assert not it.swarm.told

    run(test())


def test_without_the_state_nothing_is_signed() -> None:
    async def test() -> None:
        it = await lead(MemoryDisk(), adopt=LONG)
        it.swarm.lost = True
        assert await it.wait(70, "p9") == []
        it.swarm.lost = False
        assert len(await it.wait(70, "p9")) == 1

    run(test())


# Its disk


def test_with_a_full_disk_it_signs_nothing_and_says_so() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        it = await lead(disk, adopt=LONG)
        disk.full = True
        assert await it.wait(70, "p9") == []
        assert not it.swarm.told
        assert len(it.swarm.alerts) == 1
        assert it.store.head == chain(LONG).head
        with pytest.raises(OSError, match="full"):
            await it.coordinator.rollback(3)
        disk.full = False
        assert len(await it.wait(70, "p9")) == 1

    run(test())


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("at", range(1, 4))
def test_whenever_it_crashes_it_knows_what_it_has_told(at: int, done: bool) -> None:
    async def test() -> None:
        first = MemoryDisk()
        await lead(first, adopt=LONG)
        disk = FailingDisk(first.files, at, crash=True, done=done)
        it = await lead(disk)
        signed = await it.wait(70, "p9")
        assert it.swarm.told == signed
        assert disk.changes in (1, 2)
        assert len(signed) == (at > 1)
        after = MemoryDisk()
        after.files = dict(disk.files)
        again = await lead(after)
        if signed or done:
            assert again.store.head.term[0] == 1
        if signed:
            assert again.store.head == it.store.head
        (later,) = await again.wait(70, "p8")
        assert later.term == again.store.head.term[0] == 1 + bool(signed or done)
        assert later.of("").previous == again.store.chain.previous_of(later)

    run(test())


def test_a_damaged_or_foreign_reset_on_disk_is_not_taken() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        it = await lead(disk, adopt=LONG)
        await it.wait(70, "p9")
        whole = dict(disk.files)
        other_key = reset(it.store.head, 9).signed(signer("p1"))
        await files.write(disk, "reset", files.encode(other_key))
        for content in (b"", whole["reset"][:-3], whole["reset"] + b"x", whole["anchor."], disk.files["reset"]):
            disk.files = {**whole, "reset": content}
            again = await lead(disk)
            assert again.store.head == it.store.head
            assert await again.coordinator.rollback(2)

    run(test())


def test_it_never_signs_a_term_twice_even_if_it_has_lost_its_chain() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        it = await lead(disk, adopt=LONG)
        assert [made.term for made in await it.wait(70, "p9")] == [1]
        disk.files = {"reset": disk.files["reset"]}
        again = await lead(disk)
        assert again.store.head == GENESIS
        assert [made.term for made in await again.wait(70, "p9")] == [2]

    run(test())


def test_a_commit_that_comes_while_it_writes_is_not_rolled_back() -> None:
    async def test() -> None:
        class Slow(MemoryDisk):
            async def write(self, name: str, content: bytes, /) -> None:
                await super().write(name, content)
                if name == "reset":
                    it.store.adopt(LONG[:4])

        disk = Slow()
        it = await lead(disk, adopt=LONG[:3])
        assert await it.wait(70, "p9") == []
        assert (await lead(disk, adopt=LONG[:4])).store.head == it.store.head == chain(LONG[:4]).head

    run(test())


# A person's rollback


def test_a_rollback_goes_to_the_end_of_its_step() -> None:
    async def test() -> None:
        it = await lead(MemoryDisk(), adopt=LONG)
        made = await it.coordinator.rollback(4, rate=0.5)
        assert (made.step, made.chosen, made.rate, made.term) == (4, True, 0.5, 1)
        assert made.of("").previous == LONG[3].link
        assert it.store.chain.records == (*LONG[:4], made)
        assert (await it.coordinator.rollback(0)).of("").previous == START.link
        for step in (5, 99):
            with pytest.raises(ValueError, match="not among"):
                await it.coordinator.rollback(step)
        assert len(it.swarm.told) == 2

    run(test())


def test_a_step_that_is_rolled_back_meanwhile_is_none_to_go_to() -> None:
    async def test() -> None:
        it = await lead(MemoryDisk(), adopt=LONG)
        it.swarm.meanwhile = it.store, [reset(chain(LONG[:2]).head, 1)]
        with pytest.raises(ValueError, match="meanwhile"):
            await it.coordinator.rollback(4)
        assert it.store.head.step == 2

    run(test())


def test_one_record_rolls_all_parts_back() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        it = await lead(disk, TWO_PARTS)
        grown = {part: commits(4 + (part == "second"), store.head) for part, store in it.stores.items()}
        for part, store in it.stores.items():
            store.adopt(grown[part])
        made = await it.coordinator.rollback(2)
        assert {part.part: part.previous for part in made.parts} == {part: grown[part][1].link for part in it.stores}
        assert {part.state for part in made.parts} == {digest("state", p, grown[p][1].link) for p in it.stores}
        for store in it.stores.values():
            assert (store.head.step, store.head.term) == (2, (1, made.link))
        again = await lead(disk, TWO_PARTS)
        assert {part: store.head for part, store in again.stores.items()} == {p: s.head for p, s in it.stores.items()}

    run(test())


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("at", range(1, 5))
def test_a_crash_never_leaves_parts_apart(at: int, done: bool) -> None:
    async def test() -> None:
        first = MemoryDisk()
        it = await lead(first, TWO_PARTS)
        for store in it.stores.values():
            store.adopt(commits(3, store.head))
            await store.flush()
        disk = FailingDisk(first.files, at, crash=True, done=done)
        it = await lead(disk, TWO_PARTS)
        with suppress(OSError):
            await it.coordinator.rollback(1)
        after = MemoryDisk()
        after.files = dict(disk.files)
        again = await lead(after, TWO_PARTS)
        written = at > 1 or done
        assert [store.head.step for store in again.stores.values()] == [1 if written else 3] * 2
        assert len({store.head.term for store in again.stores.values()}) == 1
        whole = await lead(after, TWO_PARTS)
        assert {p: s.head for p, s in whole.stores.items()} == {p: s.head for p, s in again.stores.items()}

    run(test())


def test_if_one_part_has_lost_its_electorate_all_go_on_from_the_step_that_all_have() -> None:
    async def test() -> None:
        it = await lead(MemoryDisk(), TWO_PARTS)
        first, second = it.stores.values()
        first.adopt(commits(3, first.head))
        second.adopt(commits(2, second.head))
        (made,) = await it.wait(70, "p9")
        assert made.step == 2
        assert [store.head.step for store in it.stores.values()] == [2, 2]
        assert [part.voters for part in made.parts] == [((voter("p9"), 5),)] * 2

    run(test())


# Branches


def test_a_branch_with_more_samples_is_chosen_unless_a_person_left_it() -> None:
    for chosen in (False, True):

        async def test(chosen: bool = chosen) -> None:
            it = await lead(MemoryDisk(), adopt=[LONG[0], reset(chain(LONG[:1]).head, 1, chosen=chosen)])
            it.coordinator.offered("p1", "", tuple(LONG[1:]))
            assert it.coordinator.deadline == it.clock.now() + OPTIONS.collect
            signed = await it.wait(6)
            if chosen:
                assert not signed
                return
            assert it.store.chain.records == (*LONG, *signed)
            assert (signed[0].term, signed[0].step, signed[0].chosen) == (2, 6, False)
            assert signed[0].of("").state == digest("state", "", LONG[-1].link)

        run(test())


def test_offers_are_checked_and_one_of_a_peer_counts() -> None:
    async def test() -> None:
        it = await lead(MemoryDisk(), adopt=[LONG[0], reset(chain(LONG[:1]).head, 1)])
        with pytest.raises(ValueError, match="not valid"):
            it.coordinator.offered("p1", "", (LONG[1], LONG[1]))
        with pytest.raises(ValueError, match="part"):
            it.coordinator.offered("p1", "other", tuple(LONG[1:]))
        it.coordinator.offered("p1", "", tuple(LONG[3:]))  # it follows nothing here
        assert it.coordinator.deadline > 1e9
        assert not it.coordinator.knows("", LONG[2].link)
        it.coordinator.offered("p1", "", tuple(LONG[1:3]))
        assert it.coordinator.knows("", LONG[2].link)
        it.coordinator.offered("p1", "", tuple(LONG[1:]))
        (signed,) = await it.wait(6)
        assert signed.step == 3

    run(test())


def test_parts_choose_a_branch_together() -> None:
    async def test() -> None:
        it = await lead(MemoryDisk(), TWO_PARTS)
        old = {part: commits(4 + (part == "second"), store.head) for part, store in it.stores.items()}
        for part, store in it.stores.items():
            store.adopt(old[part])
        await it.coordinator.rollback(0)
        resets = it.swarm.told[0]
        assert resets.chosen
        it = await lead(MemoryDisk(), TWO_PARTS)
        turned = resets.changed(chosen=False).signed(signer("organizer"))
        for store in it.stores.values():
            store.adopt([turned])
        it.coordinator.offered("p1", "first", tuple(old["first"]))
        assert await it.wait(6) == [], "the other part has nothing at these steps"
        it.coordinator.offered("p1", "first", tuple(old["first"]))
        await it.wait(2)
        it.coordinator.offered("p2", "second", tuple(old["second"]))
        (signed,) = await it.wait(8)
        assert signed.step == 4
        for part, store in it.stores.items():
            assert store.chain.records == (*old[part][:4], signed)

    run(test())


# Peers


def test_peers_of_two_branches_come_to_one() -> None:
    """One stayed with the electorate, without the coordinator, which signed a reset for a newcomer."""

    async def test() -> None:
        world, disk = World(1), MemoryDisk()
        it = await lead(disk, adopt=LONG[:2])
        left: list[Change] = []
        anchor = Anchor(part="", reset=START, coordinator=START.coordinator)
        bina = ChainStore(MemoryDisk(), anchor, None, "organizer", VERIFIER, left.append)
        chand = ChainStore(MemoryDisk(), anchor, None, "organizer", VERIFIER)
        networks = {name: MemoryNetwork(world, name) for name in ("p0", "bina", "chand")}
        await ChainService(networks["p0"], it.clock, it.stores, it.coordinator).start()
        await ChainService(networks["bina"], it.clock, {"": bina}).start()
        await ChainService(networks["chand"], it.clock, {"": chand}).start()
        bina.adopt(LONG)
        left.clear()

        (alone,) = await it.wait(70, "p9")
        await follow(chand, networks["chand"], it.clock, "p0")
        assert chand.head.previous == alone.link
        await follow(chand, networks["chand"], it.clock, "bina")
        assert chand.head.previous == alone.link

        await follow(bina, networks["bina"], it.clock, "p0")
        (change,) = left
        assert change.left == tuple(LONG[2:])
        await offer(networks["bina"], it.clock, "p0", bina, change.left)
        (again,) = await it.wait(6)
        for name, store in (("bina", bina), ("chand", chand)):
            await follow(store, networks[name], it.clock, "p0")
            assert store.chain.records == (*LONG, again)
        assert bina.head == chand.head == it.store.head

    run(test())


def test_a_newcomer_that_begins_at_an_anchor_votes_with_the_others() -> None:
    async def test() -> None:
        it = await lead(MemoryDisk(), adopt=LONG)
        head = it.store.head
        anchor, commit = it.store.anchor_at(head.previous)
        new = ChainStore(MemoryDisk(), anchor, commit, "organizer", VERIFIER)
        votes = (await open_votes(MemoryDisk(), [new.head], "p1", Random(3)))[""]
        assert new.head == head
        me = votes.voter(new.head)
        counted = entry(head, "p1", 8, me.incarnation), entry(head, "p2")
        taken = commits(1, head, counted)
        for store in (it.store, new):
            store.adopt(taken)
        assert me in it.store.head.electorate
        assert new.head == it.store.head
        assert new.chain.since(head.previous) == tuple(taken)

    run(test())


def test_the_genesis_of_a_run_is_its_first_anchor() -> None:
    assert Anchor(part="", reset=START, coordinator=START.coordinator).instance(None, "organizer", VERIFIER) == GENESIS
    assert isinstance(GENESIS, Instance)
