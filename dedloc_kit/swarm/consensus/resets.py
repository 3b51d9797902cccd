"""When the coordinator signs a reset by itself: the electorate is gone, or a better branch was left."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.chain import Chain, ChainRecord, samples_of
from dedloc_kit.swarm.consensus.instance import Instance, Term
from dedloc_kit.swarm.consensus.participant import Participant
from dedloc_kit.swarm.consensus.records import NO_VOTE, Goodbye, PartReset, Reset, Voter

LAST_ROUNDS = 16


@dataclass(frozen=True)
class Position:
    """Where a peer says it is. :ivar samples: what it would contribute to the next step"""

    term: Term
    step: int
    head: str
    samples: int
    voter: Voter


@dataclass(frozen=True)
class ResetOptions:
    """Seconds. :ivar minimum: samples in a batch

    :ivar lost: without any sign of a quorum until a reset; at least `rounds` times the longest of the last rounds
    :ivar heard: a peer heard so long ago is in reach
    :ivar waited: so long a contributor has waited at this head: before, this peer may be the one that is behind
    :ivar asleep: a tick later than this means that the process slept, and has to listen first
    :ivar collect: branches that were left are collected so long before one is chosen
    """

    minimum: int
    lost: float = 60.0
    heard: float = 10.0
    waited: float = 5.0
    asleep: float = 10.0
    collect: float = 3.0
    rounds: float = 2.0


@dataclass(frozen=True)
class Branch:
    """A branch to return to: it follows the link `base` of this one."""

    base: str
    records: tuple[ChainRecord, ...]


class ElectorateWatch:
    """Whether the electorate of the coordinator's head is gone.

    Signs of a quorum: a commit, a proposal of a new value, promises of a quorum, or a quorum in reach while no full
    batch waits. A proposal of an old value is none: nobody may hold its average any more.
    """

    def __init__(self, options: ResetOptions, now: float) -> None:
        self.options = options
        self._took: deque[float] = deque(maxlen=LAST_ROUNDS)
        self._seen: dict[PeerId, tuple[float, Position]] = {}
        self._goodbyes: dict[Voter, str] = {}
        self._proposals: set[object] = set()
        self._quorum_at, self._last_tick = now, now
        self._waits_since: float | None = None

    def heard(self, peer: PeerId, position: Position, now: float) -> None:
        self._seen[peer] = now, position

    def said_goodbye(self, goodbye: Goodbye) -> None:
        """Its signature and run were checked (`Goodbye.verify`)."""
        self._goodbyes[goodbye.voter] = goodbye.head

    def moved(self, now: float) -> None:
        """This peer has a new head."""
        self._quorum_at, self._proposals = now, set()

    def round_took(self, seconds: float) -> None:
        self._took.append(seconds)

    @property
    def lost_after(self) -> float:
        """Seconds without a sign of a quorum."""
        return max([self.options.lost, *(self.options.rounds * seconds for seconds in self._took)])

    @property
    def peers(self) -> tuple[PeerId, ...]:
        """Peers that it has heard of lately."""
        return tuple(sorted(self._seen))

    def voters(self, chain: Chain, now: float) -> tuple[tuple[Voter, int], ...]:
        """Those in reach at this head, with the samples that wait: the electorate of a reset."""
        there = self._there(chain, now)
        return tuple((p.voter, max(p.samples, 1)) for p in there if p.voter.incarnation != NO_VOTE)

    def _there(self, chain: Chain, now: float) -> list[Position]:
        head = chain.head.previous
        return [p for at, p in self._seen.values() if now - at < self.options.heard and p.head == head]

    def tick(self, chain: Chain, me: Voter, round_now: Participant | None, now: float) -> bool:
        """Whether to sign a reset at the head now."""
        if now - self._last_tick > self.options.asleep:
            self._quorum_at, self._waits_since, self._seen = now, None, {}
        self._last_tick = now
        there = self._there(chain, now)
        waits = sum(position.samples for position in there)
        self._waits_since = (now if self._waits_since is None else self._waits_since) if waits else None
        present = [me, *(position.voter for position in there)]
        full = waits >= self.options.minimum
        if (chain.head.electorate.enough(present) and not full) or self._round_shows_quorum(round_now):
            self._quorum_at = now
        if self._waits_since is None or now - self._waits_since < self.options.waited:
            return False
        if now - self._quorum_at < self.lost_after and not self._all_have_left(chain.head, present):
            return False
        self._quorum_at = now
        return True

    def _round_shows_quorum(self, participant: Participant | None) -> bool:
        if participant is None:
            return False
        proposal = participant.proposal
        if proposal is not None and proposal.value is None and proposal.epoch not in self._proposals:
            self._proposals.add(proposal.epoch)
            return True
        ballot = participant.ballot
        return ballot is not None and ballot.proposal is None and ballot.has_quorum

    def _all_have_left(self, head: Instance, present: Sequence[Voter]) -> bool:
        """Whether no quorum can come any more: there would be none with everybody that has not said goodbye, and is not
        here as a new incarnation."""
        electorate = head.electorate
        here = {position.voter.peer: position.voter for _, position in self._seen.values()}
        anew = {
            voter
            for voter in electorate.weights
            if here.get(voter.peer, voter).incarnation not in (NO_VOTE, voter.incarnation)
        }
        gone = (self._goodbyes.keys() | anew) - set(present)
        return not electorate.enough([*(voter for voter in electorate.weights if voter not in gone), *present])


class BranchChoice:
    """Collects branches that peers left for this one; chooses one that has more samples since the parting.

    Only the one with most samples is kept.
    """

    def __init__(self, options: ResetOptions) -> None:
        self._options = options
        self._best: tuple[ChainRecord, ...] = ()
        self.deadline = inf

    def offer(self, chain: Chain, records: tuple[ChainRecord, ...], now: float) -> None:
        """What a peer has left; nothing of it is believed before it is found valid."""
        parting, least = chain.parting(records), max(0, samples_gained(chain, self._best))
        if parting is not None and samples_gained(chain, records) > least and chain.is_valid_after(*parting):
            self._best = records
        self.deadline = min(self.deadline, now + self._options.collect)

    def choose(self, chain: Chain, now: float) -> Branch | None:
        """Of what was collected; never across a reset that a person chose."""
        if now < self.deadline:
            return None
        best, self._best, self.deadline = self._best, (), inf
        parting = chain.parting(best)
        return Branch(*parting) if parting is not None and samples_gained(chain, best) > 0 else None


def samples_gained(chain: Chain, records: Sequence[ChainRecord]) -> int:
    """Samples that another branch has more than this one since they part; negative where a person chose this one."""
    parting = chain.parting(records)
    if parting is None:
        return 0
    base, rest = parting
    mine = chain.since(base)
    if any(isinstance(record, Reset) and record.chosen for record in mine):
        return -1
    return samples_of(rest) - samples_of(mine)


def new_reset(
    chain: Chain,
    branch: Branch,
    coordinator: Voter,
    state: str,
    voters: tuple[tuple[Voter, int], ...] = (),
    chosen: bool = False,
) -> Reset:
    """A reset, not signed yet, at the end of a branch; its term is above all that this peer knows.

    :param coordinator: the voter that breaks ties from here on
    :param state: the digest of the state there
    :param chosen: by a person
    """
    last = branch.records[-1] if branch.records else None
    before = chain.at(branch.base)
    step = last.after if last is not None else before.step
    terms = [each.term for each in (*chain.records, *branch.records) if isinstance(each, Reset)]
    part = PartReset(
        part=before.part, previous=last.link if last is not None else branch.base, state=state, voters=voters
    )
    term = 1 + max([chain.head.term[0], *terms])
    return Reset(run_id=before.run_id, term=term, step=step, parts=(part,), coordinator=coordinator, chosen=chosen)
