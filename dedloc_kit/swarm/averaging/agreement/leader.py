"""What the leader of a round does: it asks a quorum, says who counts, and collects acknowledgements of the average."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dedloc_kit.swarm.averaging.agreement.heads import LACKED, UNTOLD
from dedloc_kit.swarm.averaging.agreement.roll import (
    MAX_BALLOTS,
    Acknowledgement,
    Answer,
    Call,
    Certificate,
    Held,
    Promise,
    Reported,
    Roll,
    Votes,
    newest,
)
from dedloc_kit.swarm.averaging.streams import messages
from dedloc_kit.swarm.averaging.streams.messages import Says

if TYPE_CHECKING:
    from dedloc_kit.swarm.averaging.agreement.voter import Voter
    from dedloc_kit.swarm.averaging.allreduce import AllReduce

ALONE = 2
"""So often a leader looks and finds too few until it gives up: they may have ended, and be about to tell it how."""


@dataclass
class Ballot:
    """What its leader has heard in one ballot.

    :ivar joined: promises of those who have joined it, as they came; the first one needs none
    :ivar choice: the promises of a quorum; none as long as there is no quorum
    :ivar resumed: the average that has to be taken in any case, as that quorum says, and its roll
    :ivar holders: who has it
    :ivar reports: of each reducer, the hash of the introduction of each member from which it has everything
    """

    votes: Votes
    number: int
    reducers: tuple[int, ...]
    rows: tuple[int, ...]
    proposed: bool = False
    choice: tuple[bytes, ...] | None = None
    resumed: tuple[Acknowledgement, Roll] | None = None
    holders: frozenset[int] = frozenset()
    joined: dict[int, tuple[Promise, bytes]] = field(default_factory=dict)
    rolls: dict[bytes, Roll] = field(default_factory=dict)
    reports: dict[int, Mapping[int, bytes]] = field(default_factory=dict)
    acknowledged: dict[int, tuple[Acknowledgement, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.number:
            self.choice = ()

    def join(self, member: int, promise: Promise, signed: bytes, roll: Roll | None) -> None:
        """A member has joined, with the roll of what it has acknowledged before."""
        self.joined[member] = promise, signed
        if roll is not None:
            self.rolls[roll.name] = roll
        if self.choice is None:
            self._choose()

    def _choose(self) -> None:
        """Once a quorum has joined. Whoever names what most do not have cannot hinder the others."""
        promises = {member: promise for member, (promise, _) in self.joined.items()}
        free = [member for member, promise in promises.items() if promise.acknowledged is None]
        if self.votes.enough(free):
            self.choice = tuple(self.joined[member][1] for member in free)
            return
        for found in newest(promises.values()):
            agreeing = {
                member
                for member, promise in promises.items()
                if promise.acknowledged in (None, found) or promise.acknowledged.ballot < found.ballot
            }
            if self.votes.enough(agreeing):
                self.choice = tuple(self.joined[member][1] for member in agreeing)
                self.resumed = found, self.rolls[found.roll]
                self.holders = frozenset(member for member in agreeing if promises[member].acknowledged == found)
                return

    @property
    def ready(self) -> bool:
        """Can a roll be proposed?"""
        return self.choice is not None and not self.proposed and (self.resumed is not None or not self.missing())

    def missing(self) -> list[int]:
        """Reducers that have not reported."""
        return [reducer for reducer in self.reducers if reducer not in self.reports]

    def useless(self) -> list[int]:
        """Reducers that lack more than half of what others have: not those members are cut off, but they are."""
        if self.resumed is not None:
            return []
        useless = []
        for row in set(self.rows):
            reports = {r: whole for r, whole in self.reports.items() if self.rows[r] == row}
            have = Counter(member for whole in reports.values() for member in whole)
            useless += [reducer for reducer, whole in reports.items() if 2 * len(whole) < len(have)]
        return useless

    def roll(self) -> Roll:
        """The roll of those from whom every reducer of their row has everything, introduced to all of these alike."""
        if self.resumed is not None:
            found, roll = self.resumed
            return roll.model_copy(update={"ballot": self.number, "average": found.average})
        names = [b""] * len(self.votes.members)
        for row in set(self.rows):
            first, *others = [whole for r, whole in self.reports.items() if self.rows[r] == row] or [{}]
            for member, name in first.items():
                if all(whole.get(member) == name for whole in others):
                    names[member] = name
        return Roll(group=self.votes.group, ballot=self.number, reducers=self.reducers, introductions=tuple(names))

    def certificate(self, right: Acknowledgement) -> Certificate | None:
        """If a quorum holds the same average as the leader does."""
        if not self.votes.enough(self.acknowledged):
            return None
        signed = {member: signed for member, (found, signed) in self.acknowledged.items() if found == right}
        return Certificate(signed=tuple(signed.values())) if self.votes.enough(signed) else None


class Leader:
    """One peer's part as the leader: none, until it leads."""

    def __init__(self, round: "AllReduce", voter: "Voter", votes: Votes) -> None:
        self._round, self._voter, self._votes = round, voter, votes
        self._plan, self._mine, self._links = round.plan, round.mine, round.links
        self._heeded: set[int] = set()
        """Members that told of a higher ballot: each is believed once, for it may lie."""
        self._alone = 0
        """So often in a row there was no quorum any more."""
        self.ballot: Ballot | None = None

    @property
    def leads(self) -> bool:
        return self.ballot is not None

    def begin(self) -> None:
        """Lead the first ballot, in which nothing can have been before."""
        self.ballot = Ballot(self._votes, 0, self._plan.reducers, self._plan.rows)

    def stop(self) -> None:
        """Another one leads, and has a quorum."""
        self.ballot = None

    def call(self, above: int) -> None:
        """Begin a ballot without the reducers that are gone, higher than this one."""
        ranking = self._voter.ranking
        number = above + 1
        number += (ranking.index(self._mine) - number) % len(ranking)
        living = self._voter.heads.living()
        self.ballot = Ballot(self._votes, number, living, self._plan.rows)
        self._voter.join(Call(ballot=number, reducers=living))

    def hear(self, member: int, says: Says, content: bytes) -> None:
        """What a member says to its leader, and has signed; raises ValueError."""
        match says:
            case Says.REPORT:
                _, number, names = self._votes.reported(messages.record(Reported, content))
                if self.ballot is not None and number == self.ballot.number and member in self.ballot.reducers:
                    self.ballot.reports[member] = names
            case Says.ANSWER:
                self._take_answer(member, messages.record(Answer, content))
            case Says.ACKNOWLEDGEMENT:
                _, acknowledgement = self._votes.acknowledged(content)
                if self.ballot is not None and acknowledgement.ballot == self.ballot.number:
                    self.ballot.acknowledged[member] = acknowledgement, content
        self._propose()
        self.certify()

    def _take_answer(self, member: int, answer: Answer) -> None:
        _, promise = self._votes.promised(answer.promise)
        before, held = promise.acknowledged, answer.held
        if before is not None:
            if held is None or before != self._votes.acknowledge(held.roll, held.roll.average or before.average):
                raise ValueError("a promise without the roll that it names")
            self._voter.check(held)
        if self.ballot is None or self._voter.certificate is not None:
            return
        if promise.ballot == self.ballot.number:
            self.ballot.join(member, promise, answer.promise, None if held is None else held.roll)
        elif promise.ballot > self.ballot.number and member not in self._heeded:
            # It has joined a ballot of a leader that is gone. That is no proof: half of all numbers stay for others.
            self._heeded.add(member)
            if 2 * promise.ballot < MAX_BALLOTS * len(self._voter.ranking):
                self.call(promise.ballot)

    def _propose(self) -> None:
        ballot = self.ballot
        if ballot is None or not ballot.ready or self._voter.certificate is not None:
            return
        for reducer in ballot.useless():
            if reducer == self._mine:
                self._round.fail("this peer is cut off from the others")
            else:
                self._round.bury(reducer, "lacks what the others have", blame=False)
            return
        ballot.proposed = True
        roll = ballot.roll()
        held = Held(roll=roll, signed=self._votes.propose(roll), promises=ballot.choice or ())
        self._voter.telling.hand_on(held, range(len(self._plan.members)))
        self._voter.take_roll(held)

    def certify(self) -> None:
        """Once a quorum has acknowledged what this peer has."""
        mine = self._voter.acknowledged
        if (
            self.ballot is None
            or mine is None
            or self._voter.certificate is not None
            or mine.ballot != self.ballot.number
        ):
            return
        certificate = self.ballot.certificate(mine)
        if certificate is not None:
            self._voter.take_certificate(certificate)

    def watch(self, now: float, starting: bool) -> None:
        """Reducers that the head of a row waits for may be gone, and heads that the leader waits for."""
        if self._voter.certificate is not None:
            return
        usual, rows, heads = self._round.patience.usual, self._plan.rows, self._voter.heads
        for reducer in self._voter.living:
            if reducer == self._mine or reducer in self._links.dead or rows[reducer] != self._round.row:
                continue
            if reducer not in self._links.down:
                if not starting:
                    self._round.bury(reducer, "is not there", blame=reducer not in self._round.handshake.met)
            elif self._links.silent(reducer) > usual:
                follows = self.ballot is not None and (not self.ballot.number or reducer in self.ballot.joined)
                self._round.bury(reducer, "fell silent", blame=follows)
        if self._voter.leader == self._mine:
            for head in heads.overdue(self._round.patience.start):
                self._round.bury(head, "does not come for its row", blame=False)
            for head in heads.first_told():
                if heads.came(head) and self._links.silent(head) > usual:
                    self._round.bury(head, "fell silent", blame=True)

    def judge(self, now: float) -> None:
        """Reducers of which no averages come, or most of the members, may be gone."""
        if self._voter.certificate is not None:
            return
        self._judge_averages(now)
        self._alone = 0 if self._votes.enough(self._voter.heads.present()) else self._alone + 1
        if self._alone > ALONE:
            self._round.fail("too few are left")

    def _judge_averages(self, now: float) -> None:
        """Owners in this row of which no averages come may be gone. Where there are rows, owners may wait for others,
        of whom somebody complains first."""
        usual, rows = self._round.patience.usual, self._plan.rows
        roll, averages = self._voter.roll, self._round.averages
        if roll is None or roll.average or roll.ballot < self._voter.ballot:
            return
        if self._voter.waited(now) <= (LACKED if self._plan.one_row else UNTOLD) * usual:
            return
        deal = self._plan.deal(roll.reducers)
        for number in averages.missing():
            source = deal.source(number, self._round.row, self._mine)
            link = self._links.up.get(source)
            near = source >= 0 and rows[source] == self._round.row
            if near and source != self._mine and not (link is not None and link.arriving(usual)):
                self._round.bury(source, "sent no averages", blame=self._plan.one_row)

    def lost(self, member: int) -> None:
        """It cannot give any more what it holds."""
        ballot = self.ballot
        if ballot is None or member not in ballot.holders:
            return
        ballot.holders -= {member}
        if not ballot.holders and not self._round.averages.complete and self._voter.certificate is None:
            self.call(self._voter.ballot)
