"""What relays hand on: letters signed by their authors, and packets of them; and what a relay wants done."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from dedloc_kit.records.record import Count, PeerId, Record
from dedloc_kit.swarm.consensus.messages import KINDS, Decided, Group, Message, Places, Promised, Proposal
from dedloc_kit.swarm.consensus.records import MAX_MEMBERS, Accepted, Commit, Entry, Epoch, Value
from dedloc_kit.swarm.consensus.signing import Hash, Signature, Signed, WireRecord, sha256
from dedloc_kit.swarm.p2p.seams import Signer

MAX_LETTERS = 1024
"""Of one author in one round; fewer if they are long: `MAX_BYTES` in all."""
PIECE = 32_768
"""Characters in a letter at most. A relay hands on the first piece of a long message before it has the last one."""
Place = Annotated[int, Field(ge=0, lt=MAX_MEMBERS)]


class Joining(WireRecord):
    """A member comes to a group. :ivar promised: the number of the highest epoch that it has promised"""

    wire: ClassVar[str] = "consensus/joining"

    entry: Entry
    promised: Annotated[int, Field(ge=0, le=2**40)] = 0


class BriefValue(Record):
    """A value for members of its group: entries by their places. An entry of 1.5 kB so travels to each member once."""

    counted: Places
    weights: Annotated[tuple[Count, ...], Field(max_length=MAX_MEMBERS)]
    average: Hash

    @classmethod
    def of(cls, value: Value, group: Group) -> "BriefValue | None":
        """None if the value counts entries that are none of this group."""
        places = {entry.digest: place for place, entry in enumerate(group.members)}
        if any(entry.digest not in places for entry in value.counted):
            return None
        counted = tuple(places[entry.digest] for entry in value.counted)
        return cls(counted=counted, weights=value.weights, average=value.average)

    def expand(self, group: Group) -> Value:
        """The value, not checked yet. Raises ValueError if it is not of this group."""
        if any(place >= len(group.members) for place in self.counted):
            raise ValueError("a value of another group")
        return Value(
            run_id=group.run_id,
            part=group.part,
            step=group.step,
            previous=group.previous,
            counted=tuple(group.members[place] for place in self.counted),
            weights=self.weights,
            average=self.average,
        )


class BriefProposal(WireRecord):
    """:ivar message: without its value"""

    wire: ClassVar[str] = "consensus/brief-proposal"

    message: Proposal
    value: BriefValue

    def expand(self, group: Group) -> Proposal:
        return self.message.changed(value=self.value.expand(group))


class BriefPromised(WireRecord):
    """:ivar message: without its value"""

    wire: ClassVar[str] = "consensus/brief-promised"

    message: Promised
    value: BriefValue

    def expand(self, group: Group) -> Promised:
        return self.message.changed(value=self.value.expand(group))


class Certificate(WireRecord):
    """A commit for members of its group: of votes what differs between them.

    :ivar votes: place and signature of each voter
    """

    wire: ClassVar[str] = "consensus/certificate"

    group: Hash
    epoch: Epoch
    value: BriefValue
    votes: Annotated[tuple[tuple[Place, Signature], ...], Field(min_length=1, max_length=MAX_MEMBERS)]

    @classmethod
    def of(cls, decided: Decided, group: Group) -> "Certificate | None":
        """None if the commit counts entries that are none of this group."""
        value, accepted = BriefValue.of(decided.commit.value, group), decided.commit.accepted
        voters = {entry.voter: place for place, entry in enumerate(group.members)}
        if value is None or any(each.voter not in voters for each in accepted):
            return None
        votes = tuple((voters[each.voter], each.signature) for each in accepted)
        return cls(group=group.id, epoch=accepted[0].epoch, value=value, votes=votes)

    def expand(self, group: Group) -> Decided:
        """The commit, not checked yet. Raises ValueError if it is not of this group."""
        if self.group != group.id or any(place >= len(group.members) for place, _ in self.votes):
            raise ValueError("a certificate of another group")
        value = self.value.expand(group)
        accepted = [
            Accepted(
                run_id=group.run_id,
                part=group.part,
                previous=group.previous,
                epoch=self.epoch,
                link=value.link,
                average=value.average,
                voter=group.members[place].voter,
                signature=signature,
            )
            for place, signature in self.votes
        ]
        return Decided(group=self.group, commit=Commit(value=value, accepted=tuple(accepted)))


Content = Message | Group | Joining
Brief = Certificate | BriefProposal | BriefPromised
"""For members of a group: they have the entries."""
_KINDS: Mapping[str, type[Content | Brief]] = {
    **KINDS,
    **{kind.wire: kind for kind in (Group, Joining, Certificate, BriefProposal, BriefPromised)},
}


class Letter(Signed):
    """A message that others hand on, or a piece of one.

    :ivar scope: the group's id; before there is a group the link of the step before
    :ivar root: the decider, which is its author or who it is for
    :ivar to: a member; everybody if empty
    :ivar kind: the message's name on the wire
    :ivar whole: the hash of all pieces together
    """

    wire: ClassVar[str] = "consensus/letter"

    scope: Hash
    root: PeerId
    author: PeerId
    to: PeerId = ""
    kind: Annotated[str, Field(max_length=64)]
    whole: Hash
    piece: Annotated[int, Field(ge=0, lt=MAX_LETTERS)] = 0
    pieces: Annotated[int, Field(ge=1, le=MAX_LETTERS)] = 1
    body: Annotated[str, Field(max_length=PIECE)]


def write(scope: str, root: str, to: str, message: Content, group: Group | None, signer: Signer) -> tuple[Letter, ...]:
    """The letters of a message of this peer."""
    content = message if group is None else _shorten(message, group)
    body = content.to_bytes().decode()
    bodies = [body[begin : begin + PIECE] for begin in range(0, len(body), PIECE)]
    first = Letter(
        scope=scope,
        root=root,
        author=signer.peer,
        to=to,
        kind=content.wire,
        whole=sha256(body.encode()),
        pieces=len(bodies),
        body=bodies[0],
    )
    return tuple(first.changed(piece=piece, body=body).signed(signer) for piece, body in enumerate(bodies))


def _shorten(message: Content, group: Group) -> Content | Brief:
    if isinstance(message, Decided):
        return Certificate.of(message, group) or message
    if not isinstance(message, (Proposal, Promised)) or message.value is None:
        return message
    value, rest = BriefValue.of(message.value, group), message.model_copy(update={"value": None})
    if value is None:
        return message
    if isinstance(rest, Proposal):
        return BriefProposal(message=rest, value=value)
    return BriefPromised(message=rest, value=value)


def decode(kind: str, body: str) -> Content | Brief:
    """Read a message. Raises ValueError."""
    if kind not in _KINDS:
        raise ValueError("a letter of no known kind")
    return _KINDS[kind].from_bytes(body.encode())


class Pieces:
    """Puts messages together."""

    def __init__(self, read: Callable[[str, str], Content | Brief] = decode) -> None:
        self._read = read
        self._parts: dict[tuple[object, ...], dict[int, str]] = {}

    def add(self, letter: Letter, group: Group | None) -> Content | None:
        """The message, with its last piece. Raises ValueError unless it is valid in this group."""
        key = (letter.author, letter.to, letter.kind, letter.whole, letter.pieces)
        parts = self._parts.setdefault(key, {})
        parts[letter.piece] = letter.body
        if len(parts) < letter.pieces:
            return None
        body = "".join(parts[piece] for piece in sorted(parts))
        del self._parts[key]
        if sha256(body.encode()) != letter.whole:
            raise ValueError("pieces of another message")
        found = self._read(letter.kind, body)
        if not isinstance(found, Brief):
            return found
        if group is None:
            raise ValueError("it comes before its group")
        return found.expand(group)


class Pulse(Signed):
    """The decider is here.

    :ivar received: how many letters of each member have come; by their places in the tree
    :ivar told: how many of its own letters to all it gives to those who ask
    """

    wire: ClassVar[str] = "consensus/pulse"

    scope: Hash
    root: PeerId
    count: Annotated[int, Field(ge=1, le=2**40)]
    told: Annotated[int, Field(ge=0, le=MAX_LETTERS)] = 0
    received: Annotated[tuple[Annotated[int, Field(ge=0, le=MAX_LETTERS)], ...], Field(max_length=MAX_MEMBERS)]


class Packet(WireRecord):
    """What goes from one member to its neighbour in the tree.

    :ivar alive: members below the sender that it has heard from since the last packet
    :ivar broken: members below the sender whose streams broke
    :ivar have: the sender asks for the letters to everybody, but for these
    """

    wire: ClassVar[str] = "consensus/packet"

    scope: Hash
    root: PeerId
    letters: Annotated[tuple[Letter, ...], Field(max_length=4 * MAX_MEMBERS)] = ()
    pulse: Pulse | None = None
    alive: Places = ()
    broken: Places = ()
    have: Annotated[tuple[Hash, ...], Field(max_length=MAX_LETTERS)] | None = None


# What a relay wants done


@dataclass(frozen=True)
class Post:
    to: PeerId
    packet: Packet


@dataclass(frozen=True)
class Delivered:
    """A message with its author's signature, or of this member itself."""

    author: PeerId
    message: Content


@dataclass(frozen=True)
class Alive:
    """A member was heard from, as the relays above it say, or the decider."""

    member: PeerId


@dataclass(frozen=True)
class Lost:
    """A member's stream broke, as the relays above it say."""

    member: PeerId


@dataclass(frozen=True)
class Forged:
    """A neighbour has handed on what it must not."""

    member: PeerId
    reason: str


Outcome = Post | Delivered | Alive | Lost | Forged
