"""What peers sign about a step: contributions, votes, the commit that they decide on, and resets."""

from functools import cached_property
from typing import Annotated, ClassVar, NamedTuple, Self

from pydantic import Field, model_validator

from dedloc_kit.records.record import Count, PeerId, Record, RunId
from dedloc_kit.swarm.consensus.signing import Hash, Link, Signed, WireRecord, sha256
from dedloc_kit.swarm.p2p.seams import Verifier

MAX_MEMBERS = 4096
MAX_PIECES = 12
"""Of one contribution; see `contributions.FREE_PIECES`."""
MAX_ORDERS = 16
MAX_ABOUT = 4096
MAX_PARTS = 256
MAX_EPOCH = 2**40
NO_VOTE = 0
"""The incarnation of a peer that cannot vote: its vote file cannot be written, or is of a later instance."""
Incarnation = Annotated[int, Field(ge=0, lt=2**53)]
PartName = Annotated[str, Field(max_length=64, pattern=r"^[0-9A-Za-z._-]*$")]


class Voter(NamedTuple):
    """A peer as long as it remembers its votes: without its vote file it returns as another incarnation."""

    peer: PeerId
    incarnation: Incarnation


class Epoch(NamedTuple):
    """A ballot of Paxos, in the order of its fields. Two groups never share one, for it names its group."""

    number: Annotated[int, Field(ge=0, le=MAX_EPOCH)]
    decider: PeerId
    group: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


NO_EPOCH = Epoch(0, "", "")


class Piece(Record):
    """Gradients as they were first offered; offered again unchanged until a commit counts them.

    :ivar weight: what the gradient is averaged over (labels); samples decide on fullness, credit and votes
    """

    hash: Hash
    samples: Annotated[int, Field(ge=1, le=2**40)]
    weight: Annotated[int, Field(ge=0, le=2**53)]


class Entry(Signed):
    """One member's signed contribution to a step: its pieces, and the orders that it knows of.

    :ivar orders: hashes of signed orders, sorted
    :ivar about: what the ledger keeps beside them; agreement only signs it
    """

    wire: ClassVar[str] = "consensus/entry"

    run_id: RunId
    part: PartName
    previous: Link
    voter: Voter
    pieces: Annotated[tuple[Piece, ...], Field(max_length=MAX_PIECES)] = ()
    orders: Annotated[tuple[Hash, ...], Field(max_length=MAX_ORDERS)] = ()
    about: Annotated[str, Field(max_length=MAX_ABOUT)] = ""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        hashes = [piece.hash for piece in self.pieces]
        if len(set(hashes)) < len(hashes) or list(self.orders) != sorted(set(self.orders)):
            raise ValueError("pieces and orders stand once each, orders sorted")
        return self

    @cached_property
    def samples(self) -> int:
        return sum(piece.samples for piece in self.pieces)

    @property
    def weight(self) -> int:
        return sum(piece.weight for piece in self.pieces)

    @property
    def peer(self) -> PeerId:
        return self.voter.peer

    def verify(self, verifier: Verifier) -> None:
        self.check_signature(self.voter.peer, verifier)


class Value(WireRecord):
    """What one instance of Paxos decides on: who counts, and the average of exactly those.

    :ivar weights: samples that count of each entry, at most as many as it claims; see `Options.weigh`
    """

    wire: ClassVar[str] = "consensus/value"

    run_id: RunId
    part: PartName
    step: Count
    previous: Link
    counted: Annotated[tuple[Entry, ...], Field(min_length=1, max_length=MAX_MEMBERS)]
    weights: Annotated[tuple[Count, ...], Field(max_length=MAX_MEMBERS)]
    average: Hash

    @model_validator(mode="after")
    def _weighs_no_more_than_claimed(self) -> Self:
        claims = [entry.samples for entry in self.counted]
        if len(self.weights) != len(claims) or any(w > claim for w, claim in zip(self.weights, claims, strict=True)):
            raise ValueError("each entry has one weight, at most its samples")
        return self

    @cached_property
    def link(self) -> str:
        """Independent of signatures, epoch and group: one value may be certified in several epochs."""
        pairs = zip(self.counted, self.weights, strict=True)
        entries = ",".join(f"{entry.digest}:{weight}" for entry, weight in pairs)
        return sha256(
            f"{self.wire}\0{self.run_id}\0{self.part}\0{self.step}\0{self.previous}\0{entries}\0{self.average}".encode()
        )

    @property
    def orders(self) -> tuple[str, ...]:
        """A function of who counts: nobody can add an order or leave one out."""
        return tuple(sorted({order for entry in self.counted for order in entry.orders}))

    @property
    def samples(self) -> int:
        """That count."""
        return sum(self.weights)


class Accepted(Signed):
    """A voter's word that it holds the whole average of a value, and votes for it in this epoch."""

    wire: ClassVar[str] = "consensus/accepted"

    run_id: RunId
    part: PartName
    previous: Link
    epoch: Epoch
    link: Hash
    average: Hash
    voter: Voter


class Promise(Signed):
    """A voter's word that it accepts nothing of an earlier epoch any more.

    :ivar accepted: what it has accepted last
    """

    wire: ClassVar[str] = "consensus/promise"

    run_id: RunId
    part: PartName
    previous: Link
    epoch: Epoch
    voter: Voter
    accepted: Accepted | None = None


class Commit(WireRecord):
    """A value with its quorum certificate: the receipt of a step."""

    wire: ClassVar[str] = "consensus/commit"

    value: Value
    accepted: Annotated[tuple[Accepted, ...], Field(min_length=1, max_length=MAX_MEMBERS)]

    @property
    def link(self) -> str:
        return self.value.link

    @property
    def previous(self) -> str:
        return self.value.previous

    @property
    def after(self) -> int:
        """The step that comes next."""
        return self.value.step + 1

    @property
    def holders(self) -> tuple[PeerId, ...]:
        """Peers that hold the average."""
        return tuple(accepted.voter.peer for accepted in self.accepted)


class PartReset(Record):
    """Where one part of the model goes on after a reset.

    :ivar state: the digest of the state at `previous`
    :ivar voters: who votes on the first step, with its weight; without any the coordinator alone
    """

    part: PartName
    previous: Link
    state: Hash
    voters: Annotated[
        tuple[tuple[Voter, Annotated[int, Field(ge=1, le=2**50)]], ...], Field(max_length=MAX_MEMBERS)
    ] = ()


class Reset(Signed):
    """Signed with the organizer's key: genesis, rollback, or a new electorate where the old one is gone.

    :ivar rate: a factor on the learning rate from here on
    :ivar chosen: by a person, who does not want what came after `step`
    """

    wire: ClassVar[str] = "consensus/reset"

    run_id: RunId
    term: Annotated[int, Field(ge=0, le=2**40)]
    step: Count
    parts: Annotated[tuple[PartReset, ...], Field(min_length=1, max_length=MAX_PARTS)]
    coordinator: Voter
    rate: Annotated[float, Field(gt=0, le=1e3)] = 1.0
    chosen: bool = False

    @model_validator(mode="after")
    def _each_part_once(self) -> Self:
        if len({part.part for part in self.parts}) < len(self.parts):
            raise ValueError("each part stands once")
        return self

    @property
    def link(self) -> str:
        return self.digest

    @property
    def after(self) -> int:
        return self.step

    def of(self, part: str) -> PartReset:
        """Raises ValueError if it does not name this part."""
        for each in self.parts:
            if each.part == part:
                return each
        raise ValueError(f"the reset does not name the part {part!r}")


class Goodbye(Signed):
    """A leaver's last word: this voter never votes again.

    :ivar head: the link of its last commit or reset
    """

    wire: ClassVar[str] = "consensus/goodbye"

    run_id: RunId
    part: PartName
    head: Link
    voter: Voter

    def verify(self, verifier: Verifier) -> None:
        self.check_signature(self.voter.peer, verifier)


class Vote(WireRecord):
    """The content of a vote file: what a voter has promised and accepted in its newest instance.

    :ivar term: (number, link) of the last reset before the instance
    :ivar value: what `accepted` names
    """

    wire: ClassVar[str] = "consensus/vote"

    run_id: RunId
    part: PartName
    term: tuple[Count, Link]
    step: Count
    previous: Link
    voter: Voter
    promised: Epoch = NO_EPOCH
    accepted: Accepted | None = None
    value: Value | None = None
