"""A member's part in the agreement on who counts: it follows the leader, or leads.

The reducers lead, in an order that all members know. Whoever finds all before it gone takes over with a ballot of its
own; members follow it as soon as they find them gone, too.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dedloc_kit.swarm.averaging import messages
from dedloc_kit.swarm.averaging.handshake import GroupRefused
from dedloc_kit.swarm.averaging.link import Link
from dedloc_kit.swarm.averaging.messages import Says, say
from dedloc_kit.swarm.averaging.roll import (
    MAX_BALLOTS,
    Acknowledgement,
    Answer,
    Call,
    Certificate,
    Fault,
    Held,
    Leading,
    Report,
    Roll,
    Votes,
    names_of,
)
from dedloc_kit.swarm.network.service import decode

if TYPE_CHECKING:
    from dedloc_kit.swarm.averaging.allreduce import AllReduce

TOLD_AT_ONCE = 32
"""Introductions in one message."""
STUCK = 3
"""After so many times the patience without an average of the roll, its leader is given up."""


class Ballots:
    """Of one round.

    :param round: does what is agreed
    """

    def __init__(self, round: "AllReduce", votes: Votes) -> None:
        self._round, self._votes = round, votes
        self._plan, self._mine, self._handshake = round._plan, round._mine, round._handshake
        self._ranking = self._plan.ranking(votes.group)
        self._living = self._plan.reducers
        self._ballot = 0
        """This peer takes part in none before it."""
        self._leader = self._ranking[0]
        self._leading: Leading | None = None
        if self._leader == self._mine:
            self._leading = Leading(votes, self._ballot, self._living, answered=True)
        self._why = ""
        self._pending: dict[int, Call] = {}
        self._begun = self._reported = False
        self._followed = time.monotonic()
        self._held: Held | None = None
        """The roll, and its average as soon as this peer has all of it."""
        self._acknowledged: Held | None = None
        self._certificate: Certificate | None = None
        self._certified: Acknowledgement | None = None
        self._unsure: set[int] = set()
        """Reducers that were introduced to others than this leader was."""
        self._wanted: dict[int, list[Link]] = {}
        self._asked: set[tuple[int, int]] = set()

    @property
    def roll(self) -> Roll | None:
        return None if self._held is None else self._held.roll

    def begin(self) -> None:
        self._begun = True
        self._followed = time.monotonic()
        self._report()

    # Who is there

    def to_reassure(self) -> list[Link]:
        """Who has to hear from this peer that it is still here."""
        if self._leader == self._mine:
            return list(self._round._down.values())
        link = self._round._up.get(self._leader)
        return [link] if link is not None and self._mine in self._plan.reducers else []

    def judge(self, now: float, starting: bool) -> None:
        """Whom this peer waits for may be gone."""
        usual = self._round._patience.usual
        if self._leader == self._mine:
            self._judge_reducers(now, starting)
        else:
            link = self._round._up.get(self._leader)
            quiet = now - max(self._followed, link.heard) if link is not None and link.heard is not None else 0.0
            late = (link is None or link.heard is None) and now - self._followed > self._round._patience.start
            if self._certified is None and (quiet > usual or late):
                self._round.bury(self._leader, "says nothing", blame=True)
        stuck = self.roll is not None and now - self._round._progress > STUCK * usual
        if stuck and self._leader != self._mine and self._acknowledged is None:
            self._round.bury(self._leader, "told a roll of which no average comes", blame=False)
        self._fetch(silent=usual)

    def _judge_reducers(self, now: float, starting: bool) -> None:
        usual, round = self._round._patience.usual, self._round
        for reducer in self._living:
            down, up = round._down.get(reducer), round._up.get(reducer)
            if reducer == self._mine or reducer in round._dead:
                continue
            if down is None and not starting:
                round.bury(reducer, "did not begin", blame=True)
            elif down is not None and min(link.silent() for link in (down, up) if link is not None) > usual:
                round.bury(reducer, "fell silent", blame=True)
        if self.roll is not None and not self.roll.average and now - round._progress > 2 * usual:
            owners = self._plan.owners(self.roll.reducers)
            for number in round.averages.missing():
                round.bury(owners[number], "sent no averages", blame=True)
        if not self._votes.enough(self._here()) and self._certificate is None:
            self._fail("too few are left")

    def _here(self) -> set[int]:
        """Members that are not gone, as far as this peer knows."""
        return set(range(len(self._plan.members))) - self._round._lost

    def lost(self, member: int, why: str) -> None:
        leading = self._leading
        if leading is not None and leading.resumed is not None and member in leading.resumed[1]:
            leading.resumed = leading.resumed[0], leading.resumed[1] - {member}
            if not leading.resumed[1] and self._round.averages.missing() and self._certificate is None:
                self._call(answered=False)
        self._why = why
        self._report()

    def buried(self, reducer: int, why: str) -> None:
        self._why = why
        self._asked = {(source, number) for source, number in self._asked if source != reducer}
        if reducer == self._leader:
            self._follow_next()
        elif self._leader == self._mine and reducer in self._living and self._certificate is None:
            leading = self._leading
            self._call(answered=leading is not None and leading.answered)
        self._fetch()

    def _fail(self, why: str) -> None:
        self._round.finish(Fault(f"{why}: {self._why}" if self._why else why))

    def _follow_next(self) -> None:
        left = [reducer for reducer in self._ranking if reducer not in self._round._dead]
        if not left:
            self._fail("nobody is left to lead")
            return
        self._leader, self._followed = left[0], time.monotonic() + self._round._patience.usual
        if self._leader == self._mine:
            if self._certificate is None:
                self._call(answered=False)
        else:
            self.reached(self._leader)
            call = self._pending.get(self._leader)
            if call is not None and call.ballot > self._ballot:
                self._join(self._leader, call)

    # As the leader

    def _call(self, *, answered: bool) -> None:
        """Begin a ballot: without those that are gone, or in place of another leader."""
        before, count = self._leading, len(self._ranking)
        ballot = self._ballot + 1
        ballot += (self._ranking.index(self._mine) - ballot) % count
        living = tuple(reducer for reducer in self._plan.reducers if reducer not in self._round._dead)
        resumed = before.resumed if before is not None and answered else None
        self._leading = Leading(self._votes, ballot, living, answered, resumed)
        call = Call(ballot=ballot, reducers=living)
        for link in self._round._down.values():
            link.post(say(Says.CALL, call))
        self._join(self._mine, call)

    def _propose(self) -> None:
        leading, round = self._leading, self._round
        if leading is None or not leading.ready or self._certificate is not None:
            return
        if not self._votes.enough(self._here()):
            self._fail("too few are left")
            return
        for reducer in leading.useless() if leading.resumed is None else ():
            if reducer == self._mine:
                self._fail("this peer is cut off from the others")
            else:
                round.bury(reducer, "lacks what the others have", blame=False)
            return
        leading.proposed = True
        roll = leading.propose(self._handshake.signed)
        held = Held(roll=roll, signed=self._votes.propose(roll))
        known = self._handshake.known(roll)
        for reducer in leading.reducers:
            if reducer in round._down:
                round._down[reducer].post(say(Says.ROLL, held))
                if reducer in self._unsure and known is not None:
                    round._down[reducer].post(*_introductions(roll, known))
        self._take_roll(self._mine, held)

    def _certify(self) -> None:
        leading, held = self._leading, self._acknowledged
        if leading is None or held is None or self._certificate is not None or held.roll.ballot != leading.ballot:
            return
        certificate = leading.certificate(held.roll, held.average)
        if certificate is not None:
            # Reducers first: they stay to tell the others, should this peer die now.
            for member in sorted(self._round._down, key=lambda m: m not in self._plan.reducers):
                self._round._down[member].post(say(Says.CERTIFICATE, certificate))
            self._take_certificate(certificate)

    def hear_member(self, member: int, link: Link | None, says: Says, content: bytes) -> None:
        """What a member says to a reducer; raises ValueError for what it must not say."""
        leading = self._leading
        match says:
            case Says.HERE:
                pass
            case Says.FOLLOWS:
                if link is not None and self._certificate is not None and self._held is not None:
                    known = self._round.introductions
                    signed = known.signed if known is not None else ()
                    link.post(say(Says.ROLL, self._held), *_introductions(self._held.roll, signed))
                    link.post(say(Says.CERTIFICATE, self._certificate))
            case Says.FETCH if link is not None:
                self._give(messages.numbers(content), link)
            case Says.REPORT:
                report = messages.record(Report, content)
                if leading is not None and report.ballot == leading.ballot and member in leading.reducers:
                    own = [self._handshake.signed.get(m, b"") for m in report.whole]
                    if names_of(own) != report.introductions:
                        self._unsure.add(member)
                    leading.reports[member] = report
            case Says.ANSWER:
                answer = messages.record(Answer, content)
                if answer.held is not None:
                    self._check(answer.held)
                if leading is not None and answer.ballot == leading.ballot:
                    try:
                        leading.answer(member, answer.held)
                    except ValueError as error:
                        self._fail(str(error))
            case Says.ACKNOWLEDGEMENT:
                author, acknowledgement = self._votes.read(content)
                if author != member:
                    raise ValueError("it acknowledges for another")
                if leading is not None:
                    leading.acknowledge(member, acknowledgement, content)
            case _:
                raise ValueError(f"a member says {says.name}")
        self._propose()
        self._certify()

    # As a member

    def hear_reducer(self, reducer: int, link: Link, says: Says, content: bytes) -> None:
        """What a reducer says to a member; raises ValueError for what it must not say."""
        match says:
            case Says.HERE:
                pass
            case Says.CALL:
                self._take_call(reducer, messages.record(Call, content))
            case Says.ROLL:
                self._take_roll(reducer, messages.record(Held, content))
            case Says.INTRODUCTIONS:
                self._take_introductions(decode(content))
            case Says.CERTIFICATE:
                self._take_certificate(messages.record(Certificate, content))
            case Says.FETCH:
                self._give(messages.numbers(content), link)
            case _:
                raise ValueError(f"a reducer says {says.name}")

    def came(self, member: int, link: Link) -> None:
        """A member has come to this reducer: what the others have heard before."""
        if self._leader == self._mine:
            link.post(say(Says.HERE))
            if self._ballot:
                link.post(say(Says.CALL, Call(ballot=self._ballot, reducers=self._living)))
        self._tell((member,))
        if self.roll is not None and self._round.introductions is not None:
            self._round.resend(link)
        if self._certificate is not None:
            link.post(say(Says.CERTIFICATE, self._certificate))
        self._report()

    def part_came(self) -> None:
        self._report()

    def reached(self, reducer: int) -> None:
        """There is a stream to this reducer; if it leads, it has to hear what this peer has to say."""
        link = self._round._up.get(reducer)
        if reducer != self._leader or link is None:
            return
        if link.heard is not None:
            link.heard = max(link.heard, self._followed)
        link.post(say(Says.FOLLOWS))
        if self._ballot:
            link.post(say(Says.ANSWER, Answer(ballot=self._ballot, held=self._acknowledged)))
        self._reported = False
        self._report()
        self._acknowledge()

    def _tell_leader(self, says: Says, content: bytes) -> None:
        if self._leader == self._mine:
            self.hear_member(self._mine, None, says, content)
        elif self._leader in self._round._up:
            self._round._up[self._leader].post(bytes([says]) + content)

    def _take_call(self, reducer: int, call: Call) -> None:
        count = len(self._ranking)
        if self._ranking[call.ballot % count] != reducer or call.ballot >= MAX_BALLOTS * count:
            raise ValueError("a ballot is not its own")
        if reducer not in call.reducers or not set(call.reducers) <= set(self._plan.reducers):
            raise ValueError("a ballot is led by none of its reducers, or names others")
        if call.ballot > self._ballot and reducer == self._leader:
            self._join(reducer, call)
        elif reducer not in self._round._dead:
            self._pending[reducer] = call  # those before it are here, as far as this peer can tell

    def _led(self, reducer: int) -> bool:
        """Does this one lead, or has it, before it was found gone?"""
        return self._ranking.index(reducer) <= self._ranking.index(self._leader)

    def _join(self, leader: int, call: Call) -> None:
        """Take part in this ballot, and in none before."""
        held = self._acknowledged
        own = held is not None and self._ranking[held.roll.ballot % len(self._ranking)] == leader
        if own and held is not None and not held.roll.average:
            self._acknowledged = None  # it alone could have certified that, and has given it up
        self._ballot, self._living, self._reported = call.ballot, tuple(sorted(call.reducers)), False
        self._round.deal(self._living)
        answer = Answer(ballot=self._ballot, held=self._acknowledged)
        self._tell_leader(Says.ANSWER, say(Says.ANSWER, answer)[1:])
        self._report()

    def _report(self) -> None:
        """Once everything has come, or will not come any more."""
        round, members = self._round, range(len(self._plan.members))
        if not self._begun or self._reported or self._mine not in self._living:
            return
        if any(member not in round._lost and not round.whole(member) for member in members):
            return
        whole = tuple(member for member in members if round.whole(member))
        names = names_of(self._handshake.signed[member] for member in whole)
        self._reported = True
        report = Report(ballot=self._ballot, whole=whole, introductions=names)
        self._tell_leader(Says.REPORT, say(Says.REPORT, report)[1:])

    def _check(self, held: Held) -> None:
        leader = self._ranking[held.roll.ballot % len(self._ranking)]
        self._votes.check(held.roll, held.signed, leader)

    def _take_roll(self, sender: int, held: Held) -> None:
        """A roll from its leader, or from whom it has told it to; raises ValueError."""
        roll, before = held.roll, self.roll
        self._check(held)
        leader = self._ranking[roll.ballot % len(self._ranking)]
        if roll.ballot < self._ballot or not self._led(leader):
            return
        if before is not None and before.ballot == roll.ballot:
            if before.name != roll.name:
                self._round.bury(leader, "told two rolls", blame=True)
            return
        if roll.ballot > self._ballot:
            self._join(leader, Call(ballot=roll.ballot, reducers=roll.reducers))
        if not set(roll.reducers) <= set(self._plan.reducers) or not (roll.average or roll.reducers == self._living):
            raise ValueError("a roll deals the shares to others")
        if self._mine in roll.reducers and not roll.average and not all(map(self._round.whole, roll.counted)):
            raise ValueError("a roll names members that were not there")
        self._held, self._round._progress = held, time.monotonic()
        if before is None or before.name != roll.name:
            self._acknowledged = None
            self._round.introductions = None
            self._round.stop_reducing()
            self._round.averages.begin()
            self._handshake.begin()
            self._asked.clear()
        self._tell(self._listeners())
        known = self._handshake.known(roll)
        if self._round.introductions is None and known is not None:
            self._introduced(known)
        else:
            self._acknowledge()
        self._fetch()

    def _listeners(self) -> Sequence[int]:
        """To whom this reducer tells the roll and the introductions, so that each member hears them once."""
        if self._mine not in self._living:
            return ()
        place, count = self._living.index(self._mine), len(self._living)
        others = [member for member in range(len(self._plan.members)) if member not in self._living]
        return [member for at, member in enumerate(others) if at % count == place]

    def _tell(self, members: Sequence[int]) -> None:
        known = self._round.introductions
        signed = known.signed if known is not None else None
        for member in set(members) & set(self._listeners()) & self._round._down.keys():
            if self._held is not None and signed is not None:
                self._round._down[member].post(say(Says.ROLL, self._held), *_introductions(self._held.roll, signed))

    def _take_introductions(self, content: object) -> None:
        if not isinstance(content, list | tuple) or len(content) != 3 or not isinstance(content[2], list | tuple):
            raise ValueError("these are no introductions")
        name, first, signed = content
        if self.roll is None or self._round.introductions is not None:
            return
        if (name, first) == (self.roll.name, self._handshake.told_so_far):
            self._introduced(signed)

    def _introduced(self, signed: Sequence[bytes]) -> None:
        """The next introductions on the roll; raises ValueError."""
        assert self._held is not None
        introductions = self._handshake.tell(self._held.roll, signed)
        if introductions is None:
            return
        self._round.introductions = introductions
        if self._mine not in self._held.roll.counted and self._handshake.mine.samples and self._round.delivered:
            self._round.doubted.add(self._plan.members[self._leader])  # it leaves out who is there
        self._tell(self._listeners())
        try:
            self._handshake.check(introductions)
        except GroupRefused as refusal:
            self._round.finish(refusal)
            return
        self._round.reduce(self._held)
        for sender, number, encoded in self._round.averages.held_back(self._held.roll.name):
            if self.may_have(sender, number):
                self._round.averages.take(number, encoded)
        self._acknowledge()

    # Averages

    def may_have(self, sender: int, number: int) -> bool:
        """Does this average come from this member?"""
        if self.roll is None:
            return False
        owner = self._plan.owners(self.roll.reducers)[number]
        return sender == owner or (sender, number) in self._asked

    def average_came(self, number: int) -> None:
        for link in self._wanted.pop(number, []):
            self._give([number], link)
        self._acknowledge()

    def _acknowledge(self) -> None:
        """If this peer holds all of the average of this ballot's roll."""
        held, round = self._held, self._round
        if held is None or held.roll.ballot != self._ballot or round.introductions is None or round.averages.missing():
            return
        if self._acknowledged is None or self._acknowledged.roll != held.roll:
            name = round.averages.name()
            if held.roll.average not in (b"", name):
                self._fail("a reducer told its members different averages")
                return
            self._acknowledged = held.model_copy(update={"average": name})
        acknowledged = self._acknowledged
        self._tell_leader(Says.ACKNOWLEDGEMENT, self._votes.acknowledge(acknowledged.roll, acknowledged.average))
        self._end_if_certified()

    def _take_certificate(self, certificate: Certificate) -> None:
        """Raises ValueError unless a quorum holds the same average."""
        if self._certificate is None:
            self._certified = self._votes.certified(certificate)
            self._certificate = certificate
            self._fetch()
            self._end_if_certified()

    def _end_if_certified(self) -> None:
        right, mine = self._certified, self._acknowledged
        if right is None or mine is None or right.roll != mine.roll.name:
            return
        if right.average == mine.average:
            self._round.finish()
        else:
            self._fail("a reducer told this peer another average than the others")

    def _give(self, numbers: Sequence[int], link: Link) -> None:
        """Send averages to whom their reducer cannot any more, as soon as this peer has them."""
        for number in set(numbers) & set(range(len(self._plan.chunks))):
            message, wanted = self._round.averages.messages[number], self._wanted.setdefault(number, [])
            if message and self.roll is not None:
                link.post(messages.average(number, self.roll.name, message))
            elif link not in wanted:
                wanted.append(link)

    def _fetch(self, silent: float = 0.0) -> None:
        """Averages whose reducers are gone, from the leader; as the leader, from whoever holds them.

        :param silent: seconds without an average after which those that live are not waited for either
        """
        roll, round, leading = self.roll, self._round, self._leading
        if roll is None or not (roll.average or self._certified) or round.introductions is None:
            return
        source, link = self._leader, round._up.get(self._leader)
        if self._leader == self._mine:
            holders = leading.resumed[1] - {self._mine} if leading is not None and leading.resumed else ()
            source = min(holders, default=self._mine)
            link = round._down.get(source)
        if link is None:
            return
        owners, here = self._plan.owners(roll.reducers), set(self._living) - round._dead
        waited = silent and time.monotonic() - round._progress > silent
        wanted = [
            number
            for number in round.averages.missing()
            if (waited or owners[number] not in here) and (source, number) not in self._asked
        ]
        if wanted:
            self._asked |= {(source, number) for number in wanted}
            link.post(say(Says.FETCH, wanted))


def _introductions(roll: Roll, signed: Sequence[bytes]) -> list[bytes]:
    """Those on a roll, as several messages."""
    return [
        say(Says.INTRODUCTIONS, [roll.name, first, list(signed[first : first + TOLD_AT_ONCE])])
        for first in range(0, len(signed), TOLD_AT_ONCE)
    ]
