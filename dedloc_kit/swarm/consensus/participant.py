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
    GiveUp,
    Heard,
    PartsComplete,
    PartsLost,
    PeerFailed,
    Persist,
    Received,
    Reduce,
    Send,
    ShareComplete,
    Tick,
    VoteLost,
)
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.liveness import FOR_AVERAGE, FOR_DATA, FOR_DECIDER, FOR_WORD, Liveness, Wait
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
from dedloc_kit.swarm.consensus.validation import ProposalCheck, check_membership, check_places, check_promised
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
        self._others = Liveness(instance, group, options)
        self._now = MemberEpoch(group, Epoch(group.first, self._others.ranking[0], group.id), group.reducers)
        self.ballot: Ballot | None = None
        self.commit: Commit | None = None
        self.deadline = inf
        self.ended = False
        self._accusers: set[PeerId] = set()
        self._parts_lost: set[PeerId] = set()
        self._ignored: set[PeerId] = set()
        self._early: Received | None = None
        self._began = self._fetch_again = 0.0

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
        if isinstance(event, (Heard, Received, PartsComplete)):
            self._others.hear(event.member, now)
        match event:
            case Heard():
                return []
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
                return self._fail({member}, now)
            case PartsLost(member):
                self._parts_lost.add(member)
                return self._report_if_due(now)
            case VoteLost():
                return self._end("the vote cannot be written")
            case Received(member, message):
                return self._receive(member, message, now)
            case Tick():
                return self._tick(now)

    def _receive(self, member: PeerId, message: Message, now: float) -> list[Effect]:
        if member not in self._voters or message.group != self.group.id:
            return []
        try:
            return self._one(member, message, now)
        except ValueError as error:  # what a message must fulfil is checked before anything changes
            return self._blame(member, str(error), now)

    def _one(self, member: PeerId, message: Message, now: float) -> list[Effect]:
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
            case TooFew():
                return self._too_few(member, message)

    # A member

    def _enter(self, epoch: Epoch, reducers: tuple[PeerId, ...], now: float) -> list[Effect]:
        """Join an epoch: promise to accept nothing of an earlier one any more."""
        self._now = MemberEpoch(self.group, epoch, reducers)
        self._begin_stage(now)
        self.ballot = None
        if epoch.decider == self.me:
            self.ballot = Ballot(self.instance, self.group, epoch, reducers, self.options, self._ignored)
        effects: list[Effect] = [Assign(epoch, reducers)]
        if self.votes:
            self._promise_at_least(epoch)
            effects.append(self._persist_promise())
        return effects

    def _begin_stage(self, now: float) -> None:
        self._others.begin(now)
        self._look_again(now)

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
        if not self._others.may_take_over(member, self.decider, now):
            self._early = Received(member, prepare)
            return []
        if not set(prepare.reducers) <= set(self.group.reducers) or not prepare.reducers:
            raise ValueError("reducers that are no reducers of the group")
        return self._enter(epoch, prepare.reducers, now)

    def _may_open(self, member: PeerId, epoch: Epoch) -> bool:
        near = epoch.number <= max(self.epoch.number, self.vote.promised.number) + self.options.max_jump
        return member == epoch.decider and member in self._others.ranking and epoch.group == self.group.id and near

    def _report_if_due(self, now: float) -> list[Effect]:
        if self.me not in self.reducers:
            return []
        gone = self._others.gone(self._now.incomplete, FOR_DATA, now)
        report = self._now.report(gone | self._parts_lost)
        return [Send(self.decider, report)] if report is not None else []

    def _propose(self, member: PeerId, proposal: Proposal, now: float) -> list[Effect]:
        epoch = proposal.epoch
        if epoch < self.epoch or not self._may_open(member, epoch):
            return []
        if epoch == self.epoch and self.proposal is not None:
            if self.proposal.name != proposal.name:
                raise ValueError("two proposals in one epoch")
            return []
        if epoch > self.epoch and not self._others.may_take_over(member, self.decider, now):
            self._early = Received(member, proposal)
            return []
        check = ProposalCheck(self.instance, self.group, self.options, self._verifier)
        check.valid(proposal)
        effects = self._enter(epoch, proposal.reducers, now) if epoch > self.epoch else []
        if self.votes and not check.proven(proposal, self.vote):
            if proposal.proof:
                return [*effects, *self._blame(member, "the proof does not fit the proposal", now)]
            return effects or [self._persist_promise()]  # a promise that names a vote asks for the proof
        self._now.propose(proposal)
        self._begin_stage(now)
        if proposal.value is None:
            effects.append(Reduce(epoch, proposal.name, tuple(self.group.members[place] for place in proposal.counted)))
        else:
            self._fetch_again = now + self.options.patience
            effects.append(Fetch(epoch, proposal.value, proposal.holders))
        return effects + self._accept_if_due()

    def _accept_if_due(self) -> list[Effect]:
        value = self._now.value(self.instance, self.options)
        if value is None or self.proposal is None or not self.votes or self.epoch < self.vote.promised:
            return []
        if self.vote.accepted is not None and self.vote.accepted.epoch == self.epoch:
            return []  # one vote in an epoch
        if value.average != self._now.average:
            self._now.averaged(None)
            return [Fetch(self.epoch, value, self.proposal.holders)]
        accepted = self.instance.accepted(self.vote.voter, self.epoch, value).signed(self._signer)
        self.vote = self.vote.model_copy(update={"promised": self.epoch, "accepted": accepted, "value": value})
        acceptance = Acceptance(group=self.group.id, accepted=accepted)
        return [Persist(self.vote, (Send(self.decider, acceptance),), average=True)]

    def _too_few(self, member: PeerId, message: TooFew) -> list[Effect]:
        if member != message.epoch.decider or message.epoch < self.epoch:
            return []
        check_places(message.counted, self.group)
        return self._end("too few samples", message.counted)

    def _decided(self, message: Decided) -> list[Effect]:
        commit = message.commit
        self.instance.check_commit(commit, self._verifier)
        self.commit, self.ended, self.deadline = commit, True, inf
        return [Fetch(self.epoch, commit.value, commit.holders), Finish(commit)]

    # Failures

    def _blame(self, member: PeerId, reason: str, now: float) -> list[Effect]:
        """Who sends what no honest member sends is out of this round."""
        return [Blame(member, reason), *self._fail({member}, now)]

    def _fail(self, members: Set[PeerId], now: float) -> list[Effect]:
        others = self._others
        if members <= others.failed:
            return []
        others.fail(members)
        if (reason := others.end) is not None:
            return self._end(reason)
        if self.ballot is not None:
            if members & set(self.reducers):
                return self._open_epoch(now)
            if self.ballot.is_hopeless(others.failed):
                return self._end("no quorum can come")
        elif self.decider in others.failed:
            if others.next_decider(self.decider) == self.me:
                return self._open_epoch(now)
            self._begin_stage(now)  # the next one has its own time
        return [*self._report_if_due(now), *self._follow_early(now)]

    def _follow_early(self, now: float) -> list[Effect]:
        """An epoch that another one opened before this peer found the decider gone."""
        early, self._early = self._early, None
        return self._receive(early.member, early.message, now) if early is not None else []

    def _end(self, reason: str, counted: tuple[int, ...] = ()) -> list[Effect]:
        self.ended, self.deadline = True, inf
        return [Abort(reason, counted)]

    # The decider

    def _open_epoch(self, now: float) -> list[Effect]:
        living = self._others.reducers
        if not living:
            return self._end("no reducer is left")
        number = max(self.epoch, self.vote.promised).number + 1
        prepare = Prepare(group=self.group.id, epoch=Epoch(number, self.me, self.group.id), reducers=living)
        told = [Send(m, prepare) for m in self._others.members if m != self.me]
        return [*told, *self._enter(prepare.epoch, living, now)]

    def _promised(self, member: PeerId, promised: Promised, now: float) -> list[Effect]:
        ballot, promise = self.ballot, promised.promise
        if ballot is None or promise.voter != self._voters[member] or promise.epoch < self.epoch:
            return []
        check_promised(self.instance, promised, self.options, self._verifier)
        if promise.epoch > self.epoch:
            if promise.epoch.number > self.epoch.number + self.options.max_jump:
                raise ValueError("an epoch too far ahead")
            self._promise_at_least(promise.epoch)
            return self._open_epoch(now)
        if ballot.proposal is not None:  # it is late, or asks for the proof
            return [Send(member, ballot.proven)] if ballot.needs_proof(promise) else []
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
            self._others.drop_reducers(useless)
            return self._open_epoch(now)
        self.ballot.report(member, report.complete)
        return self._propose_if_due(now)

    def _propose_if_due(self, now: float) -> list[Effect]:
        assert self.ballot is not None
        match self.ballot.propose():
            case Proposal() as proposal:
                return [Send(m, proposal) for m in self._others.members]
            case UselessReducers(reducers):
                self._others.drop_reducers(reducers)
                return self._open_epoch(now)
            case NotEnough(counted):
                over = TooFew(group=self.group.id, epoch=self.epoch, counted=counted)
                told = [Send(m, over) for m in self.group.peers if m != self.me]
                return [*told, *self._too_few(self.me, over)]
            case None if self._ignored and self.ballot.is_hopeless(self._others.failed):
                return self._end("no quorum can come")
            case None:
                return []

    def _acceptance(self, member: PeerId, message: Acceptance) -> list[Effect]:
        accepted = message.accepted
        if self.ballot is None or accepted.epoch != self.epoch or accepted.voter != self._voters[member]:
            return []
        self.instance.check_accepted(accepted, self._verifier)
        commit = self.ballot.accept(member, accepted)
        if commit is None:
            return self._end("no quorum can come") if self.ballot.is_hopeless(self._others.failed) else []
        decided = Decided(group=self.group.id, commit=commit)
        return [Send(m, decided) for m in self.group.peers if m != self.me] + self._decided(decided)

    # Time

    def _look_again(self, now: float) -> None:
        self.deadline = min(now + self.options.patience / 4, self._began + self.options.limit)

    def _tick(self, now: float) -> list[Effect]:
        if now < self.deadline:
            return []
        if now - self._began >= self.options.limit:
            return self._end("it took too long")
        self._look_again(now)
        awaited, wait = self._awaited
        if gone := self._others.gone(awaited - self._others.failed - {self.me}, wait, now):
            return [*(GiveUp(member) for member in sorted(gone)), *self._fail(gone, now)]
        due = self._report_if_due(now) if self.proposal is None else self._seek_average(now)
        return [*due, *self._follow_early(now)]

    @property
    def _awaited(self) -> tuple[set[PeerId], Wait]:
        """Without whom this epoch gets no further."""
        if self.ballot is not None:
            return self.ballot.awaited, FOR_WORD
        decider = self._others.next_decider(self.decider)
        return ({decider} if decider is not None else set()), FOR_DECIDER

    def _seek_average(self, now: float) -> list[Effect]:
        """After the proposal: if the average does not come, accuse a reducer, or fetch from all."""
        if self.proposal is None or self._now.average is not None:
            return []
        if self.proposal.value is None:
            accusation = self._now.accuse(self._others.gone(self._now.lacking - {self.me}, FOR_DATA, now))
            return [Send(self.decider, accusation)] if accusation is not None else []
        holders = set(self.proposal.holders)
        if self.ballot is not None and self._others.gone(holders, FOR_AVERAGE, now) == holders:
            self._ignored |= self.ballot.namers
            return self._open_epoch(now)
        if now < self._fetch_again:
            return []
        self._fetch_again = now + self.options.patience
        return [Fetch(self.epoch, self.proposal.value, self.group.peers)]
