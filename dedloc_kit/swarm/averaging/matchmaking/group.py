"""The group of a round, and what peers say to each other until it stands."""

import secrets
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from dedloc_kit.records.progress import MAX_ROWS
from dedloc_kit.records.record import Count, Digest, PeerId, Record, RunId, SignedRecord
from dedloc_kit.records.steps import MAX_MEMBERS
from dedloc_kit.swarm.directory.rows import Division
from dedloc_kit.swarm.network.service import MAX_RECORD_BYTES

MAX_ROW = 256
"""Members that one row's leader brings."""
MAX_GROUP_BYTES = 200 * MAX_MEMBERS


@dataclass(frozen=True)
class RowCall:
    """What a peer has to know where peers are divided into rows."""

    division: Division
    signed: bytes
    """That it comes, a `Coming`."""
    able: Mapping[int, tuple[str, ...]]
    """Of each other row some who can be asked who leads it."""
    expected: frozenset[int]
    """The other rows that have to come."""


@dataclass(frozen=True)
class GroupRequest:
    """Which group a peer looks for."""

    step: int
    """The global step that it will take."""
    after: str
    """The round that led to this peer's state; only peers with the same state can meet."""
    leaders: tuple[str, ...]
    """Whom to ask to lead this peer, best first; without any it leads itself, unless it is a client."""
    expected: frozenset[str]
    """The group stands as soon as these others are there."""
    unwelcome: frozenset[str]
    """Peers that this one would not lead."""
    window: float
    """Seconds to wait for missing peers before the group stands without them."""
    open_for: float = 0.0
    """Seconds in which it does not stand though all are there, for somebody may still come."""
    bandwidth: float | None = None
    """Of this peer's line, in bytes per second, if it is known."""
    rows: RowCall | None = None
    """None where there is one group."""

    @property
    def patience(self) -> float:
        """Windows differ: whoever waits for a leader has to wait as long as that one does, and as it waits for other
        rows."""
        return (2 if self.rows is None else 3) * self.window + 10.0


class Member(Record):
    """What a member says of itself."""

    peer: PeerId
    bandwidth: Annotated[float, Field(gt=0)] | None
    """None: not known."""
    client_mode: bool
    """Reduces nothing."""
    group_size: Count
    """Of the group that it expects."""


class Coming(SignedRecord):
    """What a member signs where peers are divided into rows, so that nobody brings any who do not come."""

    wire: ClassVar[str] = "matchmaking/coming"

    run_id: RunId
    step: Count
    after: Digest
    member: Member


class Group(Record):
    """A group that stands, as its leader tells the others."""

    id: Digest
    members: Annotated[tuple[Member, ...], Field(min_length=2, max_length=MAX_MEMBERS, strict=False)]
    rows: Annotated[tuple[Annotated[int, Field(ge=0, lt=MAX_ROWS)], ...], Field(strict=False)] = ()
    """The row of each member; none where they are one."""

    @field_validator("members")
    @classmethod
    def _each_once_and_one_reduces(cls, members: tuple[Member, ...]) -> tuple[Member, ...]:
        if len({member.peer for member in members}) < len(members):
            raise ValueError("a member is named twice")
        if all(member.client_mode for member in members):
            raise ValueError("there is nobody among the members who reduces")
        return members

    @model_validator(mode="after")
    def _each_in_a_row(self) -> "Group":
        if self.rows and (len(self.rows) != len(self.members) or set(self.rows) != set(range(1 + max(self.rows)))):
            raise ValueError("rows: not one for each member, or one without any")
        return self

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(member.peer for member in self.members)

    @property
    def expected_size(self) -> float:
        """The median of what the members expect, so that one of them cannot block the others."""
        return statistics.median(member.group_size for member in self.members)


class Join(Record):
    """A peer wants to follow another one."""

    step: Count
    after: Digest
    member: Member
    signed: Annotated[bytes, Field(max_length=MAX_RECORD_BYTES)] = b""
    """Where peers are divided into rows: the same as a `Coming`."""

    @property
    def name(self) -> str:
        """By which it is expected."""
        return self.member.peer


class Verdict(Record):
    """What a leader answers; whoever is to wait gets another one later."""

    verdict: Literal["wait", "no", "group"]
    leader: PeerId = ""
    """With `no`: whom the asked peer follows itself."""
    group: Group | None = None


def stands(members: Sequence[Member], rows: Mapping[str, int] | None = None) -> Group:
    """A group of these members.

    Members stand in the order of their ids, which no leader decides: so each reduces mostly the same values as in the
    round before. What its averages lost there is made good with the next ones, and its memory for them is a share of
    the vector, not the whole.

    :param rows: of each by peer id, if they are several
    """
    ordered = tuple(sorted(members, key=lambda member: member.peer))
    numbers = tuple(rows[member.peer] for member in ordered) if rows else ()
    return Group(id=secrets.token_hex(20), members=ordered, rows=numbers)
