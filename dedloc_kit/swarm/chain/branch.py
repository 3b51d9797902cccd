"""A peer's branch of the chain and its vote, in the process that exchanges messages; the training asks for its head."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.chain.anchor import Anchor
from dedloc_kit.swarm.chain.coordinator import Coordinator, Part
from dedloc_kit.swarm.chain.follow import BadAnswer, NothingInCommon, ask_records, offer, say_goodbye
from dedloc_kit.swarm.chain.messages import RecordsAfter
from dedloc_kit.swarm.chain.service import ChainService
from dedloc_kit.swarm.chain.store import ChainStore
from dedloc_kit.swarm.chain.vote_file import VoteFile, open_votes
from dedloc_kit.swarm.consensus.chain import ChainRecord
from dedloc_kit.swarm.consensus.electorate import Electorate
from dedloc_kit.swarm.consensus.events import Persist, Send
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.participant import Participant
from dedloc_kit.swarm.consensus.records import Commit, Goodbye, PartReset, Reset, Vote, Voter
from dedloc_kit.swarm.consensus.resets import Branch as End
from dedloc_kit.swarm.consensus.resets import Position, ResetOptions
from dedloc_kit.swarm.consensus.signing import WireRecord
from dedloc_kit.swarm.p2p.seams import Clock, Disk, Network, Random, Signer, Verifier

PART = ""
"""What of a run is averaged apart has a run id of its own, and so one chain without a part's name."""

_log = logging.getLogger(__name__)


class Anchored(WireRecord):
    """An anchor with its commit, as it travels beside a state."""

    wire: ClassVar[str] = "chain/anchored"

    anchor: Anchor
    commit: Commit | None = None


@dataclass(frozen=True)
class Head:
    """Where this peer's branch ends.

    :ivar anchor: an `Anchored` in bytes, for those who take the state at this head
    :ivar incarnation: of this peer's vote; 0 if it has none here
    """

    instance: Instance
    anchor: bytes
    incarnation: int


@dataclass(frozen=True)
class World:
    """The seams that a branch uses."""

    network: Network
    clock: Clock
    disk: Disk
    random: Random
    signer: Signer
    verifier: Verifier


class Branch:
    """Of one part of a run. It has no head before `open`, `begin` or `load` gives it one.

    :ivar organizer: the coordinator's id
    """

    def __init__(self, run_id: str, organizer: str, world: World, options: ResetOptions) -> None:
        self._run_id, self.organizer, self.world = run_id, organizer, world
        self._me = world.signer.peer
        self._leads = self._me == organizer
        self._stores: dict[str, ChainStore] = {}
        self._votes: VoteFile | None = None
        self._accepted: tuple[str, tuple[bytes, ...]] = ("", ())
        self._options = options
        self._coordinator: Coordinator | None = None
        self._held = ("", "")
        """A link, and the digest of the state there that this peer has."""
        self._wanted: End | None = None
        self._highest_term = -1
        self._round_now: Callable[[], Participant | None] = lambda: None

    async def serve(self) -> None:
        """Answer other peers from now on."""
        listener = self if self._leads else None
        await ChainService(self.world.network, self.world.clock, self._stores, listener).start()

    # Where it begins

    async def open(self, link: str, state: str) -> Head | None:
        """For the coordinator: the chain on disk up to this link, and a reset there that was signed for this state.

        :param state: the digest of the state at that link

        None if the disk has no such link.
        """
        nothing = self._first_reset(0, 1, "", "0" * 64, Voter(self._me, 1))
        store = await ChainStore.open(self.world.disk, nothing, PART, self.organizer, self.world.verifier)
        if store.head.previous == nothing.link:
            return None
        self._highest_term = store.head.term[0]
        if link not in store.chain:
            return None
        store.restart(*store.anchor_at(link))
        self._held = link, state
        return await self._have(store)

    async def begin(self, step: int, link: str, state: str) -> Head:
        """For the coordinator: sign a reset at its state, which nobody else need know.

        :param step: whose parameters it holds
        :param state: the state's digest
        """
        nobody = Electorate({}, None)
        before = Instance(self._run_id, PART, step + 1, link, (0, ""), self.organizer, self._me, nobody)
        self._votes = await self._read_votes(before)
        # Above all terms of a chain that was lost: they are counted from 0 or from such a time.
        term = max(self._highest_term + 1, int(self.world.clock.time()) if step else 0)
        reset = self._first_reset(term, step + 1, link, state, self._votes.me)
        anchor = Anchor(part=PART, reset=reset, coordinator=reset.coordinator)
        return await self._have(ChainStore(self.world.disk, anchor, None, self.organizer, self.world.verifier))

    async def load(self, anchored: bytes, step: int | None = None, link: str | None = None) -> Head:
        """A state was taken over. Raises ValueError, and changes nothing, if its anchor is not valid.

        :param step: of that state; None if any will do
        :param link: that led to it; likewise
        """
        found = files.decode(anchored, Anchored)
        if found.anchor.reset.run_id != self._run_id:
            raise ValueError("an anchor of another run")
        store = ChainStore(self.world.disk, found.anchor, found.commit, self.organizer, self.world.verifier)
        if step not in (None, store.head.step - 1) or link not in (None, store.head.previous):
            raise ValueError("the anchor is that of another state")
        return await self._have(store)

    def _first_reset(self, term: int, step: int, previous: str, state: str, voter: Voter) -> Reset:
        part = PartReset(part=PART, previous=previous, state=state)
        reset = Reset(run_id=self._run_id, term=term, step=step, parts=(part,), coordinator=voter)
        return reset.signed(self.world.signer)

    async def _have(self, store: ChainStore) -> Head:
        if self._votes is None:
            self._votes = await self._read_votes(store.head)
        self._stores[PART] = store
        if self._leads:
            world = self.world
            self._coordinator = Coordinator(
                {PART: Part(store, self._votes)},
                world.disk,
                world.clock,
                world.signer,
                world.verifier,
                self,
                self._options,
            )
            await self._coordinator.resume()
            await store.flush()
        return self.head

    async def _read_votes(self, head: Instance) -> VoteFile:
        votes = (await open_votes(self.world.disk, [head], self._me, self.world.random))[PART]
        if (value := votes.vote(head).value) is not None:
            self._accepted = value.link, votes.accepted_average(value.link) or ()
        return votes

    @property
    def _store(self) -> ChainStore:
        return self._stores[PART]

    @property
    def head(self) -> Head:
        assert self._votes is not None
        instance = self._store.head
        anchor, commit = self._store.anchor_at(instance.previous)
        anchored = files.encode(Anchored(anchor=anchor, commit=commit))
        return Head(instance, anchored, self._votes.voter(instance).incarnation)

    def voter(self) -> Voter:
        """As whom this peer contributes to the next step."""
        assert self._votes is not None
        return self._votes.voter(self._store.head)

    # Following

    async def take(self, records: Sequence[ChainRecord]) -> Head:
        """Adopt records. Raises ValueError if they are not valid, or their branch does not win."""
        if not self._store.adopt(records).taken:
            raise ValueError("this branch does not win")
        if self._leads:
            await self._store.flush()
        return self.head

    async def ask(self, peer: str, question: RecordsAfter) -> tuple[ChainRecord, ...] | None:
        """Ask another peer for what follows on its branch; None if it has none of the links. Raises OSError."""
        try:
            return tuple(await ask_records(self.world.network, self.world.clock, peer, question))
        except NothingInCommon:
            return None
        except (OSError, BadAnswer) as error:
            _log.warning("the steps of %s are not followed: %s", peer, error)
            raise OSError(str(error)) from None

    async def offer(self, link: str) -> None:
        """Offer the coordinator what this branch has after a link, before this peer leaves it. Raises OSError."""
        left = self._store.chain.since(link)
        try:
            await offer(self.world.network, self.world.clock, self.organizer, self._store, left)
        except BadAnswer as error:
            raise OSError(str(error)) from None

    # The vote

    def vote(self, instance: Instance) -> Vote:
        """What this voter remembers of an instance."""
        assert self._votes is not None
        return self._votes.vote(instance)

    async def persist(self, effect: Persist, average: Sequence[bytes] | None) -> list[Send]:
        """Write a vote; returns what may be sent then. The average that it names is kept, in memory at least."""
        assert self._votes is not None
        if average is not None and effect.vote.value is not None:
            self._accepted = effect.vote.value.link, tuple(average)
        return await self._votes.persist(effect, average)

    @property
    def mute(self) -> bool:
        """Whether the last vote could not be written."""
        return self._votes is not None and self._votes.mute

    def accepted_average(self, link: str) -> Sequence[bytes] | None:
        """Of the value that was accepted last, if this peer still holds it."""
        return self._accepted[1] if self._accepted[0] == link and self._accepted[1] else None

    def attend(self, participant: Callable[[], Participant | None] = lambda: None) -> None:
        """A round has begun, or ended. :param participant: this peer's in it, once there is one"""
        self._round_now = participant

    async def leave(self) -> None:
        """Vote no more, and tell the coordinator so."""
        if self._votes is None:
            return
        goodbye = await self._votes.leave(self._store.head, self.world.signer)
        if goodbye is not None and not self._leads:
            with suppress(OSError, BadAnswer):
                await say_goodbye(self.world.network, self.world.clock, self.organizer, goodbye)

    async def retry(self) -> None:
        """After a failed write of the vote: perhaps the disk works again."""
        if self._votes is not None:
            await self._votes.retry(self._store.head)

    # The coordinator

    def knows(self, part: str, head: str, /) -> bool:
        """As `Coordinator.knows`."""
        return self._leading.knows(part, head)

    def offered(self, peer: str, part: str, records: tuple[ChainRecord, ...], /) -> None:
        """As `Coordinator.offered`."""
        self._leading.offered(peer, part, records)

    def said_goodbye(self, goodbye: Goodbye, /) -> None:
        """As `Coordinator.said_goodbye`."""
        self._leading.said_goodbye(goodbye)

    def round_took(self, seconds: float) -> None:
        """A round has decided a step in this time: how long voters may be silent follows from it."""
        if self._coordinator is not None:
            self._coordinator.round_took(PART, seconds)

    @property
    def _leading(self) -> Coordinator:
        if self._coordinator is None:
            raise ValueError("this peer has no head yet")
        return self._coordinator

    async def look(self, positions: Mapping[str, Position], state: str) -> Head | End | None:
        """Sign a reset if the electorate is gone, and return the head; None if that is not so.

        If others have left a better branch it is returned: the state at its end is to be fetched for `choose`.

        :param positions: of the other peers, as they tell them
        :param state: the digest of the state at the head
        """
        self._held, self._wanted = (self._store.head.previous, state), None
        for peer, position in positions.items():
            self._leading.heard(PART, peer, position)
        round_now = self._round_now()
        rounds = {} if round_now is None else {PART: round_now}
        return self._wanted if await self._leading.tick(rounds) is None else self.head

    async def choose(self, end: End, state: str) -> Head:
        """Sign a reset at the end of a branch that others have left.

        :param state: the digest of the state there, which has been fetched

        Raises ValueError if the branch is not better any more, OSError if the disk fails.
        """
        self._held = end.records[-1].link, state
        if await self._leading.choose({PART: end}) is None:
            raise ValueError("the branch that others have left is not better any more")
        return self.head

    async def take_over(self, state: str, step: int, rate: float) -> Head:
        """Sign a person's reset: another state stands for the steps before this one.

        :param rate: a factor on the learning rate from there

        Raises ValueError if that is not possible now, OSError if the disk fails.
        """
        self._held = self._store.head.previous, state
        await self._leading.take_over(step, rate)
        return self.head

    async def state(self, part: str, end: End, /) -> str:
        """The digest of the state at the end of a branch; raises LookupError if that is to be fetched first."""
        link, digest = self._held
        if link != (end.records[-1].link if end.records else end.base):
            self._wanted = end if end.records else None
            raise LookupError("the state at the end of a branch is not here")
        return digest

    def tell(self, reset: Reset, /) -> None:
        """The training asks for the head."""

    def alert(self, reason: str, /) -> None:
        """Tell the organizer."""
        _log.error(reason)
