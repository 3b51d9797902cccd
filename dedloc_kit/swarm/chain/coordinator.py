"""The coordinator's resets: a new electorate where the old one is gone, the better branch, a person's rollback."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.chain.store import ChainStore
from dedloc_kit.swarm.chain.vote_file import VoteFile
from dedloc_kit.swarm.consensus.chain import Chain, ChainRecord, samples_of
from dedloc_kit.swarm.consensus.participant import Participant
from dedloc_kit.swarm.consensus.records import MAX_MEMBERS, Goodbye, Reset, Voter
from dedloc_kit.swarm.consensus.resets import (
    Branch,
    BranchChoice,
    ElectorateWatch,
    Position,
    ResetOptions,
    new_reset,
    samples_gained,
)
from dedloc_kit.swarm.p2p.seams import Clock, Disk, Signer, Verifier

_FILE = "reset"
Voters = tuple[tuple[Voter, int], ...]

_log = logging.getLogger(__name__)


class Callbacks(Protocol):
    """What the coordinator needs of the peer that it belongs to."""

    async def state(self, part: str, branch: Branch, /) -> str:
        """Return the digest of a part's state at the end of a branch; obtain it first if need be.

        Raises LookupError if nobody has it, OSError.
        """

    def tell(self, reset: Reset, /) -> None:
        """Let the others know: it is on disk, and this peer has taken it."""

    def alert(self, reason: str, /) -> None:
        """Tell the organizer."""


@dataclass(frozen=True)
class Part:
    """What the coordinator has of one part. `open_votes` opens the vote files: one voter for all parts."""

    store: ChainStore
    votes: VoteFile


class Coordinator:
    """Signs resets with the organizer's key. One record names all parts, at one step.

    A reset is written to disk, then taken, then told. Without a working disk none is signed.
    """

    def __init__(
        self,
        parts: Mapping[str, Part],
        disk: Disk,
        clock: Clock,
        organizer: Signer,
        verifier: Verifier,
        callbacks: Callbacks,
        options: ResetOptions,
    ) -> None:
        self._parts, self._disk, self._clock = parts, disk, clock
        self._organizer, self._verifier, self._callbacks, self._options = organizer, verifier, callbacks, options
        self._watches = {part: ElectorateWatch(options, clock.now()) for part in parts}
        self._choices = {part: BranchChoice(options) for part in parts}
        self._offers: set[tuple[str, str]] = set()
        """By part: peers that have offered something, and the last links of what they have offered."""
        self._heads = {part: each.store.head.previous for part, each in parts.items()}
        self._term = 0
        """Of the reset that was on disk, even if it could not be taken."""
        self._signing = asyncio.Lock()

    async def resume(self) -> None:
        """Take the reset that was signed last in the parts that lack it, if a crash came between.

        A part that does not hold the state of it stays where it is: a later reset has a higher term.
        """
        try:
            content = await files.read(self._disk, _FILE)
            if content is None:
                return
            reset = files.decode(content, Reset)
            reset.check_signature(self._organizer.peer, self._verifier)
            self._term = reset.term
            ends = {part: Branch(reset.of(part).previous, ()) for part in self._parts}
        except (OSError, ValueError) as error:
            _log.warning("The reset on disk cannot be used: %s.", error)
            return
        lacking = {part: end for part, end in ends.items() if reset.link not in self._store(part).chain}
        if lacking and self._may_take(reset, lacking) and await self._holds(reset, lacking):
            await self._take(reset, lacking)

    async def _holds(self, reset: Reset, ends: Mapping[str, Branch]) -> bool:
        """Whether the state that a reset names is to be had for each of these parts."""
        try:
            states = {part: await self._callbacks.state(part, end) for part, end in ends.items()}
        except (OSError, LookupError):
            return False
        return all(reset.of(part).state == state for part, state in states.items())

    # What it is told

    def heard(self, part: str, peer: PeerId, position: Position) -> None:
        """A peer is there. No claim of waiting samples counts for more than a batch.

        Raises ValueError if it speaks for another voter.
        """
        if position.voter.peer != peer:
            raise ValueError("a position of another peer")
        bounded = replace(position, samples=min(position.samples, self._options.minimum))
        self._watches[part].heard(peer, bounded, self._clock.now())

    def round_took(self, part: str, seconds: float) -> None:
        self._watches[part].round_took(seconds)

    def said_goodbye(self, goodbye: Goodbye) -> None:
        """A voter of the newest electorate leaves. Raises ValueError if it has not signed that."""
        head = self._store(goodbye.part).head
        if goodbye.run_id != head.run_id:
            raise ValueError("a goodbye to another run")
        goodbye.verify(self._verifier)
        if goodbye.voter in head.electorate:
            self._watches[goodbye.part].said_goodbye(goodbye)

    def offered(self, peer: PeerId, part: str, records: tuple[ChainRecord, ...]) -> None:
        """A peer, or this one, has left these records. Raises ValueError if they are not valid.

        Of each peer one offer counts until the next choice.
        """
        chain = self._store(part).chain
        parting = chain.parting(records)
        if parting is None or (part, peer) in self._offers:
            return
        if not chain.is_valid_after(*parting):
            raise ValueError("records that are not valid")
        self._offers |= {(part, peer), (part, records[-1].link)}
        self._choices[part].offer(chain, records, self._clock.now())

    def knows(self, part: str, head: str) -> bool:
        """Whether the branch that ends with this link has been offered already."""
        return (part, head) in self._offers

    def _store(self, part: str) -> ChainStore:
        if part not in self._parts:
            raise ValueError("a part that this run does not have")
        return self._parts[part].store

    # When it signs

    @property
    def deadline(self) -> float:
        """When `tick` has to choose among branches, on the clock; it is called every few seconds anyway."""
        return max((choice.deadline for choice in self._choices.values() if choice.deadline < inf), default=inf)

    async def tick(self, rounds: Mapping[str, Participant]) -> Reset | None:
        """Sign a reset if it is time. :param rounds: under way, by part"""
        now = self._clock.now()
        lost = [part for part in self._parts if self._is_lost(part, rounds.get(part), now)]
        if self._signing.locked():
            return None
        ends = self._better_branches(now)
        if ends is None and lost:
            ends = self._ends_at(min(each.store.head.step for each in self._parts.values()))
        try:
            return await self._sign(ends) if ends is not None else None
        except (OSError, LookupError) as error:
            _log.warning("No reset is signed: %s", error)
            return None

    def _is_lost(self, part: str, round_now: Participant | None, now: float) -> bool:
        each, watch = self._parts[part], self._watches[part]
        head = each.store.head
        if head.previous != self._heads[part]:
            self._heads[part] = head.previous
            watch.moved(now)
        return watch.tick(each.store.chain, each.votes.voter(head), round_now, now)

    async def choose(self, ends: Mapping[str, Branch]) -> Reset | None:
        """Go on from the ends of branches that others have left; None if these have not more samples any more.

        Raises as `rollback`.
        """
        gained = sum(samples_gained(self._store(part).chain, branch.records) for part, branch in ends.items())
        return await self._sign(ends) if gained > 0 else None

    async def rollback(self, step: int, rate: float = 1.0) -> Reset:
        """As a person chose: all parts go back to this step.

        :param rate: a factor on the learning rate from there

        Raises ValueError if the step is not known, LookupError if nobody has its state, OSError if the disk fails.
        """
        ends = self._ends_at(step)
        if ends is None:
            raise ValueError(f"step {step} is not among the steps that are kept")
        reset = await self._sign(ends, chosen=True, rate=rate)
        if reset is None:
            raise ValueError(f"step {step} was rolled back meanwhile")
        return reset

    async def take_over(self, step: int, rate: float = 1.0) -> Reset:
        """As a person chose: the run goes on with another state, which stands for the steps before this one.

        :param rate: a factor on the learning rate from there

        Raises ValueError if the chains have moved on, OSError if the disk fails.
        """
        ends = {part: Branch(each.store.head.previous, ()) for part, each in self._parts.items()}
        reset = await self._sign(ends, chosen=True, step=step, rate=rate)
        if reset is None:
            raise ValueError("a step was taken meanwhile")
        return reset

    def _ends_at(self, step: int) -> dict[str, Branch] | None:
        links = {part: _link_at(each.store.chain, step) for part, each in self._parts.items()}
        return {part: Branch(link, ()) for part, link in links.items() if link} if all(links.values()) else None

    def _better_branches(self, now: float) -> dict[str, Branch] | None:
        """Where all parts together have more samples than at their heads, at one step."""
        if now < self.deadline:
            return None
        self._offers.clear()
        chains = {part: each.store.chain for part, each in self._parts.items()}
        found = {part: self._choices[part].choose(chain, now) for part, chain in chains.items()}
        if not any(found.values()):
            return None
        ends = {part: found[part] or Branch(chain.head.previous, ()) for part, chain in chains.items()}
        step = min(_end_of(chain, ends[part]) for part, chain in chains.items())
        cut = {part: _cut(chain, ends[part], step) for part, chain in chains.items()}
        gained = 0
        for part, branch in cut.items():
            if branch is None:
                return None
            gained += samples_of(branch.records) - samples_of(chains[part].since(branch.base))
        return {part: branch for part, branch in cut.items() if branch is not None} if gained > 0 else None

    # Signing

    async def _sign(
        self, ends: Mapping[str, Branch], chosen: bool = False, rate: float = 1.0, step: int | None = None
    ) -> Reset | None:
        """None if the chains have moved on meanwhile.

        :param step: to be decided next, if not that at the ends
        """
        async with self._signing:
            heads = None if chosen else {part: each.store.head.previous for part, each in self._parts.items()}
            voters = {part: self._voters(part) for part in self._parts}
            states = {part: await self._callbacks.state(part, branch) for part, branch in ends.items()}
            if any(branch.base not in self._parts[part].store.chain for part, branch in ends.items()):
                return None
            reset = self._reset(ends, states, voters, chosen)
            reset = reset.changed(rate=rate, step=reset.step if step is None else step).signed(self._organizer)
            if not self._may_take(reset, ends, heads):
                return None
            try:
                await files.write(self._disk, _FILE, files.encode(reset))
            except OSError as error:
                self._callbacks.alert(f"The coordinator cannot write to its disk ({error}): it signs no reset.")
                raise
            if not self._may_take(reset, ends, heads):
                await self._disk.remove(_FILE)
                return None
            await self._take(reset, ends)
            return reset

    def _voters(self, part: str) -> Voters:
        """Those in reach."""
        return self._watches[part].voters(self._parts[part].store.chain, self._clock.now())[:MAX_MEMBERS]

    def _reset(
        self, ends: Mapping[str, Branch], states: Mapping[str, str], voters: Mapping[str, Voters], chosen: bool
    ) -> Reset:
        """One of all parts."""
        made = [
            new_reset(each.store.chain, ends[part], each.votes.me, states[part], voters[part], chosen)
            for part, each in self._parts.items()
        ]
        term = max(self._term + 1, *(reset.term for reset in made), 0)
        return made[0].changed(term=term, parts=tuple(reset.parts[0] for reset in made))

    def _may_take(self, reset: Reset, ends: Mapping[str, Branch], heads: Mapping[str, str] | None = None) -> bool:
        """Whether these parts can. :param heads: where they have to be still"""
        for part, branch in ends.items():
            store, head = self._store(part), self._store(part).head
            if branch.base not in store.chain or head.term[0] >= reset.term:
                return False
            if heads is not None and heads[part] != head.previous:
                return False
        return True

    async def _take(self, reset: Reset, ends: Mapping[str, Branch]) -> None:
        for part, branch in ends.items():
            self._store(part).adopt([*branch.records, reset])
        for each in self._parts.values():
            await each.store.flush()
        self._callbacks.tell(reset)


def _link_at(chain: Chain, step: int) -> str | None:
    """The newest link of a branch after which this step is next; None if it is not there."""
    for record in reversed(chain.records):
        if record.after == step:
            return record.link
    first = chain.previous_of(chain.records[0]) if chain.records else chain.head.previous
    return first if chain.at(first).step == step else None


def _end_of(chain: Chain, branch: Branch) -> int:
    return branch.records[-1].after if branch.records else chain.at(branch.base).step


def _cut(chain: Chain, branch: Branch, step: int) -> Branch | None:
    """A branch up to a step; None if that is not known any more."""
    if chain.at(branch.base).step <= step:
        return Branch(branch.base, tuple(record for record in branch.records if record.after <= step))
    link = _link_at(chain, step)
    return Branch(link, ()) if link is not None else None
