"""The group of a round, and what peers say to each other until it stands."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, field_validator

from dedloc_kit.records.record import Count, Digest, PeerId, Record
from dedloc_kit.records.steps import MAX_MEMBERS

MAX_GROUP_BYTES = 200 * MAX_MEMBERS


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
    alone: bool = False
    """The group is this peer."""

    @property
    def patience(self) -> float:
        """Seconds for the search: windows differ, and a follower waits as long as its leader does."""
        return 2 * self.window + 10.0


class Member(Record):
    """What a member says of itself."""

    peer: PeerId
    bandwidth: Annotated[float, Field(gt=0)] | None
    """None: not known."""
    client_mode: bool
    """Reduces nothing."""


class Group(Record):
    """A group that stands, as its leader tells the others."""

    id: Digest
    members: Annotated[tuple[Member, ...], Field(min_length=1, max_length=MAX_MEMBERS, strict=False)]

    @field_validator("members")
    @classmethod
    def _each_once_and_one_reduces(cls, members: tuple[Member, ...]) -> tuple[Member, ...]:
        if len({member.peer for member in members}) < len(members):
            raise ValueError("a member is named twice")
        if all(member.client_mode for member in members):
            raise ValueError("there is nobody among the members who reduces")
        return members

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(member.peer for member in self.members)


class Join(Record):
    """A peer wants to follow another one."""

    step: Count
    after: Digest
    member: Member


class Verdict(Record):
    """What a leader answers; whoever is to wait gets another one later."""

    verdict: Literal["wait", "no", "group"]
    leader: PeerId = ""
    """With `no`: whom the asked peer follows itself."""
    group: Group | None = None


def stands(members: Sequence[Member]) -> Group:
    """A group of these members.

    Members stand in the order of their ids, which no leader decides: so each reduces mostly the same values as in the
    round before. What its averages lost there is made good with the next ones, and its memory for them is a share of
    the vector, not the whole.
    """
    return Group(id=secrets.token_hex(20), members=tuple(sorted(members, key=lambda member: member.peer)))
