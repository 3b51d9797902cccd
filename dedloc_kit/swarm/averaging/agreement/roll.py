"""Who counts in a round: what leader and members say and sign to agree on it, and when it is agreed.

It is Paxos with one value, the average. docs/internals.md describes it and proves that two steps cannot be.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, ClassVar, Protocol, TypeVar

from hivemind.utils import MSGPackSerializer
from pydantic import Field

from dedloc_kit.records.record import Digest, Record, SignedRecord

R = TypeVar("R", bound=SignedRecord)

MAX_BALLOTS = 1024
"""That each reducer may lead in a round: one for each that is found gone."""
_MAX_MEMBERS = 4096
_MAX_SIGNED_BYTES = 4096

Number = Annotated[int, Field(ge=0, le=2**31)]
Members = Annotated[tuple[Number, ...], Field(max_length=_MAX_MEMBERS, strict=False)]
Hash = Annotated[bytes, Field(min_length=32, max_length=32)]
MaybeHash = Annotated[bytes, Field(max_length=32)]
"""Empty if there is none."""
Signed = Annotated[bytes, Field(max_length=_MAX_SIGNED_BYTES)]


class Fault(Exception):
    """The round cannot be completed here."""


class Call(Record):
    """A leader begins a ballot, in which these members reduce."""

    ballot: Number
    reducers: Members


class Report(SignedRecord):
    """What a reducer signs: from whom of its row it has everything that it is to reduce."""

    wire: ClassVar[str] = "agreement/report"

    group: Digest
    ballot: Number
    whole: Members
    introductions: Hash
    """One hash for those of what these members introduced themselves with."""


class Reported(Record):
    """A report, and the hashes of the introductions themselves."""

    report: Signed
    introductions: Annotated[tuple[Hash, ...], Field(max_length=_MAX_MEMBERS, strict=False)]


class Roll(Record):
    """Who counts, and who reduces."""

    group: Digest
    ballot: Number
    reducers: Members
    introductions: Annotated[tuple[MaybeHash, ...], Field(max_length=_MAX_MEMBERS, strict=False)]
    """The hash of each member's, in the order of the group; empty for those that are left out."""
    average: MaybeHash = b""
    """The hash of the average that somebody holds already; empty if it is still to be made."""

    @cached_property
    def counted(self) -> tuple[int, ...]:
        return tuple(number for number, name in enumerate(self.introductions) if name)

    @cached_property
    def name(self) -> bytes:
        """The same at every ballot: from the same roll follows the same average."""
        return hash_of(MSGPackSerializer.dumps([self.group, list(self.reducers), list(self.introductions)]))


class Proposal(SignedRecord):
    """What the leader of a ballot signs: one roll, or it gives evidence against itself."""

    wire: ClassVar[str] = "agreement/proposal"

    group: Digest
    ballot: Number
    roll: Hash
    average: MaybeHash


class Acknowledgement(SignedRecord):
    """What a member signs, once for each ballot: it holds all of this average."""

    wire: ClassVar[str] = "agreement/accepted"

    group: Digest
    ballot: Number
    roll: Hash
    average: Hash


class Promise(SignedRecord):
    """What a member signs when it joins a ballot: it acknowledges nothing of an earlier one any more."""

    wire: ClassVar[str] = "agreement/promise"

    group: Digest
    ballot: Number
    acknowledged: Acknowledgement | None
    """The last thing that it has acknowledged before."""


class Held(Record):
    """A roll with all that proves it right."""

    roll: Roll
    signed: Signed
    """The proposal of its leader."""
    promises: Annotated[tuple[Signed, ...], Field(max_length=_MAX_MEMBERS, strict=False)] = ()
    """Of a quorum; the first ballot needs none."""


class Answer(Record):
    """A member has joined a ballot."""

    promise: Signed
    held: Held | None = None
    """The roll whose average it has acknowledged."""


class Certificate(Record):
    """The acknowledgements of a quorum."""

    signed: Annotated[tuple[Signed, ...], Field(max_length=_MAX_MEMBERS, strict=False)]


class Signs(Protocol):
    """Signs records and opens those of others (`network.identity.Signer`)."""

    def sign(self, record: SignedRecord) -> bytes: ...

    def open(self, kind: type[R], data: bytes) -> tuple[str, R]: ...


def hash_of(*contents: bytes) -> bytes:
    whole = hashlib.sha256()
    for content in contents:
        whole.update(len(content).to_bytes(8, "big"))
        whole.update(content)
    return whole.digest()


def newest(promises: Iterable[Promise]) -> set[Acknowledgement]:
    """What was acknowledged in the highest ballot in which any of these has acknowledged something.

    One thing or nothing; several only if a reducer has told its members different averages.
    """
    found = {promise.acknowledged for promise in promises if promise.acknowledged is not None}
    highest = max((each.ballot for each in found), default=0)
    return {each for each in found if each.ballot == highest}


class Votes:
    """What members of a group sign, how many of them it takes, and who leads which ballot.

    :param organizer: the coordinator's id; with it half of the members are enough, for the other half lacks it
    """

    def __init__(self, group: str, members: Sequence[str], organizer: str, signer: Signs) -> None:
        self.group, self.members, self._organizer, self._signer = group, members, organizer, signer
        self._places = {member: place for place, member in enumerate(members)}
        self._right: set[bytes] = set()
        """What was checked already, for it comes from several."""

    def enough(self, members: Collection[int]) -> bool:
        """Whether these are a quorum: any two of them have a member in common."""
        led = any(self.members[member] == self._organizer for member in members)
        return 2 * len(members) + led > len(self.members)

    def propose(self, roll: Roll) -> bytes:
        return self._signer.sign(Proposal(group=self.group, ballot=roll.ballot, roll=roll.name, average=roll.average))

    def check(self, held: Held, leader: int) -> None:
        """Raises ValueError unless this leader has proposed the roll, and a quorum has left it the choice."""
        roll, found = held.roll, hash_of(MSGPackSerializer.dumps(held.model_dump()))
        if found in self._right:
            return
        author, proposal = self._signer.open(Proposal, held.signed)
        if author != self.members[leader] or roll.group != self.group:
            raise ValueError("a roll is signed by another, or of another round")
        if proposal != Proposal(group=self.group, ballot=roll.ballot, roll=roll.name, average=roll.average):
            raise ValueError("a roll is not the one that its leader has signed")
        if len(roll.introductions) != len(self.members):
            raise ValueError("a roll is not of this group")
        if roll.ballot:
            self._check_choice(roll, held.promises)
        elif roll.average:
            raise ValueError("the first roll of a round has an average")
        self._right.add(found)

    def _check_choice(self, roll: Roll, signed: Sequence[bytes]) -> None:
        promises = dict(self.promised(each) for each in signed)
        if not self.enough(promises) or {promise.ballot for promise in promises.values()} != {roll.ballot}:
            raise ValueError("a roll without a quorum that has joined its ballot")
        acknowledged = {(each.roll, each.average) for each in newest(promises.values())}
        if acknowledged != ({(roll.name, roll.average)} if roll.average else set()):
            raise ValueError("a roll is not the one that was acknowledged before")

    def holders(self, held: Held) -> list[int]:
        """Who holds the average that a roll takes up again, as they have promised."""
        promises = dict(self.promised(each) for each in held.promises)
        right = held.roll.name, held.roll.average
        named = {member: promise.acknowledged for member, promise in promises.items() if promise.acknowledged}
        return sorted(member for member, found in named.items() if (found.roll, found.average) == right)

    def acknowledge(self, roll: Roll, average: bytes) -> Acknowledgement:
        return Acknowledgement(group=self.group, ballot=roll.ballot, roll=roll.name, average=average)

    def report(self, ballot: int, introduced: Mapping[int, bytes]) -> Reported:
        """
        :param introduced: the hash of the introduction of each member from which all is there
        """
        whole, names = tuple(introduced), tuple(introduced.values())
        report = Report(group=self.group, ballot=ballot, whole=whole, introductions=hash_of(*names))
        return Reported(report=self._signer.sign(report), introductions=names)

    def reported(self, reported: Reported) -> tuple[int, int, dict[int, bytes]]:
        """Who reports, in which ballot, and the introductions' hashes by member; raises ValueError."""
        author, report = self._signer.open(Report, reported.report)
        names = reported.introductions
        if len(names) != len(report.whole) or hash_of(*names) != report.introductions:
            raise ValueError("a report is not of the introductions that come with it")
        return self._member(author, report.group), report.ballot, dict(zip(report.whole, names, strict=True))

    def promise(self, ballot: int, acknowledged: Acknowledgement | None) -> bytes:
        return self._signer.sign(Promise(group=self.group, ballot=ballot, acknowledged=acknowledged))

    def sign(self, acknowledgement: Acknowledgement) -> bytes:
        return self._signer.sign(acknowledgement)

    def promised(self, signed: bytes) -> tuple[int, Promise]:
        """Who has promised what; raises ValueError."""
        author, promise = self._signer.open(Promise, signed)
        before = promise.acknowledged
        if before is not None and (before.group != self.group or before.ballot >= promise.ballot):
            raise ValueError("a promise names what cannot have been before")
        return self._member(author, promise.group), promise

    def acknowledged(self, signed: bytes) -> tuple[int, Acknowledgement]:
        """Who has acknowledged what; raises ValueError."""
        author, acknowledgement = self._signer.open(Acknowledgement, signed)
        return self._member(author, acknowledgement.group), acknowledgement

    def certified(self, certificate: Certificate) -> Acknowledgement:
        """What a quorum has acknowledged; raises ValueError if it is none."""
        read = dict(self.acknowledged(signed) for signed in certificate.signed)
        same = set(read.values())
        if len(same) != 1 or not self.enough(read):
            raise ValueError("a certificate is not that of a quorum")
        return same.pop()

    def _member(self, author: str, group: str) -> int:
        if author not in self._places or group != self.group:
            raise ValueError("it is signed by a stranger, or of another round")
        return self._places[author]
