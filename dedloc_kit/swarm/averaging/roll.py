"""Who counts in a round: the roll, what members sign for it, and who leads when the leader is gone.

It is Paxos with one value, the average. The leader of a ballot proposes a roll; reducers average exactly the members on
it; whoever holds all of that average signs an acknowledgement, and with those of a quorum, the certificate, everyone
takes the step. Two quorums share a member. So whoever takes over asks a quorum first, and if any of it has acknowledged
an average, proposes that one again; otherwise nobody can have taken a step. The averages lie with a quorum before the
first step is taken: who dies then takes nothing along.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol, TypeVar

from hivemind.utils import MSGPackSerializer
from pydantic import Field

from dedloc_kit.records import Digest, Record

R = TypeVar("R", bound=Record)

MAX_BALLOTS = 1024
"""That each reducer may lead in a round: one for each that is found gone."""
_MAX_MEMBERS = 4096

Number = Annotated[int, Field(ge=0, le=2**31)]
Members = Annotated[tuple[Number, ...], Field(max_length=_MAX_MEMBERS, strict=False)]
Hash = Annotated[bytes, Field(min_length=32, max_length=32)]


class Fault(Exception):
    """The round cannot be completed here."""


class Call(Record):
    """A leader begins a ballot, in which these members reduce."""

    ballot: Number
    reducers: Members


class Report(Record):
    """From whom a reducer has everything that it is to reduce."""

    ballot: Number
    whole: Members
    introductions: Hash
    """Of what these members introduced themselves with."""


class Roll(Record):
    """Who counts, and who reduces."""

    group: Digest
    ballot: Number
    reducers: Members
    introductions: Annotated[tuple[bytes, ...], Field(max_length=_MAX_MEMBERS, strict=False)]
    """The hash of each member's, in the order of the group; empty for those that are left out."""
    average: Annotated[bytes, Field(max_length=32)] = b""
    """The hash of the average that somebody holds already; empty if it is still to be made."""

    @property
    def counted(self) -> tuple[int, ...]:
        return tuple(number for number, name in enumerate(self.introductions) if name)

    @property
    def name(self) -> bytes:
        """The same at every ballot: from the same roll follows the same average."""
        return hash_of(MSGPackSerializer.dumps([self.group, list(self.reducers), list(self.introductions)]))


class Proposal(Record):
    """What the leader of a ballot signs: one roll, or it gives evidence against itself."""

    group: Digest
    ballot: Number
    roll: Hash


class Acknowledgement(Record):
    """What a member signs, once for each ballot: it holds all of this average."""

    group: Digest
    ballot: Number
    roll: Hash
    average: Hash


class Held(Record):
    """A roll with its leader's signature, and the average of it that a member has acknowledged, if it has."""

    roll: Roll
    signed: Annotated[bytes, Field(max_length=4096)]
    """The proposal of that roll's leader."""
    average: Annotated[bytes, Field(max_length=32)] = b""


class Answer(Record):
    """A member takes part in a ballot, and in none before."""

    ballot: Number
    held: Held | None = None


class Certificate(Record):
    """The acknowledgements of a quorum."""

    signed: Annotated[tuple[bytes, ...], Field(max_length=_MAX_MEMBERS, strict=False)]


class Signs(Protocol):
    """Signs for this peer, and reads what others signed (`network.identity.Signer`)."""

    def sign(self, record: Record) -> bytes: ...

    def open(self, kind: type[R], data: bytes) -> tuple[str, R]: ...


def hash_of(*contents: bytes) -> bytes:
    whole = hashlib.sha256()
    for content in contents:
        whole.update(len(content).to_bytes(8, "big"))
        whole.update(content)
    return whole.digest()


class Votes:
    """What members of a group sign, and how many of them it takes.

    :param organizer: the coordinator's id; with it half of the members are enough, for the other half lacks it
    """

    def __init__(self, group: str, members: Sequence[str], organizer: str, signer: Signs) -> None:
        self.group, self._members, self._organizer, self._signer = group, members, organizer, signer

    def enough(self, members: Collection[int]) -> bool:
        """Whether these are a quorum: any two of them have a member in common."""
        led = any(self._members[member] == self._organizer for member in members)
        return 2 * len(members) + led > len(self._members)

    def propose(self, roll: Roll) -> bytes:
        return self._signer.sign(Proposal(group=self.group, ballot=roll.ballot, roll=roll.name))

    def check(self, roll: Roll, signed: bytes, leader: int) -> None:
        """Raises ValueError unless this member has proposed this roll in this round."""
        author, proposal = self._signer.open(Proposal, signed)
        if author != self._members[leader] or roll.group != self.group:
            raise ValueError("a roll is signed by another, or of another round")
        if proposal != Proposal(group=self.group, ballot=roll.ballot, roll=roll.name):
            raise ValueError("a roll is not the one that its leader has signed")
        if len(roll.introductions) != len(self._members):
            raise ValueError("a roll is not of this group")

    def acknowledge(self, roll: Roll, average: bytes) -> bytes:
        return self._signer.sign(Acknowledgement(group=self.group, ballot=roll.ballot, roll=roll.name, average=average))

    def read(self, signed: bytes) -> tuple[int, Acknowledgement]:
        """Who has acknowledged what; raises ValueError."""
        author, acknowledgement = self._signer.open(Acknowledgement, signed)
        if author not in self._members or acknowledgement.group != self.group:
            raise ValueError("an acknowledgement is of another round")
        return self._members.index(author), acknowledgement

    def certified(self, certificate: Certificate) -> Acknowledgement:
        """What a quorum has acknowledged; raises ValueError if it is none."""
        read = dict(self.read(signed) for signed in certificate.signed)
        same = set(read.values())
        if len(same) != 1 or not self.enough(read):
            raise ValueError("a certificate is not that of a quorum")
        return same.pop()


@dataclass
class Leading:
    """What the leader of one ballot has heard.

    :ivar answered: a quorum has been asked already, or there was no ballot of another leader
    :ivar resumed: the average that has to be taken in any case, as that quorum says, and who holds it
    """

    votes: Votes
    ballot: int
    reducers: tuple[int, ...]
    answered: bool
    resumed: tuple[Held, frozenset[int]] | None = None
    proposed: bool = False
    reports: dict[int, Report] = field(default_factory=dict)
    answers: dict[int, Held | None] = field(default_factory=dict)
    acknowledged: dict[int, tuple[Acknowledgement, bytes]] = field(default_factory=dict)

    def answer(self, member: int, held: Held | None) -> None:
        """Raises ValueError if two hold different averages of the same ballot: then a reducer has told them so."""
        self.answers[member] = held
        if self.answered or not self.votes.enough(self.answers):
            return
        self.answered = True
        all_held = [held for held in self.answers.values() if held is not None]
        newest = max((held.roll.ballot for held in all_held), default=0)
        averages = {(h.roll.name, h.average): h for h in all_held if h.roll.ballot == newest}
        if len(averages) > 1:
            raise ValueError("a reducer told its members different averages")
        for (roll, average), held in averages.items():
            holders = {m for m, h in self.answers.items() if h and (h.roll.name, h.average) == (roll, average)}
            self.resumed = held, frozenset(holders)

    @property
    def ready(self) -> bool:
        """Can a roll be proposed?"""
        return self.answered and not self.proposed and (self.resumed is not None or not self.missing())

    def missing(self) -> list[int]:
        """Reducers that have not reported."""
        return [reducer for reducer in self.reducers if reducer not in self.reports]

    def useless(self) -> list[int]:
        """Reducers that lack more than half of what others have: not those members are cut off, but they are."""
        have = Counter(member for report in self.reports.values() for member in report.whole)
        return [reducer for reducer, report in self.reports.items() if 2 * len(report.whole) < len(have)]

    def propose(self, introductions: Mapping[int, bytes]) -> Roll:
        """The roll of those from whom every reducer has everything.

        :param introductions: what this peer knows of each member, as signed
        """
        if self.resumed is not None:
            held, _ = self.resumed
            return held.roll.model_copy(update={"ballot": self.ballot, "average": held.average})
        whole = set(introductions).intersection(*(report.whole for report in self.reports.values()))
        count = len(self.votes._members)
        names = tuple(hash_of(introductions[member]) if member in whole else b"" for member in range(count))
        return Roll(group=self.votes.group, ballot=self.ballot, reducers=self.reducers, introductions=names)

    def acknowledge(self, member: int, acknowledgement: Acknowledgement, signed: bytes) -> None:
        self.acknowledged[member] = acknowledgement, signed

    def certificate(self, roll: Roll, average: bytes) -> Certificate | None:
        """If a quorum holds the same average as the leader does."""
        right = Acknowledgement(group=self.votes.group, ballot=self.ballot, roll=roll.name, average=average)
        signed = {member: signed for member, (found, signed) in self.acknowledged.items() if found == right}
        return Certificate(signed=tuple(signed.values())) if self.votes.enough(signed) else None


def names_of(introductions: Iterable[bytes]) -> bytes:
    """One hash for what members introduced themselves with, in the order of the group."""
    return hash_of(*map(hash_of, introductions))
