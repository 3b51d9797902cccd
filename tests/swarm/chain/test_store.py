"""The chain on disk: after a crash at any moment a valid prefix is there; damaged and foreign files are none."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.chain.anchor import Anchor
from dedloc_kit.swarm.chain.store import ChainStore
from dedloc_kit.swarm.consensus.chain import KEPT, ChainRecord
from dedloc_kit.swarm.consensus.records import Commit
from dedloc_kit.swarm.p2p.local import FolderDisk
from dedloc_kit.swarm.p2p.seams import Disk
from tests.swarm.chain.disks import FailingDisk
from tests.swarm.consensus.table import VERIFIER, decided, digest, entry, signer, voter
from tests.swarm.consensus.test_chain import GENESIS, START, chain, commits, reset
from tests.swarm.p2p.in_memory import MemoryDisk, run


async def opened(disk: Disk, kept_bytes: int = 2**30) -> ChainStore:
    return await ChainStore.open(disk, START, "", "organizer", VERIFIER, kept_bytes=kept_bytes)


def links(records: tuple[ChainRecord, ...] | list[ChainRecord]) -> list[str]:
    return [record.link for record in records]


LONG = commits(8)
AFTER_THREE = chain(LONG[:3]).head
BRANCH = [reset(AFTER_THREE, 1), *commits(2, AFTER_THREE.after(reset(AFTER_THREE, 1), VERIFIER))]
SIZE = len(LONG[0].to_bytes())


def test_a_chain_outlives_restarts_and_rollbacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(disk: Disk) -> None:
        store = await opened(disk)
        for record in LONG:
            store.adopt([record])
            assert await store.flush()
        store = await opened(disk)
        assert links(store.chain.records) == links(LONG)
        assert links(store.adopt(BRANCH).left) == links(LONG[3:])
        assert await store.flush()
        store = await opened(disk)
        assert links(store.chain.records) == links([*LONG[:3], *BRANCH])
        assert store.head == chain([*LONG[:3], *BRANCH]).head

    run(test(MemoryDisk()))
    folder = FolderDisk(tmp_path)
    asyncio.run(test(folder))
    folder.close()
    assert not caplog.records, "what was left is no damage"


async def a_story(store: ChainStore) -> list[list[str]]:
    """Grows, rolls back, drops old records, and begins anew; returns the links that were a branch at some time."""
    branches = [links(store.chain.records)]
    more = commits(4, chain([*LONG[:3], *BRANCH]).head)
    for records in ([record] for record in [*LONG, *more]):
        if records == [more[0]]:
            store.adopt(BRANCH)
            branches.append(links([*LONG[:3], *BRANCH]))
            await store.flush()
        store.adopt(records)
        branches.append(links([*LONG[:3], *BRANCH, *more] if records[0] in more else LONG))
        await store.flush()
    where = chain([*LONG[:3], *BRANCH, *more]).head
    far = commits(9, where)
    anchor = Anchor(part="", reset=BRANCH[0], coordinator=voter("p0"))  # type: ignore[arg-type]
    assert isinstance(far[6], Commit)
    store.restart(anchor, far[6])
    await store.flush()
    store.adopt(far[7:])
    branches.append(links(far))
    await store.flush()
    return branches


def is_stretch(some: list[str], whole: list[str]) -> bool:
    return any(some == whole[begin : begin + len(some)] for begin in range(len(whole)))


CHANGES = 40


def test_the_story_changes_the_disk_so_often() -> None:
    async def test() -> None:
        disk = FailingDisk({}, 0)
        store = await opened(disk, 6 * SIZE)
        await a_story(store)
        assert disk.changes < CHANGES
        assert any(name.startswith("step-") for name in disk.files)
        assert sum(map(len, disk.files.values())) < 9 * SIZE, "old records are removed"
        assert links((await opened(disk)).chain.records) == links(store.chain.records)

    run(test())


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("at", range(1, CHANGES))
def test_at_whatever_write_the_disk_fails_a_valid_prefix_is_there(at: int, crash: bool, done: bool) -> None:
    async def test() -> None:
        disk = FailingDisk({}, at, crash, done)
        store = await opened(disk, 6 * SIZE)
        branches = await a_story(store)
        after = MemoryDisk()
        after.files = dict(disk.files)
        again = await opened(after)
        found = links(again.chain.records)
        assert any(is_stretch(found, branch) for branch in branches)
        if not crash:
            assert await store.flush()
            assert links((await opened(disk)).chain.records) == links(store.chain.records)
        again.adopt(commits(2, again.head))
        assert await again.flush(), "it goes on from there"
        assert links((await opened(after)).chain.records) == links(again.chain.records)

    run(test())


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_what_was_once_on_disk_is_found_there(seed: int) -> None:
    """Steps, rollbacks, failed writes and crashes in any order."""

    async def test() -> None:
        random, disk = Random(seed), MemoryDisk()
        store = await opened(disk, 8 * SIZE)
        branch, safe = [START.link], 0
        for _ in range(60):
            action = random.random()
            if action < 0.6:
                store.adopt(commits(1, store.head))
                branch.append(store.head.previous)
            elif action < 0.75:
                base = random.choice(store.chain.locator())
                turned = reset(store.chain.at(base), store.head.term[0] + 1, str(random.random()))
                store.adopt([turned])
                safe = min(safe, branch.index(base))
                branch = [*branch[: branch.index(base) + 1], turned.link]
            else:
                after = MemoryDisk()
                after.files = dict(disk.files)
                disk, store = after, await opened(after, 8 * SIZE)
                head, anchor = store.head.previous, store.chain.locator()[-1]
                assert branch[safe] in store.chain or branch.index(anchor) > safe
                branch = branch[: branch.index(head) + 1] if head in branch else branch[: branch.index(anchor) + 1]
                branch += [link for link in links(store.chain.records) if link not in branch]
            disk.full = random.random() < 0.3
            writing = asyncio.create_task(store.flush())
            await asyncio.sleep(random.choice([0.005, 0.015, 1.0]))
            if writing.done() and await writing:
                safe = len(branch) - 1
                assert links((await opened(disk)).chain.records) == links(store.chain.records)

    run(test())


def test_what_could_not_be_written_is_written_later() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        store = await opened(disk, 3 * SIZE)
        store.adopt(LONG[:1])
        assert await store.flush()
        disk.full = True
        for record in LONG[1:7]:
            store.adopt([record])
            assert not await store.flush()
        assert links((await opened(disk)).chain.records) == links(LONG[:1])
        disk.full = False
        store.adopt(LONG[7:])
        assert await store.flush()
        again = await opened(disk)
        assert links(again.chain.records) == links(store.chain.records)
        assert again.head == chain(LONG).head

    run(test())


def test_a_change_in_mid_write_is_written_too() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        store = await opened(disk)
        store.adopt(LONG)
        writing = [asyncio.create_task(store.flush())]
        await asyncio.sleep(0.055)  # four records are there
        store.adopt(BRANCH[:1])
        writing.append(asyncio.create_task(store.flush()))
        await asyncio.sleep(0.015)
        store.adopt(BRANCH[1:])
        assert all(await asyncio.gather(*writing))
        assert links((await opened(disk)).chain.records) == links([*LONG[:3], *BRANCH])

    run(test())


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "torn": lambda content: content[: len(content) // 2],
    "a bit has turned": lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    "huge": lambda content: bytes(17 * 2**20),
    "nested": lambda content: b"[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_record_ends_the_chain_before_it(
    damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        disk = MemoryDisk()
        store = await opened(disk)
        store.adopt(LONG)
        await store.flush()
        name = "step-6."
        disk.files[name] = damage(disk.files[name])
        again = await opened(disk)
        assert links(again.chain.records) == links(LONG[:5])
        assert len(caplog.records) == 1
        again.adopt(LONG)
        assert await again.flush()
        assert links((await opened(disk)).chain.records) == links(LONG)

    run(test())


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_without_its_anchor_a_chain_begins_at_genesis(damage: Callable[[bytes], bytes]) -> None:
    async def test() -> None:
        disk = MemoryDisk()
        store = await opened(disk, 3 * SIZE)
        for record in LONG:
            store.adopt([record])
        await store.flush()
        disk.files["anchor."] = damage(disk.files["anchor."])
        again = await opened(disk)
        assert again.head == GENESIS
        again.adopt(LONG)
        assert await again.flush()
        assert links((await opened(disk)).chain.records) == links(LONG)

    run(test())


def test_a_record_on_disk_is_believed_no_more_than_one_of_a_peer() -> None:
    third = chain(LONG[:2]).head
    forged = decided(third, (entry(third, "p1"), entry(third, "p2")), "p1")

    async def test() -> None:
        disk = MemoryDisk()
        store = await opened(disk)
        store.adopt(LONG[:2])
        await store.flush()
        await files.write(disk, "step-3.", files.encode(forged))
        assert links((await opened(disk)).chain.records) == links(LONG[:2])

    run(test())


def test_an_anchor_of_another_run_or_organizer_is_not_believed() -> None:
    other_run = START.changed(run_id="another").signed(signer("organizer"))
    other_key = START.changed(step=5).signed(signer("p1"))

    async def test() -> None:
        for genesis, organizer in ((other_run, "organizer"), (other_key, "p1")):
            disk = MemoryDisk()
            anchor = Anchor(part="", reset=genesis, coordinator=voter("p0"))
            store = ChainStore(disk, anchor, None, organizer, VERIFIER)
            await store.flush()
            assert (await opened(disk)).head == GENESIS

    run(test())


def test_only_the_newest_records_are_held() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        store = await opened(disk)
        many = commits(KEPT + 150)
        for record in many:
            store.adopt([record])
        assert await store.flush()
        assert KEPT <= len(store.chain.records) < KEPT + 100
        assert links(store.chain.records) == links(many)[-len(store.chain.records) :]
        assert len(store.chain.locator()) < 14
        assert store.chain.locator()[:4] == tuple(many[-(2**power)].link for power in range(4))
        assert len(disk.files) == len(store.chain.records) + 2
        again = await opened(disk)
        assert again.head == store.head
        assert again.anchor_at(again.chain.locator()[-1]) == store.anchor_at(store.chain.locator()[-1])

    run(test())


def test_a_newcomer_goes_on_from_an_anchor() -> None:
    """Wherever it begins, it comes to the same instance as those who know the history."""

    async def test() -> None:
        where = chain([*LONG[:3], *BRANCH]).head
        with_coordinator = (entry(where, "p0", 0, incarnation=4), entry(where, "p1"), entry(where, "p2"))
        history = [*LONG[:3], *BRANCH, *commits(3, where, with_coordinator)]
        store = await opened(MemoryDisk())
        store.adopt(history)
        for place, record in enumerate(history):
            anchor, commit = store.anchor_at(record.link)
            new = ChainStore(MemoryDisk(), anchor, commit, "organizer", VERIFIER)
            assert new.head == store.chain.at(record.link)
            assert anchor.link(commit) == record.link
            assert links(new.adopt(history[place + 1 :]).taken) == links(history[place + 1 :])
        with pytest.raises(KeyError):
            store.anchor_at(digest("unknown"))

    run(test())


def test_an_anchor_is_what_the_reset_and_the_commit_name() -> None:
    anchor = Anchor(part="", reset=START, coordinator=voter("p0"))
    counts_it = decided(GENESIS, (entry(GENESIS, "p0", 0, incarnation=4), entry(GENESIS, "p1")), "p1 p2")
    other = GENESIS.after(LONG[0], VERIFIER)
    wrong: list[tuple[Anchor, Commit | None]] = [
        (anchor.changed(reset=START.signed(signer("p1"))), None),
        (anchor.changed(part="other"), None),
        (anchor.changed(coordinator=voter("p1")), counts_it),
        (anchor, counts_it),
        (anchor.changed(coordinator=voter("p0", 4), reset=reset(other, 3)), counts_it),
        (anchor.changed(reset=START.changed(run_id="another").signed(signer("organizer"))), counts_it),
    ]
    for each, commit in wrong:
        with pytest.raises(ValueError, match=r"."):
            each.instance(commit, "organizer", VERIFIER)
    assert anchor.changed(coordinator=voter("p0", 4)).instance(counts_it, "organizer", VERIFIER).step == 1
    assert json.loads(anchor.to_bytes())["part"] == ""
