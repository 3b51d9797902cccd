"""What members of a group tell each other, and the events and effects of their state machines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

from pydantic import Field

from dedloc_kit.records.record import Count, PeerId, RunId
from dedloc_kit.swarm.consensus.instance import Instance, check_distinct
from dedloc_kit.swarm.consensus.records import (
    MAX_EPOCH,
    MAX_MEMBERS,
    Accepted,
    Commit,
    Entry,
    Epoch,
    PartName,
    Promise,
    Value,
)
from dedloc_kit.swarm.consensus.signing import Hash, Link, WireRecord, sha256
from dedloc_kit.swarm.p2p.seams import Verifier

Places = Annotated[tuple[Annotated[int, Field(ge=0, lt=MAX_MEMBERS)], ...], Field(max_length=MAX_MEMBERS)]
"""Members of a group, by their place in it."""
Peers = Annotated[tuple[PeerId, ...], Field(max_length=MAX_MEMBERS)]


class Group(WireRecord):
    """Peers that try to decide one instance together.

    :ivar nonce: random, new for each attempt
    :ivar members: their signed contributions
    :ivar reducers: members that average, in the order in which they take over from the decider
    :ivar first: the number of the first epoch, above all that its members have promised
    """

    wire: ClassVar[str] = "consensus/group"

    run_id: RunId
    part: PartName
    step: Count
    previous: Link
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    members: Annotated[tuple[Entry, ...], Field(min_length=1, max_length=MAX_MEMBERS)]
    reducers: Annotated[tuple[PeerId, ...], Field(min_length=1, max_length=MAX_MEMBERS)]
    first: Annotated[int, Field(ge=1, le=MAX_EPOCH)]

    @cached_property
    def id(self) -> str:
        return sha256(self.to_bytes())

    @cached_property
    def peers(self) -> tuple[PeerId, ...]:
        return tuple(entry.peer for entry in self.members)

    def check(self, instance: Instance, verifier: Verifier) -> None:
        """Raises ValueError unless these may decide this instance."""
        if (self.run_id, self.part, self.step, self.previous) != (
            instance.run_id,
            instance.part,
            instance.step,
            instance.previous,
        ):
            raise ValueError("a group for another step")
        check_distinct(self.members)
        if len(set(self.reducers)) < len(self.reducers) or not set(self.reducers) <= set(self.peers):
            raise ValueError("reducers are members, once each")
        if not instance.electorate.enough(entry.voter for entry in self.members):
            raise ValueError("the group has no quorum")
        for entry in self.members:
            instance.check_entry(entry, verifier)


def as_claimed(entries: Sequence[Entry]) -> tuple[int, ...]:
    """All samples count that the entries claim."""
    return tuple(entry.samples for entry in entries)


@dataclass(frozen=True)
class Options:
    """Constants of a run.

    :ivar minimum: samples in a batch
    :ivar patience: seconds; who is silent for one or two of them is gone. Members send a sign of life more often
    :ivar limit: seconds for a round; a sixth has to be enough for the parts of the slowest line
    :ivar weigh: how many samples count of each of these entries, if these are counted; the same at all members
    """

    minimum: int
    weigh: Callable[[Sequence[Entry]], tuple[int, ...]] = as_claimed
    patience: float = 10.0
    limit: float = 240.0
    max_jump: int = 65_536
    """How far an epoch's number may be ahead of what this peer knows."""


def new_value(instance: Instance, group: Group, counted: Sequence[int], average: str, options: Options) -> Value:
    """What a proposal of these places stands for, once their average is known. Weights are never taken from others."""
    entries = [group.members[place] for place in counted]
    return instance.value(entries, options.weigh(entries), average)


# Messages. `group` is the id of the group.


class Prepare(WireRecord):
    """The decider opens an epoch with these reducers."""

    wire: ClassVar[str] = "consensus/prepare"

    group: Hash
    epoch: Epoch
    reducers: Peers


class Promised(WireRecord):
    """A promise. :ivar value: what its `accepted` names"""

    wire: ClassVar[str] = "consensus/promised"

    group: Hash
    promise: Promise
    value: Value | None = None


class Report(WireRecord):
    """A reducer tells from whom it has everything, or a member which reducers' averages it lacks."""

    wire: ClassVar[str] = "consensus/report"

    group: Hash
    epoch: Epoch
    complete: Places = ()
    lacking: Peers = ()


class Proposal(WireRecord):
    """Who counts in this epoch.

    :ivar counted: places of those whose average is still to be made; empty with `value`
    :ivar value: what somebody has accepted in an earlier epoch
    :ivar holders: peers that hold its average
    :ivar proof: the quorum's promises; only for those who ask
    """

    wire: ClassVar[str] = "consensus/proposal"

    group: Hash
    epoch: Epoch
    reducers: Peers
    counted: Places = ()
    value: Value | None = None
    holders: Peers = ()
    proof: Annotated[tuple[Promise, ...], Field(max_length=MAX_MEMBERS)] = ()

    @cached_property
    def name(self) -> str:
        """What is proposed. Shares of an average carry it: those of a lying decider's two proposals never mix."""
        what = self.value.link if self.value is not None else self.counted
        return sha256(f"consensus/proposal\0{tuple(self.epoch)}\0{what}".encode())


class Acceptance(WireRecord):
    """A vote for the epoch's value, for its decider."""

    wire: ClassVar[str] = "consensus/acceptance"

    group: Hash
    accepted: Accepted


class Decided(WireRecord):
    """The decider tells the commit."""

    wire: ClassVar[str] = "consensus/decided"

    group: Hash
    commit: Commit


class TooFew(WireRecord):
    """The epoch's decider: the samples are fewer than a batch; the round is over.

    :ivar counted: places of those from whom all reducers have everything
    """

    wire: ClassVar[str] = "consensus/too-few"

    group: Hash
    epoch: Epoch
    counted: Places = ()


Message = Prepare | Promised | Report | Proposal | Acceptance | Decided | TooFew
KINDS: dict[str, type[Message]] = {
    kind.wire: kind for kind in (Prepare, Promised, Report, Proposal, Acceptance, Decided, TooFew)
}


def encode(message: Message) -> bytes:
    return message.wire.encode() + b"\n" + message.to_bytes()


def decode(data: bytes) -> Message:
    """Raises ValueError unless this is one of the messages above, within its bounds."""
    name, _, body = data.partition(b"\n")
    kind = KINDS.get(name[:64].decode("ascii", "replace"))
    if kind is None:
        raise ValueError("no such message")
    return kind.from_bytes(body)
