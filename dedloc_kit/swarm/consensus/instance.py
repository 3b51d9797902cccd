"""One instance of Paxos: it decides on the step that follows one commit or reset."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.electorate import Electorate
from dedloc_kit.swarm.consensus.records import (
    MAX_MEMBERS,
    NO_EPOCH,
    NO_VOTE,
    Accepted,
    Commit,
    Entry,
    Epoch,
    Promise,
    Reset,
    Value,
    Vote,
    Voter,
)
from dedloc_kit.swarm.p2p.seams import Verifier

Term = tuple[int, str]
"""Number and link of the last reset. Of two resets with one number the higher link wins."""


@dataclass(frozen=True)
class Instance:
    """Everything that decides who may vote and on what.

    :ivar step: the step to decide on
    :ivar previous: the link of the commit or reset before; it names the instance
    :ivar organizer: the peer id of the key that signs resets
    :ivar coordinator: the peer whose vote breaks ties
    """

    run_id: str
    part: str
    step: int
    previous: str
    term: Term
    organizer: PeerId
    coordinator: PeerId
    electorate: Electorate

    @staticmethod
    def genesis(reset: Reset, part: str, organizer: PeerId, verifier: Verifier) -> "Instance":
        """The first instance of a run. Raises ValueError unless the organizer has signed the reset."""
        before = Electorate({}, None)
        start = Instance(reset.run_id, part, reset.step, "", (-1, ""), organizer, reset.coordinator.peer, before)
        return start.after(reset, verifier)

    def after(self, record: Commit | Reset, verifier: Verifier) -> "Instance":
        """The instance that follows a record. Raises ValueError unless the record is valid here."""
        return (
            self._after_commit(record, verifier) if isinstance(record, Commit) else self._after_reset(record, verifier)
        )

    def _after_commit(self, commit: Commit, verifier: Verifier) -> "Instance":
        self.check_commit(commit, verifier)
        coordinator = self.electorate.coordinator
        for entry in commit.value.counted:
            if entry.peer == self.coordinator and entry.voter.incarnation != NO_VOTE:
                coordinator = entry.voter
        electorate = Electorate.of_value(commit.value, coordinator)
        return replace(self, step=commit.after, previous=commit.link, electorate=electorate)

    def _after_reset(self, reset: Reset, verifier: Verifier) -> "Instance":
        part = reset.of(self.part)
        if (reset.run_id, part.previous) != (self.run_id, self.previous) or reset.step < self.step:
            raise ValueError("the reset does not follow this record")
        if reset.step > self.step and not reset.chosen:
            raise ValueError("only a person lets a reset take over a step")
        if reset.term <= self.term[0]:
            raise ValueError("the reset has no higher term")
        reset.check_signature(self.organizer, verifier)
        return replace(
            self,
            step=reset.step,
            previous=reset.link,
            term=(reset.term, reset.link),
            electorate=Electorate.of_reset(part, reset.coordinator),
            coordinator=reset.coordinator.peer,
        )

    # What is valid in this instance. Each raises ValueError.

    def check_entry(self, entry: Entry, verifier: Verifier) -> None:
        if (entry.run_id, entry.part, entry.previous) != (self.run_id, self.part, self.previous):
            raise ValueError("a contribution to another step")
        entry.verify(verifier)

    def check_value(self, value: Value, verifier: Verifier) -> None:
        if (value.run_id, value.part, value.step, value.previous) != (self.run_id, self.part, self.step, self.previous):
            raise ValueError("a value of another step")
        check_distinct(value.counted)
        for entry in value.counted:
            self.check_entry(entry, verifier)

    def check_accepted(self, accepted: Accepted, verifier: Verifier) -> None:
        if (accepted.run_id, accepted.part, accepted.previous) != (self.run_id, self.part, self.previous):
            raise ValueError("accepted in another instance")
        accepted.check_signature(accepted.voter.peer, verifier)

    def check_promise(self, promise: Promise, verifier: Verifier) -> None:
        if (promise.run_id, promise.part, promise.previous) != (self.run_id, self.part, self.previous):
            raise ValueError("a promise in another instance")
        promise.check_signature(promise.voter.peer, verifier)
        if promise.accepted is not None:
            if promise.accepted.voter != promise.voter or promise.accepted.epoch > promise.epoch:
                raise ValueError("a promise with the vote of another")
            self.check_accepted(promise.accepted, verifier)

    def check_commit(self, commit: Commit, verifier: Verifier) -> None:
        self.check_value(commit.value, verifier)
        votes = {(each.epoch, each.link, each.average) for each in commit.accepted}
        if len(votes) != 1 or votes != {(commit.accepted[0].epoch, commit.link, commit.value.average)}:
            raise ValueError("the commit's votes are not for one value in one epoch")
        if len({each.voter for each in commit.accepted}) < len(commit.accepted):
            raise ValueError("a voter stands twice")
        if not self.electorate.enough(each.voter for each in commit.accepted):
            raise ValueError("the commit has no quorum")
        for each in commit.accepted:
            self.check_accepted(each, verifier)

    # What a voter signs here

    def first_vote(self, voter: Voter) -> Vote:
        """The memory of a voter that has promised nothing yet."""
        return Vote(
            run_id=self.run_id,
            part=self.part,
            term=self.term,
            step=self.step,
            previous=self.previous,
            voter=voter,
            promised=NO_EPOCH,
        )

    def promise(self, vote: Vote) -> Promise:
        return Promise(
            run_id=self.run_id,
            part=self.part,
            previous=self.previous,
            epoch=vote.promised,
            voter=vote.voter,
            accepted=vote.accepted,
        )

    def accepted(self, voter: Voter, epoch: Epoch, value: Value) -> Accepted:
        return Accepted(
            run_id=self.run_id,
            part=self.part,
            previous=self.previous,
            epoch=epoch,
            link=value.link,
            average=value.average,
            voter=voter,
        )

    def value(self, counted: Sequence[Entry], weights: Sequence[int], average: str) -> Value:
        return Value(
            run_id=self.run_id,
            part=self.part,
            step=self.step,
            previous=self.previous,
            counted=tuple(counted),
            weights=tuple(weights),
            average=average,
        )


def check_distinct(entries: Sequence[Entry]) -> None:
    """Raises ValueError if a peer or a piece stands twice, or there are too many entries."""
    pieces = [piece.hash for entry in entries for piece in entry.pieces]
    if len({entry.peer for entry in entries}) < len(entries) or len(set(pieces)) < len(pieces):
        raise ValueError("a peer or a piece counts twice")
    if len(entries) > MAX_MEMBERS:
        raise ValueError(f"more than {MAX_MEMBERS} members")
