"""One member's part in one round: promises, votes, and the epochs that it decides. No I/O.

The decider of an epoch proposes who counts; a quorum of voters decides. The next reducer in rank takes over from a
decider that fails. Nothing that a round leaves behind matters to the next one but the vote.
"""

from collections.abc import Set
from math import inf

from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.ballot import Ballot, NotEnough, UselessReducers
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import (
    Abort,
    Acceptance,
    Assign,
    AverageComplete,
    Blame,
    Decided,
    Effect,
    Event,
    Fetch,
    Finish,
    Group,
    Message,
    Options,
    PartsComplete,
    PeerFailed,
    Persist,
    Prepare,
    Promised,
    Proposal,
    Received,
    Reduce,
    Report,
    Send,
    ShareComplete,
    Tick,
    TooFew,
)
from dedloc_kit.swarm.consensus.records import NO_VOTE, Commit, Epoch, Value, Vote, Voter
from dedloc_kit.swarm.consensus.signing import Signer, Verifier
from dedloc_kit.swarm.consensus.validation import ProposalCheck, check_promised


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
        group.check(instance, verifier)
        self.me = signer.peer
        if self.me not in group.peers or vote.previous != instance.previous:
            raise ValueError("this peer is not a member, or votes in another instance")
        self._voters = {entry.peer: entry.voter for entry in group.members}
        if self._voters[self.me] not in (vote.voter, Voter(self.me, NO_VOTE)):
            raise ValueError("the group knows this peer as another voter")
        if group.first > vote.promised.number + options.max_jump:
            raise ValueError("the group's first epoch is too far ahead")
        self.instance, self.group, self.vote, self.options = instance, group, vote, options
        self._signer, self._verifier = signer, verifier
        self.votes = self._voters[self.me] in instance.electorate
        """Whether this peer's vote counts in this instance."""
        first = [instance.coordinator] if instance.coordinator in group.peers else []
        self.ranking = (*first, *(r for r in group.reducers if r != instance.coordinator))
        """Who decides, in the order in which they take over."""
        self.epoch = Epoch(group.first, self.ranking[0], group.id)
        self.reducers = group.reducers
        self.failed: set[PeerId] = set()
        self.proposal: Proposal | None = None
        self.ballot: Ballot | None = None
        self.commit: Commit | None = None
        self.deadline = inf
        self._ended = self._reported = False
        self._accusers: set[PeerId] = set()
        self._complete: set[int] = set()
        self._shares: set[PeerId] = set()
        self._average: str | None = None
        self._began = self._since = 0.0

    @property
    def decider(self) -> PeerId:
        return self.epoch.decider

    @property
    def ended(self) -> bool:
        return self._ended

    def start(self, now: float) -> list[Effect]:
        """Join the first epoch; its promise goes out unasked."""
        self._began = now
        return self._enter(self.epoch, self.reducers, now)

    def handle(self, event: Event, now: float) -> list[Effect]:
        if self._ended:
            return []
        match event:
            case PartsComplete(epoch, member):
                if epoch == self.epoch and member in self._voters:
                    self._complete.add(self.group.peers.index(member))
                return self._report_if_due(now)
            case ShareComplete(epoch, reducer):
                if epoch == self.epoch:
                    self._shares.add(reducer)
                return []
            case AverageComplete(epoch, average):
                if epoch == self.epoch:
                    self._average = average
                return self._accept_if_due()
            case PeerFailed(member):
                return self._fail(member, now)
            case Received(member, message):
                return self._receive(member, message, now) if message.group == self.group.id else []
            case Tick():
                return self._tick(now)

    def _receive(self, member: PeerId, message: Message, now: float) -> list[Effect]:
        if member not in self._voters:
            return []
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
                return self._decided(member, message)
            case TooFew(epoch=epoch):
                return self._end("too few samples") if member == epoch.decider and epoch >= self.epoch else []

    # A member

    def _enter(self, epoch: Epoch, reducers: tuple[PeerId, ...], now: float) -> list[Effect]:
        """Join an epoch: promise to accept nothing of an earlier one any more."""
        self.epoch, self.reducers, self.proposal, self._average = epoch, reducers, None, None
        self._complete, self._shares, self._reported = set(), set(), False
        self._since, self.deadline = now, now + self.options.patience
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
            return [Blame(member, "reducers that are no reducers of the group")]
        return self._enter(epoch, prepare.reducers, now)

    def _may_open(self, member: PeerId, epoch: Epoch) -> bool:
        near = epoch.number <= max(self.epoch.number, self.vote.promised.number) + self.options.max_jump
        return member == epoch.decider and member in self.ranking and epoch.group == self.group.id and near

    def _report_if_due(self, now: float) -> list[Effect]:
        """A reducer reports once it has everything of all members that have not failed, or has waited long enough."""
        waited = now - self._since >= self.options.patience
        peers = enumerate(self.group.peers)
        awaited = any(place not in self._complete and peer not in self.failed for place, peer in peers)
        if self._reported or self.me not in self.reducers or (awaited and not waited):
            return []
        self._reported = True
        report = Report(group=self.group.id, epoch=self.epoch, complete=tuple(sorted(self._complete)))
        return [Send(self.decider, report)]

    def _propose(self, member: PeerId, proposal: Proposal, now: float) -> list[Effect]:
        epoch = proposal.epoch
        if epoch < self.epoch or not self._may_open(member, epoch):
            return []
        if epoch == self.epoch and self.proposal is not None:
            same = self.proposal.name == proposal.name
            return [] if same else [Blame(member, "two proposals in one epoch")]
        check = ProposalCheck(self.instance, self.group, self.options, self._verifier)
        try:
            check.valid(proposal)
        except ValueError as error:
            return [Blame(member, str(error))]
        effects = self._enter(epoch, proposal.reducers, now) if epoch > self.epoch else []
        if self.votes and not check.proven(proposal, self.vote):
            if proposal.proof:
                return [*effects, Blame(member, "the proof does not fit the proposal")]
            return effects or [self._persist_promise()]  # a promise that names a vote asks for the proof
        self.proposal, self._since, self.deadline = proposal, now, now + self.options.patience
        if proposal.value is None:
            effects.append(Reduce(epoch, proposal.name, tuple(self.group.members[place] for place in proposal.counted)))
        else:
            effects.append(Fetch(epoch, proposal.value, proposal.holders))
        return effects + self._accept_if_due()

    def _value(self) -> Value | None:
        """The proposed value, once this peer holds its average."""
        if self.proposal is None or self._average is None:
            return None
        if self.proposal.value is not None:
            return self.proposal.value
        return self.instance.value([self.group.members[place] for place in self.proposal.counted], self._average)

    def _accept_if_due(self) -> list[Effect]:
        value = self._value()
        if value is None or self.proposal is None or not self.votes or self.epoch < self.vote.promised:
            return []
        if value.average != self._average:
            self._average = None
            return [Fetch(self.epoch, value, self.proposal.holders)]
        accepted = self.instance.accepted(self.vote.voter, self.epoch, value).signed(self._signer)
        self.vote = self.vote.model_copy(update={"promised": self.epoch, "accepted": accepted, "value": value})
        acceptance = Acceptance(group=self.group.id, accepted=accepted)
        return [Persist(self.vote, (Send(self.decider, acceptance),), average=True)]

    def _decided(self, member: PeerId, message: Decided) -> list[Effect]:
        commit = message.commit
        try:
            self.instance.check_commit(commit, self._verifier)
        except ValueError as error:
            return [Blame(member, str(error))]
        self.commit, self._ended, self.deadline = commit, True, inf
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
        self._ended, self.deadline = True, inf
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
        try:
            check_promised(self.instance, promised, self._verifier)
        except ValueError as error:
            return [Blame(member, str(error))]
        if promise.epoch > self.epoch:
            if promise.epoch.number > self.epoch.number + self.options.max_jump:
                return [Blame(member, "an epoch too far ahead")]
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
        try:
            self.instance.check_accepted(accepted, self._verifier)
        except ValueError as error:
            return [Blame(member, str(error))]
        commit = self.ballot.accept(member, accepted)
        if commit is None:
            return []
        decided = Decided(group=self.group.id, commit=commit)
        return [Send(m, decided) for m in self.group.peers if m != self.me] + self._decided(self.me, decided)

    # Time

    def _tick(self, now: float) -> list[Effect]:
        if now < self.deadline:
            return []
        if now - self._began >= self.options.limit:
            return self._end("it took too long")
        self.deadline = now + self.options.patience
        late = now - self._since >= 2 * self.options.patience
        if self.proposal is None:
            effects = self._report_if_due(now)
            missing = self.ballot.missing - {self.me} if self.ballot is not None else set()
            if late and missing:
                self.failed |= missing
                return [*effects, *self._open_epoch(missing, now)]
            if late and not self._leads:
                return [*effects, *self._fail(self.decider, now)]  # it may be here, and yet do nothing
            return effects
        if self._average is None:
            if self.proposal.value is not None:
                return [Fetch(self.epoch, self.proposal.value, self.group.peers)]
            lacking = tuple(r for r in self.reducers if r not in self._shares and r != self.me)
            return [Send(self.decider, Report(group=self.group.id, epoch=self.epoch, lacking=lacking))]
        return self._fail(self.decider, now) if late else []
