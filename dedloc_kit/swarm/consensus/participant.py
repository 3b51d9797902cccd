"""One member's part in one round: promises, votes, and the epochs that it decides. No I/O.

The decider of an epoch proposes who counts; a quorum of voters decides. The next reducer in rank takes over from a
decider that fails. Nothing that a round leaves behind matters to the next one but the vote.
"""

from collections.abc import Set
from math import inf

from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.ballot import Ballot, NotEnough, UselessReducers
from dedloc_kit.swarm.consensus.epoch import MemberEpoch
from dedloc_kit.swarm.consensus.events import (
    Abort,
    Assign,
    AverageComplete,
    Blame,
    Effect,
    Event,
    Fetch,
    Finish,
    PartsComplete,
    PeerFailed,
    Persist,
    Received,
    Reduce,
    Send,
    ShareComplete,
    Tick,
)
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import (
    Acceptance,
    Decided,
    Group,
    Message,
    Options,
    Prepare,
    Promised,
    Proposal,
    Report,
    TooFew,
)
from dedloc_kit.swarm.consensus.records import Commit, Epoch, Vote
from dedloc_kit.swarm.consensus.validation import ProposalCheck, check_membership, check_promised
from dedloc_kit.swarm.p2p.seams import Signer, Verifier


class Participant:
    """The state machine of a member.

    :ivar vote: what this voter has promised and accepted; outlives the round
    :ivar commit: what was decided, once it is known
    :ivar deadline: when it needs a Tick, on the caller's clock
    """

    def __init__(
        self, instance: Instance, group: Group, vote: Vote, options: Options, signer: Signer, verifier: Verifier
    ) -> None:
        """Raises ValueError unless the group may decide this instance and this peer is a member."""
        check_membership(instance, group, vote, options, verifier)
        self.me = signer.peer
        self._voters = {entry.peer: entry.voter for entry in group.members}
        self.instance, self.group, self.vote, self.options = instance, group, vote, options
        self._signer, self._verifier = signer, verifier
        self.votes = self._voters[self.me] in instance.electorate
        """Whether this peer's vote counts in this instance."""
        first = [instance.coordinator] if instance.coordinator in group.peers else []
        self.ranking = (*first, *(r for r in group.reducers if r != instance.coordinator))
        """Who decides, in the order in which they take over."""
        self._now = MemberEpoch(group, Epoch(group.first, self.ranking[0], group.id), group.reducers, 0.0)
        self.failed: set[PeerId] = set()
        self.ballot: Ballot | None = None
        self.commit: Commit | None = None
        self.deadline = inf
        self.ended = False
        self._accusers: set[PeerId] = set()
        self._began = 0.0

    @property
    def epoch(self) -> Epoch:
        return self._now.epoch

    @property
    def decider(self) -> PeerId:
        return self.epoch.decider

    @property
    def reducers(self) -> tuple[PeerId, ...]:
        """Of this epoch."""
        return self._now.reducers

    @property
    def proposal(self) -> Proposal | None:
        return self._now.proposal

    def start(self, now: float) -> list[Effect]:
        """Join the first epoch; its promise goes out unasked."""
        self._began = now
        return self._enter(self.epoch, self.reducers, now)

    def handle(self, event: Event, now: float) -> list[Effect]:
        if self.ended:
            return []
        match event:
            case PartsComplete(epoch, member):
                if epoch == self.epoch:
                    self._now.complete(member)
                return self._report_if_due(now)
            case ShareComplete(epoch, reducer):
                if epoch == self.epoch:
                    self._now.share(reducer)
                return []
            case AverageComplete(epoch, average):
                if epoch == self.epoch:
                    self._now.averaged(average)
                return self._accept_if_due()
            case PeerFailed(member):
                return self._fail(member, now)
            case Received(member, message):
                if member not in self._voters or message.group != self.group.id:
                    return []
                try:
                    return self._receive(member, message, now)
                except ValueError as error:  # what a message must fulfil is checked before anything changes
                    return [Blame(member, str(error))]
            case Tick():
                return self._tick(now)

    def _receive(self, member: PeerId, message: Message, now: float) -> list[Effect]:
        match message:
            case Prepare():
                return self._prepare(member, message, now)
            case Promised():
                return self._promised(member, message, now)
            case Report():
                return self._report(member, message, now)
            case Proposal():
                return self._propose(member, message, now)
            case Acceptance():
                return self._acceptance(member, message)
            case Decided():
                return self._decided(message)
            case TooFew(epoch=epoch):
                return self._end("too few samples") if member == epoch.decider and epoch >= self.epoch else []

    # A member

    def _enter(self, epoch: Epoch, reducers: tuple[PeerId, ...], now: float) -> list[Effect]:
        """Join an epoch: promise to accept nothing of an earlier one any more."""
        self._now, self.deadline = MemberEpoch(self.group, epoch, reducers, now), now + self.options.patience
        self.ballot = Ballot(self.instance, self.group, epoch, reducers, self.options) if self._leads else None
        effects: list[Effect] = [Assign(epoch, reducers)]
        if self.votes:
            self._promise_at_least(epoch)
            effects.append(self._persist_promise())
        return effects

    @property
    def _leads(self) -> bool:
        return self.epoch.decider == self.me

    def _promise_at_least(self, epoch: Epoch) -> None:
        self.vote = self.vote.model_copy(update={"promised": max(self.vote.promised, epoch)})

    def _persist_promise(self) -> Persist:
        promise = self.instance.promise(self.vote).signed(self._signer)
        promised = Promised(group=self.group.id, promise=promise, value=self.vote.value)
        return Persist(self.vote, (Send(self.decider, promised),))

    def _prepare(self, member: PeerId, prepare: Prepare, now: float) -> list[Effect]:
        epoch = prepare.epoch
        if epoch <= self.epoch or not self._may_open(member, epoch):
            return []
        if not set(prepare.reducers) <= set(self.group.reducers) or not prepare.reducers:
            raise ValueError("reducers that are no reducers of the group")
        return self._enter(epoch, prepare.reducers, now)

    def _may_open(self, member: PeerId, epoch: Epoch) -> bool:
        near = epoch.number <= max(self.epoch.number, self.vote.promised.number) + self.options.max_jump
        return member == epoch.decider and member in self.ranking and epoch.group == self.group.id and near

    def _report_if_due(self, now: float) -> list[Effect]:
        if self.me not in self.reducers:
            return []
        report = self._now.report(self.failed, now - self._now.since >= self.options.patience)
        return [Send(self.decider, report)] if report is not None else []

    def _propose(self, member: PeerId, proposal: Proposal, now: float) -> list[Effect]:
        epoch = proposal.epoch
        if epoch < self.epoch or not self._may_open(member, epoch):
            return []
        if epoch == self.epoch and self.proposal is not None:
            if self.proposal.name != proposal.name:
                raise ValueError("two proposals in one epoch")
            return []
        check = ProposalCheck(self.instance, self.group, self.options, self._verifier)
        check.valid(proposal)
        effects = self._enter(epoch, proposal.reducers, now) if epoch > self.epoch else []
        if self.votes and not check.proven(proposal, self.vote):
            if proposal.proof:
                return [*effects, Blame(member, "the proof does not fit the proposal")]
            return effects or [self._persist_promise()]  # a promise that names a vote asks for the proof
        self._now.propose(proposal, now)
        self.deadline = now + self.options.patience
        if proposal.value is None:
            effects.append(Reduce(epoch, proposal.name, tuple(self.group.members[place] for place in proposal.counted)))
        else:
            effects.append(Fetch(epoch, proposal.value, proposal.holders))
        return effects + self._accept_if_due()

    def _accept_if_due(self) -> list[Effect]:
        value = self._now.value(self.instance)
        if value is None or self.proposal is None or not self.votes or self.epoch < self.vote.promised:
            return []
        if value.average != self._now.average:
            self._now.averaged(None)
            return [Fetch(self.epoch, value, self.proposal.holders)]
        accepted = self.instance.accepted(self.vote.voter, self.epoch, value).signed(self._signer)
        self.vote = self.vote.model_copy(update={"promised": self.epoch, "accepted": accepted, "value": value})
        acceptance = Acceptance(group=self.group.id, accepted=accepted)
        return [Persist(self.vote, (Send(self.decider, acceptance),), average=True)]

    def _decided(self, message: Decided) -> list[Effect]:
        commit = message.commit
        self.instance.check_commit(commit, self._verifier)
        self.commit, self.ended, self.deadline = commit, True, inf
        return [Fetch(self.epoch, commit.value, commit.holders), Finish(commit)]

    # Failures

    def _fail(self, member: PeerId, now: float) -> list[Effect]:
        self.failed.add(member)
        if all(peer in self.failed for peer in self.ranking):
            return self._end("no reducer is left")
        if not self.instance.electorate.enough(v for peer, v in self._voters.items() if peer not in self.failed):
            return self._end("too few voters are left")
        if self._leads and member in self.reducers:
            return self._open_epoch(frozenset(), now)
        if self.decider in self.failed and self._is_next:
            return self._open_epoch(frozenset(), now)
        return self._report_if_due(now)

    @property
    def _is_next(self) -> bool:
        """Whether all before this peer in rank have failed."""
        if self.me not in self.ranking:
            return False
        return all(peer in self.failed for peer in self.ranking[: self.ranking.index(self.me)])

    def _end(self, reason: str) -> list[Effect]:
        self.ended, self.deadline = True, inf
        return [Abort(reason)]

    # The decider

    def _open_epoch(self, without: Set[PeerId], now: float) -> list[Effect]:
        living = tuple(r for r in self.group.reducers if r not in self.failed and r not in without)
        if not living:
            return self._end("no reducer is left")
        number = max(self.epoch, self.vote.promised).number + 1
        prepare = Prepare(group=self.group.id, epoch=Epoch(number, self.me, self.group.id), reducers=living)
        told = [Send(m, prepare) for m in self.group.peers if m not in self.failed and m != self.me]
        return [*told, *self._enter(prepare.epoch, living, now)]

    def _promised(self, member: PeerId, promised: Promised, now: float) -> list[Effect]:
        ballot, promise = self.ballot, promised.promise
        if ballot is None or promise.voter != self._voters[member] or promise.epoch < self.epoch:
            return []
        check_promised(self.instance, promised, self._verifier)
        if promise.epoch > self.epoch:
            if promise.epoch.number > self.epoch.number + self.options.max_jump:
                raise ValueError("an epoch too far ahead")
            self._promise_at_least(promise.epoch)
            return self._open_epoch(frozenset(), now)
        if ballot.proposal is not None:  # it is late, or asks for the proof
            proof = ballot.quorum if promise.accepted is not None else ()
            return [Send(member, ballot.proposal.model_copy(update={"proof": proof}))] if proof else []
        ballot.promise(member, promised)
        return self._propose_if_due(now)

    def _report(self, member: PeerId, report: Report, now: float) -> list[Effect]:
        if self.ballot is None or report.epoch != self.epoch:
            return []
        if report.lacking:
            useless = set(report.lacking[:1]) - {self.me}
            if member in self._accusers or not useless <= set(self.reducers) or not useless:
                return []  # a member has one accusation in a round
            self._accusers.add(member)
            self.failed |= useless
            return self._open_epoch(useless, now)
        self.ballot.report(member, report.complete)
        return self._propose_if_due(now)

    def _propose_if_due(self, now: float) -> list[Effect]:
        assert self.ballot is not None
        match self.ballot.propose():
            case Proposal() as proposal:
                return [Send(m, proposal) for m in self.group.peers if m not in self.failed]
            case UselessReducers(reducers):
                self.failed |= reducers
                return self._open_epoch(reducers, now)
            case NotEnough():
                over = TooFew(group=self.group.id, epoch=self.epoch)
                told = [Send(m, over) for m in self.group.peers if m != self.me]
                return [*told, *self._end("too few samples")]
            case None:
                return []

    def _acceptance(self, member: PeerId, message: Acceptance) -> list[Effect]:
        accepted = message.accepted
        if self.ballot is None or accepted.epoch != self.epoch or accepted.voter != self._voters[member]:
            return []
        self.instance.check_accepted(accepted, self._verifier)
        commit = self.ballot.accept(member, accepted)
        if commit is None:
            return []
        decided = Decided(group=self.group.id, commit=commit)
        return [Send(m, decided) for m in self.group.peers if m != self.me] + self._decided(decided)

    # Time

    def _tick(self, now: float) -> list[Effect]:
        if now < self.deadline:
            return []
        if now - self._began >= self.options.limit:
            return self._end("it took too long")
        self.deadline = now + self.options.patience
        late = now - self._now.since >= 2 * self.options.patience
        if self.proposal is None:
            effects = self._report_if_due(now)
            missing = self.ballot.missing - {self.me} if self.ballot is not None else set()
            if late and missing:
                self.failed |= missing
                return [*effects, *self._open_epoch(missing, now)]
            if late and not self._leads:
                return [*effects, *self._fail(self.decider, now)]  # it may be here, and yet do nothing
            return effects
        if self._now.average is None:
            if self.proposal.value is not None:
                return [Fetch(self.epoch, self.proposal.value, self.group.peers)]
            return [Send(self.decider, self._now.accusation(self.me))]
        return self._fail(self.decider, now) if late else []
