"""What a peer and the organizer say until the peer may take part, and what it may show others then."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from dedloc_kit.records.record import PeerId, PeerText, Reason, Record, RunId, SignedRecord, Time

TOKEN_SECONDS = 3600.0
"""How long a token lasts; who was sent away gets no other."""


class Token(SignedRecord):
    """What the organizer signs for a peer that may take part, as one record; it is worth nothing to any other peer."""

    wire: ClassVar[str] = "token"

    run_id: RunId
    peer: PeerId
    name: PeerText
    """Whom the organizer let in with it: the invited person, or the account on the Hub."""
    time: Time
    expires: Time


class Reached(SignedRecord):
    """What the organizer signs for a peer that it could reach there, so that others look for it there."""

    wire: ClassVar[str] = "reachability"

    run_id: str
    peer: PeerId
    host: Annotated[str, Field(max_length=15, pattern=r"^[0-9.]+$")]
    port: Annotated[int, Field(ge=1, le=65535)]
    time: Time


Denial = Literal[
    "no code",
    "no token",
    "unreadable",
    "forged",
    "expired",
    "revoked",
    "other run",
    "kicked",
    "not listed",
    "too many machines",
    "token refused",
    "hub down",
    "busy",
]
"""Why the organizer does not let a peer in.

`forged`: not made by this coordinator; `not listed`: not an account that may join; `busy`: too many ask at once."""


class AccessRequest(Record):
    """A peer asks the organizer to be let in, or for its next token."""

    run_id: RunId
    secret: Annotated[str, Field(max_length=1024)] = ""
    """A personal code, or a token of the Hub; whoever was let in before needs none."""


class AccessAnswer(Record):
    token: Annotated[bytes, Field(max_length=4096)] = b""
    """Signed; empty in an open run, or with a denial."""
    denial: Denial | None = None
    why: Reason = ""
    """What was found about who is kicked, if that is known; not written while it is empty, for whoever knows no such
    key."""

    @model_serializer(mode="wrap")
    def _without_empty_why(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = written(self)
        if not self.why:
            del values["why"]
        return values
