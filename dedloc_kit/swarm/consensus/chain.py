"""This peer's branch: commits and resets, each valid after the one before; and which of two branches wins."""

from collections.abc import Sequence
from dataclasses import dataclass

from dedloc_kit.swarm.consensus.instance import Instance, Term
from dedloc_kit.swarm.consensus.records import Commit, Reset
from dedloc_kit.swarm.p2p.seams import Verifier

ChainRecord = Commit | Reset
Rank = tuple[Term, int]
"""Of two branches the one with the higher last reset wins, then the longer one."""
KEPT = 1000
"""Records that a peer keeps to answer those who are behind; who is further behind takes the state."""


@dataclass(frozen=True)
class Change:
    """Records that the branch left, newest last, and took."""

    left: tuple[ChainRecord, ...] = ()
    taken: tuple[ChainRecord, ...] = ()


class Chain:
    """Records since an anchor that this peer trusts: genesis, or the head that came with a state."""

    def __init__(self, anchor: Instance, verifier: Verifier) -> None:
        self._verifier = verifier
        self._instances = [anchor]
        self._records: list[ChainRecord] = []
        self._before: Commit | None = None
        self._places = {anchor.previous: 0}

    @property
    def head(self) -> Instance:
        """The instance that is to be decided next."""
        return self._instances[-1]

    @property
    def rank(self) -> Rank:
        return self.head.term, self.head.step

    @property
    def last(self) -> Commit | None:
        """The commit that led to the head; None after a reset, and at an anchor without one."""
        last = self._records[-1] if self._records else self._before
        return last if isinstance(last, Commit) else None

    @property
    def records(self) -> tuple[ChainRecord, ...]:
        return tuple(self._records)

    def __contains__(self, link: str) -> bool:
        return link in self._places

    def since(self, link: str) -> tuple[ChainRecord, ...]:
        """Records after a link; all of them if it is not on this branch."""
        return tuple(self._records[self._places.get(link, 0) :])

    def at(self, link: str) -> Instance:
        """The instance after a link of this branch; raises KeyError."""
        return self._instances[self._places[link]]

    def previous_of(self, record: ChainRecord) -> str:
        return record.previous if isinstance(record, Commit) else record.of(self.head.part).previous

    def adopt(self, records: Sequence[ChainRecord]) -> Change:
        """Follow a branch if it wins. Raises ValueError, and changes nothing, if it is invalid or begins elsewhere."""
        new = list(records)
        while new and new[0].link in self:
            new.pop(0)
        if not new:
            return Change()
        if (previous := self.previous_of(new[0])) not in self:
            raise ValueError("these records do not begin on this branch")
        keep = self._places[previous]
        found = [self._instances[keep]]
        for record in new:
            found.append(found[-1].after(record, self._verifier))
        if (found[-1].term, found[-1].step) <= self.rank:
            return Change()
        left = self._truncate(keep)
        for record, instance in zip(new, found[1:], strict=True):
            self._places[record.link] = len(self._instances)
            self._records.append(record)
            self._instances.append(instance)
        return Change(left, tuple(new))

    def _truncate(self, keep: int) -> tuple[ChainRecord, ...]:
        left = tuple(self._records[keep:])
        for record in left:
            del self._places[record.link]
        del self._records[keep:], self._instances[keep + 1 :]
        return left

    def append(self, record: ChainRecord, after: Instance) -> None:
        """Adopt the next record, which another copy of this chain has found valid. :param after: where it leads"""
        self._places[record.link] = len(self._instances)
        self._records.append(record)
        self._instances.append(after)

    def restart(self, anchor: Instance, last: Commit | None) -> None:
        """Begin anew where a state was taken. :param last: the commit that led there, if one did"""
        self._before, self._records, self._places = last, [], {anchor.previous: 0}
        self._instances = [anchor]  # the last of these: another thread may look where the chain ends

    def locator(self) -> tuple[str, ...]:
        """Links of this branch, newest first, ever further apart; the anchor's is the last one."""
        links = [self._records[-(2**power)].link for power in range(len(self._records).bit_length())]
        return (*links, self._instances[0].previous)

    def trim(self, keep: int = KEPT) -> tuple[ChainRecord, ...]:
        """Forget the oldest records beyond that number; returns them."""
        count = max(0, len(self._records) - keep)
        gone = tuple(self._records[:count])
        del self._records[:count], self._instances[:count]
        self._places = {instance.previous: place for place, instance in enumerate(self._instances)}
        return gone

    # Choosing among branches

    def parting(self, records: Sequence[ChainRecord]) -> tuple[str, tuple[ChainRecord, ...]] | None:
        """The last link in common with another branch, and what follows there; None if nothing does."""
        rest = list(records)
        while rest and rest[0].link in self:
            rest.pop(0)
        if not rest or self.previous_of(rest[0]) not in self:
            return None
        return self.previous_of(rest[0]), tuple(rest)

    def is_valid_after(self, link: str, records: Sequence[ChainRecord]) -> bool:
        instance = self.at(link)
        try:
            for record in records:
                instance = instance.after(record, self._verifier)
        except ValueError:
            return False
        return True


def samples_of(records: Sequence[ChainRecord]) -> int:
    """Samples that these commits count."""
    return sum(record.value.samples for record in records if isinstance(record, Commit))
