"""What a participant is told, and what it asks for."""

from dataclasses import dataclass

from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.messages import Message
from dedloc_kit.swarm.consensus.records import Commit, Entry, Epoch, Value, Vote

# Events


@dataclass(frozen=True)
class PartsComplete:
    """This reducer has everything of a member that it is to average in this epoch."""

    epoch: Epoch
    member: PeerId


@dataclass(frozen=True)
class ShareComplete:
    """This peer has everything that a reducer has averaged for this epoch's proposal."""

    epoch: Epoch
    reducer: PeerId


@dataclass(frozen=True)
class AverageComplete:
    """This peer holds the whole average of this epoch's proposal."""

    epoch: Epoch
    average: str


@dataclass(frozen=True)
class PeerFailed:
    """A member's stream is broken, or it is not in this round."""

    member: PeerId
    reason: str


@dataclass(frozen=True)
class Heard:
    """Something came from a member: a piece of its data, or a sign of life. Other events of a member say so too."""

    member: PeerId


@dataclass(frozen=True)
class PartsLost:
    """No more parts come from a member, which may be alive all the same: its stream for them is broken or stands."""

    member: PeerId


@dataclass(frozen=True)
class VoteLost:
    """A vote could not be written (`VoteBook.written`): this peer leaves, so that nobody waits for its word."""


@dataclass(frozen=True)
class Received:
    member: PeerId
    message: Message


@dataclass(frozen=True)
class Tick:
    """The deadline has passed."""


Event = PartsComplete | PartsLost | ShareComplete | AverageComplete | PeerFailed | Heard | VoteLost | Received | Tick

# Effects, in the order in which they are to happen


@dataclass(frozen=True)
class Send:
    """To itself too: such a message comes back as Received."""

    to: PeerId
    message: Message


@dataclass(frozen=True)
class Persist:
    """Write the vote, and send these only once it is on disk. If it cannot be written, never send them.

    :ivar average: write the average that `vote.value` names as well, where it is small enough
    """

    vote: Vote
    then: tuple[Send, ...]
    average: bool = False


@dataclass(frozen=True)
class Assign:
    """These reduce from now on: send them the parts that they lack."""

    epoch: Epoch
    reducers: tuple[PeerId, ...]


@dataclass(frozen=True)
class Reduce:
    """Average exactly these contributions, and send the own share to all members under the proposal's name.

    A whole average consists of shares with one name.
    """

    epoch: Epoch
    name: str
    counted: tuple[Entry, ...]


@dataclass(frozen=True)
class Fetch:
    """Obtain the average that a value names, from these first; report AverageComplete with this epoch."""

    epoch: Epoch
    value: Value
    holders: tuple[PeerId, ...]


@dataclass(frozen=True)
class Finish:
    commit: Commit


@dataclass(frozen=True)
class Abort:
    """:ivar counted: places of those who were there, if they brought too few samples"""

    reason: str
    counted: tuple[int, ...] = ()


@dataclass(frozen=True)
class Blame:
    member: PeerId
    reason: str


@dataclass(frozen=True)
class GiveUp:
    """A member is waited for no longer. Nothing proves that it did wrong: its line may be too slow for these rounds."""

    member: PeerId


Effect = Send | Persist | Assign | Reduce | Fetch | Finish | Abort | Blame | GiveUp
