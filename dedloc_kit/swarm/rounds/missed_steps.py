"""Steps that a peer did not take part in, as it tells of them."""

from dataclasses import dataclass

from hivemind.utils import get_dht_time

from dedloc_kit.records.steps import Contribution, Receipt
from dedloc_kit.swarm.averaging.entries import EntryReader
from dedloc_kit.swarm.consensus.chain import ChainRecord
from dedloc_kit.swarm.consensus.records import Commit, Reset
from dedloc_kit.swarm.rounds.finished_step import receipt_of, record_in


@dataclass(frozen=True)
class MissedStep:
    """A record that led to this peer's state, of a round in which it did not take part.

    :ivar contributions: none of a reset
    :ivar weights: how many samples of each count
    :ivar is_step: whether it is a step of the run, not only new voters
    """

    receipt: Receipt
    contributions: dict[str, Contribution]
    weights: dict[str, int]
    is_step: bool = True

    @property
    def rollback(self) -> Reset | None:
        """What a person chose, if this step took over an earlier state."""
        record = record_in(self.receipt)
        return record if isinstance(record, Reset) and record.chosen else None

    @property
    def pieces(self) -> frozenset[str]:
        """Names of the gradients that count."""
        record = record_in(self.receipt)
        entries = record.value.counted if isinstance(record, Commit) else ()
        return frozenset(piece.hash for entry in entries for piece in entry.pieces)


def missed_step(reader: EntryReader, record: ChainRecord, receipt: Receipt | None = None) -> MissedStep:
    """Raises ValueError if its contributions cannot be read."""
    if isinstance(record, Reset):
        return MissedStep(receipt or receipt_of(record, float(get_dht_time())), {}, {}, record.chosen)
    contributions = reader.in_commit(record)
    latest = max(contribution.time for contribution in contributions.values())
    weights = dict(zip(contributions, record.value.weights, strict=True))
    return MissedStep(receipt or receipt_of(record, latest), contributions, weights)
