"""A vote is on disk before it is sent, with its average; a voter that lost its file is another one."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.chain.vote_file import MAX_AVERAGE, VoteFile, open_votes
from dedloc_kit.swarm.consensus.events import Persist, Send
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import TooFew
from dedloc_kit.swarm.consensus.records import NO_VOTE, Epoch, Vote
from dedloc_kit.swarm.p2p.local import FolderDisk
from dedloc_kit.swarm.p2p.seams import Disk
from tests.swarm.chain.disks import FailingDisk
from tests.swarm.consensus.table import VERIFIER, decided, digest, entry, instance, signer, voter
from tests.swarm.p2p.in_memory import MemoryDisk, run

FIRST = instance({"p1": 4, "p2": 4})
COMMIT = decided(FIRST, (entry(FIRST, "p1"), entry(FIRST, "p2")), "p1 p2")
SECOND = FIRST.after(COMMIT, VERIFIER)
AVERAGE = (b"first chunk", b"", b"second chunk")


async def opened(disk: Disk, head: Instance = FIRST, seed: int = 0) -> VoteFile:
    return (await open_votes(disk, [head], "p1", Random(seed)))[head.part]


def send(number: int) -> Send:
    return Send("p2", TooFew(group="0" * 64, epoch=Epoch(number, "p1", "")))


def promise(file: VoteFile, where: Instance, number: int) -> Persist:
    vote = file.vote(where).model_copy(update={"promised": Epoch(number, "p1", "")})
    return Persist(vote, (send(number),))


def acceptance(file: VoteFile, where: Instance, number: int) -> Persist:
    vote, epoch = file.vote(where), Epoch(number, "p1", "")
    counted = (entry(where, "p1"), entry(where, "p2"))
    value = where.value(counted, tuple(each.samples for each in counted), digest("average", number))
    accepted = where.accepted(vote.voter, epoch, value).signed(signer("p1"))
    vote = vote.model_copy(update={"promised": epoch, "accepted": accepted, "value": value})
    return Persist(vote, (send(number),), average=True)


def test_a_vote_and_its_average_outlive_a_restart(tmp_path: Path) -> None:
    async def test(disk: Disk) -> None:
        file = await opened(disk)
        effect = acceptance(file, FIRST, 3)
        assert effect.vote.value is not None
        assert await file.persist(effect, AVERAGE) == [send(3)]
        again = await opened(disk, seed=1)
        assert again.voter(FIRST) == file.voter(FIRST)
        assert again.vote(FIRST) == effect.vote
        assert again.accepted_average(effect.vote.value.link) == AVERAGE
        assert again.accepted_average(digest("another")) is None
        assert again.vote(SECOND).accepted is None

    run(test(MemoryDisk()))
    folder = FolderDisk(tmp_path)
    asyncio.run(test(folder))
    folder.close()


def test_nothing_is_sent_before_its_vote_is_on_disk() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        file = await opened(disk)
        before = dict(disk.files)
        asking = [asyncio.create_task(file.persist(promise(file, FIRST, number))) for number in (1, 2, 3)]
        await asyncio.sleep(0.001)
        assert disk.files == before
        sent = [send for each in asking for send in await each]
        assert sent == [send(1), send(2), send(3)], "each goes once, whichever call is told"
        assert (await opened(disk)).vote(FIRST).promised.number == 3

    run(test())


def test_a_voter_whose_caller_was_cancelled_in_mid_write_votes_on() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        file = await opened(disk)
        asking = asyncio.create_task(file.persist(promise(file, FIRST, 1)))
        await asyncio.sleep(0.001)
        asking.cancel()
        assert await file.persist(promise(file, FIRST, 2)) == [send(1), send(2)]
        assert file.voter(FIRST).incarnation != NO_VOTE

    run(test())


def test_a_full_disk_takes_the_vote_and_a_later_write_gives_it_back() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        file = await opened(disk)
        me, disk.full = file.voter(FIRST), True
        effect = acceptance(file, FIRST, 1)
        assert await file.persist(effect, AVERAGE) == []
        assert file.voter(FIRST).incarnation == NO_VOTE
        await file.retry(FIRST)
        assert file.voter(FIRST).incarnation == NO_VOTE
        disk.full = False
        await file.retry(FIRST)
        assert file.voter(FIRST) == me
        again = await opened(disk)
        assert effect.vote.value is not None
        assert again.vote(FIRST) == effect.vote
        assert again.accepted_average(effect.vote.value.link) == AVERAGE

    run(test())


def test_a_peer_that_never_could_write_has_no_vote() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        disk.full = True
        assert (await opened(disk)).voter(FIRST).incarnation == NO_VOTE

    run(test())


async def a_story(file: VoteFile) -> list[int]:
    """Two instances, and a value in each; returns the epochs of what was sent."""
    sent: list[Send] = []
    sent += await file.persist(promise(file, FIRST, 1))
    sent += await file.persist(acceptance(file, FIRST, 2), (b"average 2",))
    sent += await file.persist(promise(file, FIRST, 3))
    sent += await file.persist(acceptance(file, FIRST, 4), (b"average 4",))
    sent += await file.persist(promise(file, SECOND, 5))
    sent += await file.persist(acceptance(file, SECOND, 6), (b"average 6",))
    return [each.message.epoch.number for each in sent if isinstance(each.message, TooFew)]


ACCEPTED = {2: 2, 3: 2, 4: 4, 6: 6}
"""By promised epoch: that of the vote in the file."""


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("at", range(1, 11))
def test_at_whatever_write_the_disk_fails_the_file_holds_what_was_sent(at: int, crash: bool, done: bool) -> None:
    async def test() -> None:
        healthy = FailingDisk({}, 0)
        file = await opened(healthy)
        assert await a_story(file) == [1, 2, 3, 4, 5, 6]
        assert healthy.changes == 10

        disk = FailingDisk({}, at, crash, done)
        file = await opened(disk)
        sent = await a_story(file)
        after = MemoryDisk()
        after.files = dict(disk.files)
        again = await opened(after)
        written = max(again.vote(FIRST), again.vote(SECOND), key=lambda vote: vote.promised).promised.number
        assert written >= max(sent, default=0)
        if again.voter(FIRST) == file.vote(FIRST).voter and written in ACCEPTED:
            vote = again.vote(SECOND if written > 4 else FIRST)
            assert vote.accepted is not None
            assert vote.value is not None
            assert vote.accepted.epoch.number == ACCEPTED[written]
            assert again.accepted_average(vote.value.link) == (f"average {ACCEPTED[written]}".encode(),)

    run(test())


VOTE = FIRST.first_vote(voter("p1", 7))
DAMAGE: dict[str, Callable[[bytes], bytes] | Vote] = {
    "empty": lambda content: b"",
    "torn": lambda content: content[:-10],
    "another promise": lambda content: content.replace(b'"promised":[0', b'"promised":[9'),
    "longer": lambda content: content + b"x",
    "huge": lambda content: content * 200_000,
    "nested": lambda content: b"[" * 100_000,
    "another run": VOTE.changed(run_id="another"),
    "another part": VOTE.changed(part="another"),
    "another peer": VOTE.changed(voter=voter("p2", 7)),
    "no voter": VOTE.changed(voter=voter("p1", NO_VOTE)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_file_that_is_damaged_or_foreign_makes_a_new_voter(
    damage: Callable[[bytes], bytes] | Vote, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        disk = MemoryDisk()
        await files.write(disk, "vote.", files.encode(VOTE))
        assert (await opened(disk)).voter(FIRST) == voter("p1", 7)
        assert not caplog.records
        if isinstance(damage, Vote):
            await files.write(disk, "vote.", files.encode(damage))
        else:
            disk.files["vote."] = damage(disk.files["vote."])
        file = await opened(disk)
        assert file.voter(FIRST).incarnation not in (7, NO_VOTE)
        assert file.vote(FIRST) == FIRST.first_vote(file.voter(FIRST))
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert (await opened(disk, seed=9)).voter(FIRST) == file.voter(FIRST), "it was written at once"

    run(test())


def test_a_damaged_average_is_not_given() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        file = await opened(disk)
        effect = acceptance(file, FIRST, 1)
        await file.persist(effect, AVERAGE)
        assert effect.vote.value is not None
        name = next(name for name in disk.files if name.startswith("accepted"))
        disk.files[name] = disk.files[name][:-1]
        again = await opened(disk)
        assert again.vote(FIRST) == effect.vote
        assert again.accepted_average(effect.vote.value.link) is None

    run(test())


def test_a_large_average_is_not_written() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        file = await opened(disk)
        effect = acceptance(file, FIRST, 1)
        assert await file.persist(effect, (bytes(MAX_AVERAGE),)) == [send(1)]
        assert effect.vote.value is not None
        assert file.accepted_average(effect.vote.value.link) is None
        assert sum(map(len, disk.files.values())) < 10_000

    run(test())


def test_a_peer_has_one_voter_for_all_parts() -> None:
    """A reset names one voter of the coordinator."""
    parts = [FIRST, replace(FIRST, part="other")]

    async def test() -> None:
        disk = MemoryDisk()
        votes = await open_votes(disk, parts, "p1", Random(0))
        me = votes[""].voter(FIRST)
        assert votes["other"].voter(parts[1]) == me
        await votes[""].persist(promise(votes[""], FIRST, 5))
        again = await open_votes(disk, parts, "p1", Random(1))
        assert (again[""].voter(FIRST), again[""].vote(FIRST).promised.number) == (me, 5)
        del disk.files["vote.other"]
        new = await open_votes(disk, parts, "p1", Random(2))
        assert new[""].voter(FIRST) == new["other"].voter(parts[1]) != me
        assert new[""].vote(FIRST).promised.number == 0

    run(test())


def test_nobody_votes_below_its_file() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        me = (await opened(disk, SECOND)).voter(SECOND)
        file = await opened(disk, FIRST)
        assert file.voter(FIRST).incarnation == NO_VOTE
        assert file.voter(SECOND) == me

    run(test())


def test_a_leaver_is_another_voter_when_it_returns() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        file = await opened(disk)
        me = file.voter(FIRST)
        await file.persist(promise(file, FIRST, 1))
        goodbye = await file.leave(FIRST, signer("p1"))
        assert goodbye is not None
        goodbye.verify(VERIFIER)
        assert (goodbye.voter, goodbye.head, goodbye.run_id) == (me, FIRST.previous, "run")
        assert await file.persist(promise(file, FIRST, 2)) == []
        assert file.voter(FIRST).incarnation == NO_VOTE
        again = await opened(disk, seed=1)
        assert again.voter(FIRST) != me
        await asyncio.gather(again.persist(promise(again, FIRST, 1)), again.leave(FIRST, signer("p1")))
        assert not disk.files

    run(test())


def test_without_a_vote_or_a_way_to_give_it_up_there_is_no_goodbye() -> None:
    async def test() -> None:
        file = await opened(FailingDisk({}, 2))
        assert await file.leave(FIRST, signer("p1")) is None
        file = await opened(FailingDisk({}, 1))
        assert await file.leave(FIRST, signer("p1")) is None

    run(test())
