"""What peers say to each other until a group stands, and the events and effects of their state machines."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dedloc_kit.records.position import Position
from dedloc_kit.records.record import Count, PeerId, Record
from dedloc_kit.swarm.consensus.records import MAX_MEMBERS
from dedloc_kit.swarm.consensus.signing import Link, WireRecord, sha256

Bandwidth = Annotated[float, Field(gt=0, le=1e12)] | None


class Member(Record):
    """What a member says of itself.

    :ivar client: it reduces nothing
    :ivar bandwidth: of its line, in bytes per second; None if it is not known
    """

    peer: PeerId
    client: bool = False
    bandwidth: Bandwidth = None


class Join(WireRecord):
    """A peer asks another one to lead it in the step after its head; the leader need not wait for the directory.

    :ivar expects: so many others it expects; a leader that expects fewer looks into the directory first
    """

    wire: ClassVar[str] = "gathering/join"

    position: Position
    bandwidth: Bandwidth = None
    expects: Count = 0

    def member(self, peer: PeerId) -> Member:
        return Member(peer=peer, client=self.position.client, bandwidth=self.bandwidth)


class Attempt(WireRecord):
    """Peers that are to try the step after this link together, as their leader tells them.

    It is no more than an attempt: members that do not come cost it some seconds, and two attempts do no harm.

    :ivar nonce: random
    :ivar members: in the order of their ids, so that each reduces mostly the same values as in the round before
    """

    wire: ClassVar[str] = "gathering/attempt"

    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    previous: Link
    members: Annotated[tuple[Member, ...], Field(min_length=1, max_length=MAX_MEMBERS)]

    @model_validator(mode="after")
    def _each_once_and_one_reduces(self) -> Self:
        peers = [member.peer for member in self.members]
        if peers != sorted(set(peers)) or all(member.client for member in self.members):
            raise ValueError("members stand once, sorted, and one of them reduces")
        return self

    @property
    def peers(self) -> frozenset[PeerId]:
        return frozenset(member.peer for member in self.members)

    @cached_property
    def id(self) -> str:
        """Names it, and says who is in it."""
        return sha256(self.to_bytes())


class Verdict(WireRecord):
    """What a leader answers: no, or to wait, and then the group or no.

    :ivar leader: with `no`: a peer that may lead
    :ivar seconds: with `wait`: the leader says more within that time
    """

    wire: ClassVar[str] = "gathering/verdict"

    verdict: Literal["no", "wait", "group"]
    leader: PeerId = ""
    seconds: Annotated[float, Field(ge=0, le=600)] = 0.0
    attempt: Attempt | None = None

    @model_validator(mode="after")
    def _has_its_group(self) -> Self:
        if (self.attempt is not None) != (self.verdict == "group"):
            raise ValueError("a group, and nothing else, comes with its members")
        return self


# Events


@dataclass(frozen=True)
class Asked:
    """A peer has opened a stream to this one. :ivar join: checked by `check_position`"""

    peer: PeerId
    join: Join


@dataclass(frozen=True)
class Answered:
    """A leader that was asked says something."""

    leader: PeerId
    verdict: Verdict


@dataclass(frozen=True)
class Lost:
    """The stream to a leader or from a follower is over.

    :ivar broken: it could not be opened or has failed; else the other side has closed it
    """

    peer: PeerId
    broken: bool


Carried = Asked | Answered | Lost
"""What comes from other peers."""


@dataclass(frozen=True)
class Begun:
    """The round of the group that stands has begun."""


@dataclass(frozen=True)
class Over:
    """That round has ended. :ivar failed: members that this peer has seen fail; :ivar commit: it led to one"""

    failed: frozenset[PeerId] = frozenset()
    commit: bool = False


@dataclass(frozen=True)
class Tick:
    """The deadline has passed, the chain has moved, or the table of peers has changed."""


Event = Asked | Answered | Lost | Begun | Over | Tick

# Effects


@dataclass(frozen=True)
class Ask:
    """Open a stream to a leader and send a `Join` with this peer's position."""

    leader: PeerId


@dataclass(frozen=True)
class Answer:
    """On the stream that a peer has opened; it is over with anything but `wait`."""

    peer: PeerId
    verdict: Verdict


@dataclass(frozen=True)
class Leave:
    """Close the stream to a leader."""

    leader: PeerId


@dataclass(frozen=True)
class Stand:
    """The group stands; its round begins when the batch is full."""

    attempt: Attempt


@dataclass(frozen=True)
class Disband:
    """The group that stood is given up before its round has begun."""

    reason: str


Effect = Ask | Answer | Leave | Stand | Disband
