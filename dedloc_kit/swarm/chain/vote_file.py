"""A peer's votes on disk: a vote is written before it is sent."""

import asyncio
import logging
from collections.abc import Sequence

from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.consensus.events import Persist, Send
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.records import NO_VOTE, Goodbye, Vote, Voter
from dedloc_kit.swarm.consensus.votes import VoteBook, Write
from dedloc_kit.swarm.p2p.seams import Disk, Random, Signer

MAX_AVERAGE = 4 * 2**20
"""Bytes of an average that is written with its vote; after a restart a larger one has to be fetched."""
_LENGTH = 4
_LINK = 64

_log = logging.getLogger(__name__)

Average = tuple[str, tuple[bytes, ...]]
"""The link of a value, and the encoded chunks of its average."""


async def open_votes(disk: Disk, heads: Sequence[Instance], peer: str, random: Random) -> dict[str, "VoteFile"]:
    """Open the vote files of a peer, by part: one voter for all parts.

    If one of them is missing, damaged or another peer's, the voter begins anew in all parts: it has forgotten a vote.

    :param heads: the newest instance of each part
    """
    votes = {head.part: await _read_vote(disk, head, peer) for head in heads}
    if len({None if vote is None else vote.voter for vote in votes.values()}) > 1:
        votes = dict.fromkeys(votes)
    new = Voter(peer, 1 + random.randrange(2**53 - 1))
    opened = {}
    for head in heads:
        vote = votes[head.part]
        opened[head.part] = found = VoteFile(disk, head.part, VoteBook(new, vote))
        if vote is None:
            await found.persist(Persist(head.first_vote(new), ()))
        elif vote.value is not None:
            await found.load_average(vote.value.link)
    return opened


async def _read_vote(disk: Disk, head: Instance, peer: str) -> Vote | None:
    try:
        content = await files.read(disk, _vote_name(head.part))
        if content is None:
            return None
        vote = files.decode(content, Vote)
        if (vote.run_id, vote.part, vote.voter.peer) != (head.run_id, head.part, peer):
            raise ValueError("it is of another run, part or peer")
        if vote.voter.incarnation == NO_VOTE:
            raise ValueError("it names no incarnation")
    except (OSError, ValueError) as error:
        _log.warning("The vote file cannot be used (%s): this peer votes again once a step has counted it.", error)
        return None
    return vote


def _vote_name(part: str) -> str:
    return f"vote.{part}"


class VoteFile:
    """The vote file of one part. `open_votes` makes it."""

    def __init__(self, disk: Disk, part: str, book: VoteBook) -> None:
        self._disk, self._part, self._book = disk, part, book
        self._writing, self._next = asyncio.Lock(), list[Write]()
        self._tasks: set[asyncio.Task[None]] = set()
        self._due: list[Send] = []
        self._offered: Average | None = None
        self._stored: Average | None = None
        self._slot = 0
        """Of two files with averages: the one of the vote on disk. The next average goes into the other one."""

    # What this peer remembers

    @property
    def me(self) -> Voter:
        """This voter, also while it has no vote."""
        return self._book.voter

    def vote(self, instance: Instance) -> Vote:
        """What this voter remembers of an instance."""
        return self._book.vote(instance)

    @property
    def mute(self) -> bool:
        """Whether the last vote could not be written: no vote until one can."""
        return self._book.mute

    def voter(self, head: Instance) -> Voter:
        """As whom this peer contributes to the next step."""
        return self._book.as_voter(head)

    def accepted_average(self, link: str) -> tuple[bytes, ...] | None:
        """The average that lies on disk with the vote, if it is of this value."""
        return self._stored[1] if self._stored is not None and self._stored[0] == link else None

    # Writing

    async def persist(self, effect: Persist, average: Sequence[bytes] | None = None) -> list[Send]:
        """Write a vote. Returns the messages that may go now: none if it cannot be written.

        Those of a call at the same time may come with them. If the caller is cancelled, the write goes on.

        :param average: encoded chunks of what `effect.vote.value` names
        """
        value = effect.vote.value
        if effect.average and value is not None and average is not None and _size(average) <= MAX_AVERAGE:
            self._offered = value.link, tuple(average)
        return await self._write_all(self._book.persist(effect))

    async def retry(self, head: Instance) -> None:
        """After a failed write, now and then: perhaps the disk works again, and the vote is back."""
        await self._write_all(self._book.retry(head))

    async def leave(self, head: Instance, signer: Signer) -> Goodbye | None:
        """Never vote again as this voter. Returns what to tell the coordinator; None if this voter has no vote."""
        voter = self._book.as_voter(head)
        self._book.leave()
        self._next.clear()
        async with self._writing:
            try:
                await self._disk.remove(_vote_name(self._part))
            except OSError as error:
                _log.warning("The vote file cannot be removed (%s): this peer leaves without a goodbye.", error)
                return None
        if voter.incarnation == NO_VOTE:
            return None
        goodbye = Goodbye(run_id=head.run_id, part=self._part, head=head.previous, voter=voter)
        return goodbye.signed(signer)

    async def _write_all(self, writes: list[Write]) -> list[Send]:
        if self._book.left:
            return []
        self._next += writes
        task = asyncio.create_task(self._write_in_turn())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)
        due, self._due = self._due, []
        return due

    async def _write_in_turn(self) -> None:
        async with self._writing:
            while self._next:
                for each in self._book.written(await self._write(self._next.pop())):
                    if isinstance(each, Write):
                        self._next.append(each)
                    else:
                        self._due.append(each)

    async def _write(self, write: Write) -> bool:
        """The average first: a vote on disk always finds the one that was written with it."""
        link = write.vote.value.link if write.vote.value is not None else None
        average, slot = self._offered, self._slot
        try:
            if average is not None and average[0] == link and (self._stored is None or self._stored[0] != link):
                slot = 1 - slot
                await files.write(self._disk, self._average_name(slot), _pack(average))
            await files.write(self._disk, _vote_name(self._part), files.encode(write.vote))
        except OSError as error:
            _log.warning("The vote file cannot be written (%s): no vote until it can.", error)
            return False
        if slot != self._slot:
            self._slot, self._stored = slot, average
        return True

    def _average_name(self, slot: int) -> str:
        return f"accepted-{slot}.{self._part}"

    async def load_average(self, link: str) -> None:
        """Read the average of this value, if it is on disk."""
        for slot in (0, 1):
            try:
                content = await files.read(self._disk, self._average_name(slot), _LINK + MAX_AVERAGE)
                if content is not None and content[:_LINK] == link.encode():
                    self._slot, self._stored = slot, (link, _unpack(content[_LINK:]))
            except (OSError, ValueError) as error:
                _log.warning("An average on disk cannot be used: %s.", error)


def _size(chunks: Sequence[bytes]) -> int:
    return sum(_LENGTH + len(chunk) for chunk in chunks)


def _pack(average: Average) -> bytes:
    link, chunks = average
    return link.encode() + b"".join(len(chunk).to_bytes(_LENGTH, "big") + chunk for chunk in chunks)


def _unpack(content: bytes) -> tuple[bytes, ...]:
    chunks, place = [], 0
    while place < len(content):
        end = place + _LENGTH + int.from_bytes(content[place : place + _LENGTH], "big")
        if end > len(content):
            raise ValueError("the file is damaged")
        chunks.append(content[place + _LENGTH : end])
        place = end
    return tuple(chunks)
