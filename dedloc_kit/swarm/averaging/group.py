"""A group of peers on its way through a round, as the training and the averager's process tell each other of it."""

import math
import statistics
from dataclasses import dataclass, field
from typing import Literal

from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.p2p import PeerID
from hivemind.utils import MPFuture, MSGPackSerializer, get_dht_time

from dedloc_kit.records import Contribution
from dedloc_kit.swarm.network.bounds import MAX_MEMBERS

MOST_ANNOUNCED_BYTES = 100
"""By one member to all of its group: three numbers."""


@dataclass(frozen=True)
class Round:
    """What became of one all-reduce, as this peer saw it."""

    outcome: Literal["complete", "refused", "failed"]
    """`refused`: the group is too small to take a global step, so it did not average; all members see the same."""
    id: str = ""
    contributions: dict[str, Contribution] = field(default_factory=dict)
    """Of every member of the group, by peer id; signatures are checked."""
    signed: tuple[bytes, ...] = ()
    """The same as their authors signed them."""
    detail: str = ""
    culprits: frozenset[str] = frozenset()
    """Peers that fell silent, broke off or sent nonsense."""
    named: frozenset[str] = frozenset()
    """Peers that did so as other members say."""
    seconds: float = 0.0
    """What the all-reduce took."""
    ended: float = field(default_factory=get_dht_time)
    """When it was over (DHT time)."""
    longest_silence: float = 0.0
    upload_rate: float | None = None
    """Bytes per second at which this peer's gradients came to the reducers."""


@dataclass(frozen=True)
class Search:
    """What the averager's process knows of a gathering; hivemind's step has no room for it."""

    number: int
    step: int
    after: str
    leaders: tuple[str, ...]
    expected: frozenset[str]
    unwelcome: frozenset[str]
    window: float
    members: MPFuture
    """What it took to find them, and their peer ids, as soon as the group stands."""
    called: MPFuture
    """Done when a member has begun."""


@dataclass(frozen=True)
class Gathering:
    """A group that is being found, or waits for its members to begin."""

    control: StepControl
    search: Search

    @property
    def called(self) -> bool:
        """Has a member begun, who so thinks that the batch is full?"""
        return bool(self.search.called.done())

    def gathered(self) -> frozenset[str] | None:
        """The members; none while the group is being found or if it was not."""
        return frozenset(self.search.members.result()[1]) if self.search.members.done() else None

    def seconds(self) -> float:
        """What it took to find the group."""
        return float(self.search.members.result()[0])

    def searching(self) -> bool:
        before = (AveragingStage.IDLE, AveragingStage.LOOKING_FOR_GROUP)
        return not self.control.done() and self.control.stage in before


@dataclass(frozen=True)
class Begin:
    introduction: bytes
    patience: float
    start_patience: float
    limit: float


def sorted_group(group: GroupInfo) -> GroupInfo:
    """The group with its members sorted by their ids; its leader shuffles them.

    So each reduces about the same values as in the round before: what its averages lost there is made good with the
    next ones, and its memory for them is a share of the vector, not the whole.
    """
    order = sorted(range(len(group.peer_ids)), key=lambda index: group.peer_ids[index].to_base58())
    peers, gathered = (tuple(values[index] for index in order) for values in (group.peer_ids, group.gathered))
    return GroupInfo(group.group_id, peers, gathered)


def read_members(group: GroupInfo) -> tuple[list[float | None], float]:
    """The members' bandwidths (None: unknown, 0: client) and how many peers there should be.

    That number is the median of what the members expect, so that one of them cannot block the others.
    Raises ValueError if a member sent nonsense, or the leader did.
    """
    if len(group.peer_ids) > MAX_MEMBERS or len(set(group.peer_ids)) != len(group.peer_ids):
        raise ValueError("the leader named members that cannot be a group")
    bandwidths: list[float | None] = []
    expected = []
    for peer, gathered in zip(group.peer_ids, group.gathered, strict=True):
        bandwidth, client_mode, group_size = _announcement(peer, gathered)
        expected.append(group_size)
        bandwidths.append(0.0 if client_mode else bandwidth)
    return bandwidths, statistics.median(expected)


def _announcement(peer: PeerID, gathered: bytes) -> tuple[float | None, bool, int]:
    """A member's bandwidth, whether it is a client, and the size of the group that it expects."""
    if len(gathered) > MOST_ANNOUNCED_BYTES:
        raise Nonsense(peer, "announced too much")
    try:
        bandwidth, mode, own = MSGPackSerializer.loads(gathered)
        (group_size,) = MSGPackSerializer.loads(own)
    except Exception as error:  # hostile bytes make msgpack raise nearly anything
        raise Nonsense(peer, f"announced what cannot be read ({error})") from None
    if bandwidth is not None and not (isinstance(bandwidth, float) and 0 < bandwidth < math.inf):
        raise Nonsense(peer, "claims an impossible bandwidth")
    if mode not in (0, 1) or not isinstance(group_size, int):
        raise Nonsense(peer, "announced nonsense")
    return bandwidth, mode == 1, group_size


class Nonsense(ValueError):
    def __init__(self, peer: PeerID, what: str) -> None:
        super().__init__(f"{peer} {what}")
        self.peer = peer.to_base58()
