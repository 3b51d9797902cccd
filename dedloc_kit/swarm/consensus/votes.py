"""A peer's votes: what it remembers, when it may vote, and that nothing is sent before it is on disk."""

from dataclasses import dataclass

from dedloc_kit.swarm.consensus.events import Persist, Send
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.records import NO_VOTE, Vote, Voter


@dataclass(frozen=True)
class Write:
    """Write the vote file, then call `written`. :ivar average: with the average that `vote.value` names"""

    vote: Vote
    average: bool


class VoteBook:
    """The vote file of one peer. One write is under way at a time; a later vote waits, and replaces those before it.

    :ivar voter: this peer with the incarnation of its vote file
    :ivar mute: the last write failed: no vote until one succeeds
    :ivar left: it has said goodbye, and never votes again
    """

    def __init__(self, voter: Voter, stored: Vote | None) -> None:
        """:param stored: the content of the file; None, with a new incarnation, if there is none"""
        self.voter = stored.voter if stored is not None else voter
        self.mute = self.left = False
        self._memory = stored
        self._asked = self._under_way = self._done = 0
        self._average = False
        self._waiting: list[tuple[int, Send]] = []

    def vote(self, instance: Instance) -> Vote:
        """What this voter remembers of an instance."""
        if self._memory is not None and self._memory.previous == instance.previous:
            return self._memory
        return instance.first_vote(self.voter)

    def may_vote(self, head: Instance) -> bool:
        """Nobody votes in an instance that its vote file has passed: it could vote there a second time."""
        if self.mute or self.left:
            return False
        memory = self._memory  # within a term there is one commit for each step
        return memory is None or (memory.term, memory.step) <= (head.term, head.step)

    def as_voter(self, head: Instance) -> Voter:
        """As whom it contributes to the next step."""
        return self.voter if self.may_vote(head) else self.voter._replace(incarnation=NO_VOTE)

    # Writing

    def persist(self, effect: Persist) -> list[Write]:
        """Remember a vote; its messages wait until it is written."""
        self._memory, self._average = effect.vote, effect.average or self._average
        self._asked += 1
        self._waiting += [(self._asked, send) for send in effect.then]
        return self._write_if_idle()

    def retry(self, head: Instance) -> list[Write]:
        """After a failed write: perhaps the disk is well again."""
        if not self.mute or self._under_way or self.left:
            return []
        return self.persist(Persist(self._memory or self.vote(head), ()))

    def _write_if_idle(self) -> list[Write]:
        if self._under_way or self._asked == self._done or self._memory is None:
            return []
        self._under_way = self._asked
        average, self._average = self._average, False
        return [Write(self._memory, average)]

    def written(self, success: bool) -> list[Send | Write]:
        """The write under way has ended: what may be sent now, and what is to be written next."""
        self._done, self._under_way, self.mute = self._under_way, 0, not success
        due = [send for number, send in self._waiting if number <= self._done]
        self._waiting = [each for each in self._waiting if each[0] > self._done]
        if self.left:
            return []
        return [*(due if success else ()), *self._write_if_idle()]

    def leave(self) -> None:
        self.left, self._waiting = True, []
