"""A member's part in the agreement on a round: whom it follows, what it has promised, acknowledged and been told.

The reducers lead, in an order that all members know. Whoever finds all before it gone takes over with a ballot of its
own; members join it as soon as they find them gone, too, or as soon as it has a quorum without them. Where there are
rows, most members follow the head of theirs, and know the leader through it alone.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dedloc_kit.swarm.averaging.agreement.fetching import Fetching
from dedloc_kit.swarm.averaging.agreement.handshake import GroupRefused
from dedloc_kit.swarm.averaging.agreement.heads import NUDGED, STUCK, UNFINISHED, UPWARD, Heads
from dedloc_kit.swarm.averaging.agreement.leader import Leader
from dedloc_kit.swarm.averaging.agreement.roll import (
    MAX_BALLOTS,
    Acknowledgement,
    Answer,
    Call,
    Certificate,
    Held,
    Roll,
    Votes,
)
from dedloc_kit.swarm.averaging.agreement.telling import Telling
from dedloc_kit.swarm.averaging.streams import messages
from dedloc_kit.swarm.averaging.streams.link import Link
from dedloc_kit.swarm.averaging.streams.messages import Says, say

if TYPE_CHECKING:
    from dedloc_kit.swarm.averaging.allreduce import AllReduce

GIVERS = 3
"""So many of those who hold an average that is taken up again bring it to the leader."""


class Voter:
    """Of one peer in one round.

    :param round: does what is agreed
    :ivar leader: whom this peer follows: the first in the order that it does not know to be gone, or its row's head
    :ivar ballot: the one that it has joined; it acknowledges nothing of those before
    :ivar living: who reduces in that ballot
    :ivar held: the newest roll that it was told
    :ivar acknowledged: the average that it has acknowledged last; none if it holds none that may still be taken
    :ivar certificate: what ends the round
    :ivar certified: what that says
    """

    def __init__(self, round: "AllReduce", votes: Votes) -> None:
        self._round, self._votes = round, votes
        self._plan, self._mine, self._handshake, self._links = round.plan, round.mine, round.handshake, round.links
        self.ranking = self._plan.ranking(votes.group)
        self.ballot, self.living = 0, self._plan.reducers
        self.heads = Heads(round, self, votes)
        self.leader = self._first = self.heads.to_follow() or 0
        self.held: Held | None = None
        self.acknowledged: Acknowledgement | None = None
        self.certificate: Certificate | None = None
        self.certified: Acknowledgement | None = None
        self._acknowledged_roll: Held | None = None
        self._signed = b""  # the acknowledgement
        self._joined: Answer | None = None  # what this peer has promised in its ballot; the first one needs nothing
        self._pending: dict[int, Call] = {}  # of those whom this peer does not follow yet
        self._corrected: set[tuple[int, int]] = set()  # who was told that it calls too low a ballot
        self._begun = self._reported = False
        self._awaited = 0  # a member that this reducer does not have everything from
        self._followed = self._moved = time.monotonic()  # when a leader was followed, and when it did anything
        self.leading = Leader(round, self, votes)
        self.fetching = Fetching(round, self)
        self.telling = Telling(round, self)
        if self.leader == self._mine:
            self.leading.begin()

    @property
    def roll(self) -> Roll | None:
        return None if self.held is None else self.held.roll

    def begin(self) -> None:
        self._begun = True
        self._followed = time.monotonic()
        self._foresee()
        self._report()

    def leader_of(self, ballot: int) -> int:
        return self.ranking[ballot % len(self.ranking)]

    # Who is there

    def to_reassure(self) -> list[Link]:
        """Who has to hear from this peer that it is still here."""
        link = self._links.up.get(self.leader)
        above = [link] if link is not None and self._mine in self._plan.reducers else []
        return [*self.heads.below(), *above]

    def judge(self, now: float, starting: bool) -> None:
        """Whom this peer waits for may be gone."""
        usual, start = self._round.patience.usual, self._round.patience.start
        if self.heads.mine:
            self.leading.watch(now, starting)
        if self.leader == self._mine:
            self.leading.judge(now)
        else:
            # Its two streams share a line: what it says in one may wait behind the values that it sends in the other.
            begun, silence = self._links.begun(self.leader), self._links.silent(self.leader)
            silent = min(now - self._followed, silence) > usual if begun else now - self._followed > start
            # While averages of its roll come it need say nothing: it may have ended the round, with a quorum, long ago.
            coming = self.roll is not None and any(link.arriving(usual) for link in self._links.up.values())
            # Whoever is followed in place of the leader has as long to give it up itself, and then to lead.
            times = UNFINISHED if self._plan.one_row else STUCK + (self.leader != self.leader_of(self.ballot))
            stuck = self.roll is not None and self.waited(now) > times * usual and not coming
            if silent and self.certified is None and not coming:
                self._round.bury(self.leader, "says nothing", blame=self.acknowledged is None)
            elif stuck and self.acknowledged is None:
                self._round.bury(self.leader, "told a roll of which no average comes", blame=False)
        self.fetching.fetch(silent=usual)

    def waited(self, now: float) -> float:
        """Seconds in which neither an average has come nor the leader has done anything that takes time."""
        return min(self._round.averages.quiet(now), now - self._followed, now - self._moved)

    def lacks(self, other: int, now: float, times: int) -> None:
        """This reducer waits for another one, which may not have been told the roll.

        :param times: the patience after which it is given up
        """
        waited = (now - self._moved) / self._round.patience.usual
        if self.roll is None or self.roll.ballot < self.ballot:
            return
        if waited > NUDGED:
            self.telling.nudge(other)
        if waited <= times or self.certified is not None or self.roll.average:
            return
        if other == self.leader_of(self.ballot):  # it would hear no complaint of itself
            self._round.bury(other, "sends no means", blame=False)
        elif self._plan.rows[other] != self._round.row:
            self.heads.complain(other)
        elif waited > UNFINISHED and self.heads.mine:
            self._round.bury(other, "hands on no introductions", blame=False)

    def lost(self, member: int) -> None:
        self.leading.lost(member)
        self._report()

    def buried(self, reducer: int) -> None:
        self.fetching.gone(reducer)
        if reducer == self.leader:
            self._follow_next()
        elif self.leading.leads:
            if reducer in self.living and self.certificate is None:
                self.leading.call(self.ballot)
        elif self.certified is None:
            self.heads.tell_gone(reducer)
            if self._plan.rows[reducer] == self._round.row:  # it may have been the one to tell this peer
                self._tell(self.leader, Says.UNTOLD)
        self.fetching.fetch()

    def _follow_next(self) -> None:
        leader = self.heads.to_follow()
        if leader is None:
            self._round.fail("nobody is left to lead")
            return
        self.leader, self._followed = leader, time.monotonic() + self._round.patience.usual
        if self.heads.mine:
            self._links.count_from(self._followed)
            for link in self._links.up.values():
                link.post(say(Says.FOLLOWS))
        if self.leader == self._mine:
            self.heads.wait_anew()
            if self.certificate is None:
                self.leading.call(self.ballot)
            return
        self._round.connect(self.leader)
        self.reached(self.leader)
        self._take_pending()

    def reached(self, reducer: int) -> None:
        """There is a stream to this reducer; if it leads, it has to hear what this peer has to say."""
        link = self._links.up.get(reducer)
        if reducer != self.leader or link is None:
            return
        link.count_from(self._followed)
        if reducer != self._first or self._plan.rows[reducer] != self._round.row:
            link.post(say(Says.FOLLOWS))
        if self._plan.rows[reducer] != self._round.row and not self.heads.mine:  # a guest: nobody there expects it
            link.post(say(Says.UNTOLD))
        self.heads.hand_up_again(link)
        self._answer(reducer)
        self._reported = False
        self._report()
        if self.acknowledged is not None and self.acknowledged.ballot == self.ballot:
            self._say_up(self.ballot, Says.ACKNOWLEDGEMENT, self._signed)

    def came(self, member: int, link: Link) -> None:
        """A member has come to this reducer: what the others have heard before."""
        if self.heads.is_below(member):
            link.post(say(Says.HERE))
            if self.ballot:
                link.post(say(Says.CALL, Call(ballot=self.ballot, reducers=self.living)))
        self.telling.roll((member,))
        self._round.resend(member, link)
        self._foresee()
        self._report()
        self.fetching.fetch()

    # What is said

    def hear_member(self, member: int, link: Link, says: Says, content: bytes) -> None:
        """What a member says to a reducer; raises ValueError for what it must not say."""
        match says:
            case Says.HERE:
                pass
            case Says.FOLLOWS:
                self.heads.follows(member)
                self.telling.ask(member, link)
            case Says.UNTOLD:
                self.telling.untold(member)
            case Says.FETCH:
                self.fetching.give(messages.numbers(content), link)
            case Says.INTRODUCTIONS:
                self.telling.hear_row(member, content)
            case Says.GONE:
                self.heads.take_gone(member, messages.numbers(content))
            case _ if not self._round.over:
                self.heads.hear(member, says, content)

    def hear_reducer(self, reducer: int, link: Link, says: Says, content: bytes) -> None:
        """What a reducer says to a member; raises ValueError for what it must not say."""
        match says:
            case Says.HERE:
                pass
            case Says.CALL:
                self._take_call(reducer, messages.record(Call, content))
            case Says.ROLL:
                self.take_roll(messages.record(Held, content))
            case Says.INTRODUCTIONS:
                self.telling.hear(reducer, content)
            case Says.CERTIFICATE:
                self.take_certificate(messages.record(Certificate, content))
                if self.certified is not None and (self.roll is None or self.roll.name != self.certified.roll):
                    link.post(say(Says.UNTOLD))
            case Says.FETCH:
                self.fetching.give(messages.numbers(content), link)
            case _:
                raise ValueError(f"a reducer says {says.name}")

    def _say_up(self, ballot: int, says: Says, content: bytes) -> None:
        """To the leader of a ballot, or to whom this peer follows."""
        leader = self.leader_of(ballot)
        direct = self._plan.one_row or leader == self._mine or leader in self._links.up
        self._tell(leader if direct else self.leader, says, content)

    def _tell(self, reducer: int, says: Says, content: bytes = b"") -> None:
        if reducer == self._mine:
            if says in UPWARD:
                self.leading.hear(self._mine, says, content)
        elif reducer in self._links.up:
            self._links.up[reducer].post(bytes([says]) + content)

    def _hears(self, leader: int) -> bool:
        """Does this peer hear the leader itself, not through the head of its row?"""
        return self._plan.one_row or (self.heads.mine and leader in self._links.up)

    # Ballots

    def _take_call(self, reducer: int, call: Call) -> None:
        leader = self.leader_of(call.ballot)
        rows = self._plan.rows
        handed_on = not self._plan.one_row and (rows[reducer] == rows[self._mine] or reducer == self.leader)
        if leader != reducer and not handed_on and not self._plan.one_row:
            return  # it believes that this peer follows it
        if (leader != reducer and not handed_on) or call.ballot >= MAX_BALLOTS * len(self.ranking):
            raise ValueError("a ballot is not its own")
        if leader not in call.reducers or not set(call.reducers) <= set(self._plan.reducers):
            raise ValueError("a ballot is led by none of its reducers, or names others")
        if reducer in self._links.dead:
            return
        if reducer != self.leader:  # those before it are here, as far as this peer can tell
            self._pending[reducer] = call
        elif call.ballot > self.ballot:
            self.join(call)
        elif call.ballot < self.ballot and (reducer, self.ballot) not in self._corrected:
            self._corrected.add((reducer, self.ballot))
            self._answer(reducer)  # it does not know of a ballot before it, and has to begin a higher one

    def join(self, call: Call) -> None:
        """Take part in this ballot, and in none before."""
        below = self.heads.below()  # a head that the leader takes for gone hands this on
        self.ballot, self.living, self._reported = call.ballot, tuple(sorted(call.reducers)), False
        self._moved = time.monotonic()
        self._round.deal(self.living)
        if self.certified is None:
            self._round.pause()
        promise = self._votes.promise(call.ballot, self.acknowledged)
        self._joined = Answer(promise=promise, held=self._acknowledged_roll)
        for link in below:
            link.post(say(Says.CALL, call))
        self._say_up(call.ballot, Says.ANSWER, say(Says.ANSWER, self._joined)[1:])
        self._report()
        if self.leader not in self.living:  # the head of this row, as far as this peer knew
            self._follow_next()

    def _answer(self, reducer: int) -> None:
        """Always the same in a ballot, whoever is told."""
        if self._joined is not None:
            self._tell(reducer, Says.ANSWER, say(Says.ANSWER, self._joined)[1:])

    def _report(self) -> None:
        """Once everything has come, or will not come any more."""
        round, team = self._round, self._plan.teams[self._round.row]
        if not self._begun or self._reported or round.over or self._mine not in self.living:
            return
        for at in range(self._awaited, self._awaited + len(team)):  # most often it is still the same one
            if team[at % len(team)] not in self._links.lost and not round.whole(team[at % len(team)]):
                self._awaited = at % len(team)
                return
        self._reported = True
        reported = self._votes.report(self.ballot, {m: self._handshake.names[m] for m in team if round.whole(m)})
        self._say_up(self.ballot, Says.REPORT, say(Says.REPORT, reported)[1:])

    def part_came(self) -> None:
        self._report()

    def _foresee(self) -> None:
        """Once everybody has come, most often it is known what the roll will be."""
        met, members = self._handshake.met, range(len(self._plan.members))
        if self.ballot or self.roll or not self._begun or len(met) < len(members) or not self._plan.one_row:
            return
        names = tuple(self._handshake.names[member] for member in members)
        self._round.foresee(Roll(group=self._votes.group, ballot=0, reducers=self.living, introductions=names))

    # The roll

    def check(self, held: Held) -> None:
        """Raises ValueError unless its leader had the right to propose it."""
        self._votes.check(held, self.leader_of(held.roll.ballot))
        if not set(held.roll.reducers) <= set(self._plan.reducers) or not held.roll.reducers:
            raise ValueError("a roll deals the shares to others")

    def take_roll(self, held: Held) -> None:
        """A roll from its leader, or from whom it has told it to; raises ValueError."""
        roll, before = held.roll, self.roll
        self.check(held)
        leader = self.leader_of(roll.ballot)
        known = before is not None and before.ballot == roll.ballot
        if known and before != roll and leader not in self._links.dead:
            for link in self._links.down.values():  # who was told only one may follow it still
                link.post(say(Says.ROLL, held))
            self._round.bury(leader, "told two rolls", blame=True)
        # Whoever was told the wrong one of two rolls takes over the other once a quorum has its average.
        certified = self.certified is not None and self.certified.roll == roll.name
        told_wrongly = known and certified and before != roll
        if (known and not told_wrongly) or self._round.over or (roll.ballot < self.ballot and not certified):
            return
        outdated = leader in self._links.dead and self.ranking.index(leader) < self.ranking.index(self.leader)
        if leader != self.leader and not outdated and self._hears(leader):  # a quorum follows it
            self.leading.stop()
            self.leader, self._followed = leader, time.monotonic()
        if roll.ballot > self.ballot:
            self.join(Call(ballot=roll.ballot, reducers=roll.reducers))
        if roll.ballot == self.ballot and not roll.average and (wrong := self._wrong_with(roll)):
            self._round.bury(leader, wrong, blame=True)  # whoever handed it on could not know
            return
        self.held, self._moved = held, time.monotonic()
        if before is None or before.name != roll.name:
            # A quorum has nothing of an earlier ballot, or this average: what this peer has cannot be taken any more.
            self.acknowledged = self._acknowledged_roll = None
            self._round.begin_roll(roll)
            self._handshake.begin(roll)
            self.fetching.begin()
            self._round.take_early(roll)
        if roll.average and self._mine in self._votes.holders(held)[:GIVERS]:
            self._round.connect(leader)  # it may have no stream to anybody who can give it
        self._round.averages.stir()
        self.telling.roll(range(len(self._plan.members)))
        introduced = self._handshake.known(roll, self._plan.teams[self._round.row])
        if self._round.introductions is None:
            if introduced is not None:
                self._round.reduce(roll)
                self.telling.tell_rows(introduced, roll)
            self.introduced(introduced or {})
            self.telling.take_early()
        else:
            self._round.resume(roll)
            self._acknowledge()
        self.fetching.fetch()
        if outdated and self.leader != self._mine:  # whoever leads now needs a higher ballot
            self._answer(self.leader)
        elif outdated and self.certificate is None and not self._round.over:
            self.leading.call(self.ballot)
        else:
            self._take_pending()

    def _wrong_with(self, roll: Roll) -> str:
        """What this peer, which knows what it has reported, holds against a new roll; empty if nothing."""
        if set(roll.reducers) != set(self.living):
            return "deals the shares to others"
        rows = self._plan.rows
        if not {rows[member] for member in roll.counted} <= {rows[reducer] for reducer in roll.reducers}:
            return "counts members of a row in which nobody reduces"
        team = set(self._plan.teams[self._round.row])
        if self._mine in roll.reducers and not all(map(self._round.whole, team.intersection(roll.counted))):
            return "names members that were not there"
        if not all(map(self._round.whole, team & self._round.liars & set(roll.counted))):
            return "counts members that have sent nonsense"  # it is one, or has left this peer out for its report
        return ""

    def _take_pending(self) -> None:
        """What the leader has called before this peer followed it."""
        call = self._pending.pop(self.leader, None)
        if call is not None and not self._round.over:
            self._take_call(self.leader, call)

    def introduced(self, signed: Mapping[int, bytes]) -> None:
        """Some of the introductions on the roll; raises ValueError."""
        assert self.held is not None
        found = self._handshake.tell(self.held.roll, signed)
        if found is None or self._round.over:
            return
        left_out = self._mine not in self.held.roll.counted and self._handshake.mine.samples and self._round.delivered
        if left_out:
            leader = self.leader_of(self.held.roll.ballot)
            self._round.doubted.add(self._plan.members[leader])  # it leaves out who is there
        self._round.know(found)
        self.telling.roll(range(len(self._plan.members)))
        try:
            self._handshake.check(found)
        except GroupRefused as refusal:
            self._round.finish(refusal)
            return
        self._round.average(found)
        self._acknowledge()

    # The average

    def average_came(self, number: int) -> None:
        self.fetching.came(number)
        self._acknowledge()

    def _acknowledge(self) -> None:
        """If this peer holds all of the average of this ballot's roll."""
        held, round = self.held, self._round
        if held is None or round.introductions is None or not round.averages.complete:
            return
        if held.roll.ballot == self.ballot and (self.acknowledged is None or self.acknowledged.ballot != self.ballot):
            name = round.averages.name()
            if held.roll.average not in (b"", name):
                if self.leading.ballot is not None:  # it is not what these say that they have
                    round.named |= {self._plan.members[holder] for holder in self.leading.ballot.holders}
                round.fail("a reducer told its members different averages")
                return
            self.acknowledged, self._acknowledged_roll = self._votes.acknowledge(held.roll, name), held
            self._signed = self._votes.sign(self.acknowledged)
            self._say_up(self.ballot, Says.ACKNOWLEDGEMENT, self._signed)
        self._end_if_certified()

    def take_certificate(self, certificate: Certificate) -> None:
        """Raises ValueError unless a quorum holds the same average."""
        if self.certificate is None and not self._round.over:
            self.certified, self.certificate = self._votes.certified(certificate), certificate
            if self.roll is not None and self.roll.name == self.certified.roll:
                self._round.resume(self.roll)
            self.telling.certificate()
            self.fetching.fetch()
            self._end_if_certified()

    def _end_if_certified(self) -> None:
        right, roll, round = self.certified, self.roll, self._round
        if right is None or roll is None or right.roll != roll.name or round.introductions is None:
            return
        if round.averages.complete:
            if round.averages.name() == right.average:
                round.finish()
            else:
                round.fail("a reducer told this peer another average than the others")
