"""What the organizer tells all, with its signature."""

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from dedloc_kit.config.section import PLAIN_TEXT
from dedloc_kit.records.record import Base64, Count, Digest, Record, RunId, SignedRecord, Time

AnnouncementText = Annotated[str, Field(max_length=200, pattern=PLAIN_TEXT)]
MAX_REFUSED = 1280
"""Peers in one notice, so that it stays below 12 kB: a record of 16 in the DHT may be too much."""
_SHORT = 8


class DecayOrder(SignedRecord):
    """What the organizer signs to let the learning rate fall and the run end with that."""

    wire: ClassVar[str] = "cooldown"

    run_id: RunId
    steps: Annotated[int, Field(ge=1, le=2**53)]
    """Over so many global steps."""
    rewound: Count
    """The state's newest rewind then: a later one makes the order void, whoever still brings it."""


class Decay(Record):
    """The learning rate falls to its end, in these global steps; the run is over after them."""

    start: Annotated[int, Field(ge=1, le=2**53)]
    """The first of them."""
    steps: Annotated[int, Field(ge=1, le=2**53)]

    @property
    def end(self) -> int:
        """The last of them."""
        return self.start + self.steps - 1


class Announcement(Record):
    """What the organizer tells everyone."""

    text: AnnouncementText
    time: Time


class Checks(Record):
    """What has come of checking the volunteers' work since the coordinator started."""

    passed: Count = 0
    given_up: Count = 0
    """Nobody could compute it in time, or its author had left."""
    convicted: Count = 0
    share: Annotated[float, Field(gt=0.0, le=1.0)]
    """Of all contributions are checked now."""
    alarm: Count | None = None
    """So many global steps ago somebody was convicted, while more is checked because of that."""

    def told(self) -> str:
        """In one line."""
        found = f"{self.convicted} sent away" if self.convicted else "all fine"
        given_up = f", {self.given_up} could not be" if self.given_up else ""
        return f"{self._how_many()}: {self.passed} checked{given_up}, {found}"

    def _how_many(self) -> str:
        one_in = round(1 / max(self.share, 1e-9))
        if self.alarm is None:
            return f"1 in {one_in} contributions is checked"
        part = Fraction(self.share).limit_denominator(100) or Fraction(1, one_in)
        ago = f"{self.alarm} step{'' if self.alarm == 1 else 's'} ago" if self.alarm else "just now"
        are = "is" if part.numerator == 1 else "are"
        checked = f"{part.numerator} in {part.denominator} contributions {are} checked"
        return f"{checked} since somebody was sent away {ago}"


class Instructions(Record):
    """What the coordinator passes on to the volunteers from the organizer."""

    paused: bool
    last_step: Count | None
    """The global step after which the run is over, if that is not what its configuration says."""
    announcement: AnnouncementText
    """Empty if there is none."""
    decay_order: Base64 = ""
    """For all to bring to their rounds; see Contribution."""
    decay: Decay | None = None
    """That has begun; for those who look on."""
    stored: Digest = ""
    """The hash of the index of what lies in the run's bucket (`averaging.state_bucket`) for all."""


class Notice(SignedRecord):
    """What the organizer tells all again and again, signed: that it is there, how far it is, and whom to refuse."""

    wire: ClassVar[str] = "notice"

    run_id: RunId
    time: Time
    refused: Annotated[bytes, Field(max_length=_SHORT * MAX_REFUSED)] = b""
    """The beginnings of the SHA-256 digests of peer ids; may be given as the ids, as it was written before."""
    step: Count | None = None
    """The global step that it holds; none while it starts."""
    round: Digest = ""
    """The all-reduce that led to this step."""

    @field_validator("refused", mode="before")
    @classmethod
    def _digests(cls, refused: Any) -> Any:
        return shortened(refused[:MAX_REFUSED]) if isinstance(refused, tuple | list) else refused

    def refuses(self, peer: str) -> bool:
        """May this peer not take part any more?"""
        return bool(self.refused) and shortened([peer]) in self._refused

    @cached_property
    def _refused(self) -> frozenset[bytes]:
        return frozenset(self.refused[at : at + _SHORT] for at in range(0, len(self.refused), _SHORT))


def shortened(peers: Sequence[str]) -> bytes:
    """Peer ids as a notice names them. Nobody finds a key whose id is shortened to that of another peer."""
    return b"".join(hashlib.sha256(str(peer).encode()).digest()[:_SHORT] for peer in peers)


RateFactor = Annotated[float, Field(gt=0, le=10)]
