"""What one member has of a round's chunks, and what follows from it: what to add up, to finish, and to send to whom.

Pure: values lie elsewhere. An average is known by what it is of and by who finishes it: after a death only what was
lost travels again.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

from dedloc_kit.swarm.allreduce.plan import Assignment, Plan, Row, Transfer


class Transmit(NamedTuple):
    """Send an average that is here, or this row's sum, which was made, to a member."""

    to: int
    chunk: int
    is_sum: bool


class ChunkFlow:
    """Of one member in one round. Members are given by their places in the group.

    :ivar assignment: the transfers while the same reducers live
    :ivar name: of what is averaged; empty before
    :ivar held: chunks of the average that are here, and who finished each
    """

    def __init__(self, plan: Plan, me: int) -> None:
        self.plan, self.me, self.row = plan, me, plan.rows[me]
        self.name = b""
        self.held: dict[int, int] = {}
        self._rows: frozenset[Row] = frozenset()
        self._got: dict[int, int] = {}
        """Of each member of the row which parts are here, a bit for each chunk."""
        self._summed: set[int] = set()
        self._sums: dict[int, dict[int, bytes]] = {}
        """Of each chunk what owners in other rows have added up, by name."""
        self._sent: set[tuple[int, ...]] = set()
        self._lacking: Counter[int] = Counter()
        """How many averages and sums each reducer still owes this peer."""
        self.assign(plan.reducers)

    def assign(self, reducers: Collection[int]) -> None:
        """Only these reduce from now on."""
        self.assignment: Assignment = self.plan.assign(reducers)
        self.mine = self.assignment.owned.get(self.me, ())
        """The chunks that this peer adds up for its row."""
        self._mine = sum(1 << chunk for chunk in self.mine)

    # Parts

    def expects(self, member: int, chunk: int) -> bool:
        """Whether this peer is to have a member's part."""
        if self.plan.rows[member] != self.row:
            return False
        return bool(self._mine >> chunk & 1) or Transfer(member, self.me, chunk) in self.assignment.backups(member)

    def part_came(self, member: int, chunk: int) -> None:
        self._got[member] = self._got.get(member, 0) | 1 << chunk

    def forget(self, member: int) -> None:
        """Its parts are worth nothing."""
        self._got.pop(member, None)

    def whole(self, member: int) -> bool:
        """Whether all is here that this peer is to add up of a member; of one in another row that is nothing."""
        if member == self.me or self.plan.rows[member] != self.row:
            return True
        return not self._mine & ~self._got.get(member, 0)

    @property
    def others(self) -> Iterator[int]:
        """Members of other rows that count. Their own reducers say whether their parts have come."""
        rows = self.assignment.rows - {self.row}
        return (member for member, row in enumerate(self.plan.rows) if row in rows)

    # Averages

    def forget_averages(self) -> None:
        """None of them is here any more."""
        self.held = {}

    def reduce(self, name: bytes, counted: Collection[int]) -> list[Transmit]:
        """Average what these members have brought; averages with the same name and finisher stay."""
        if name != self.name:
            self.held, self._summed, self._sent = {}, set(), set()
        self.name, self._rows = name, frozenset(self.plan.rows[member] for member in counted)
        makers = self.assignment.makers
        self.held = {chunk: maker for chunk, maker in self.held.items() if makers[chunk : chunk + 1] == (maker,)}
        self._lacking = Counter(self._givers())
        found = [each for chunk in sorted(self._summed & set(self.mine)) for each in self._send_sum(chunk)]
        return found + [each for chunk in self.held for each in self._hand_on(chunk)]

    def _givers(self) -> Iterator[int]:
        """For each chunk that is not here who gives it, and for each sum that this finisher lacks who owes it."""
        for chunk in range(len(self.assignment.makers)):
            if chunk not in self.held:
                giver = self.giver(chunk)
                if giver is not None:
                    yield giver
                yield from self._awaited(chunk)

    def giver(self, chunk: int) -> int | None:
        """From whom the average of a chunk comes, which may be this peer; None if its row has no reducer."""
        own = self.assignment.makers[chunk : chunk + 1] == (self.me,)
        return self.me if own else self.assignment.source(self.me, chunk)

    def _awaited(self, chunk: int) -> list[int]:
        """The owners whose sums this peer lacks to finish a chunk."""
        if self.assignment.makers[chunk] != self.me:
            return []
        came = self._sums.get(chunk, {})
        return [owner for owner in self.summands(chunk) if came.get(owner) != self.name]

    def summands(self, chunk: int) -> list[int]:
        """The owners in other rows whose sums go into a chunk; its own number stands for a row that has none."""
        owners = self.assignment.owners
        return [owners[row][chunk] if owners[row] else -1 for row in sorted(self._rows - {self.row})]

    @property
    def sums_due(self) -> list[int]:
        """Chunks that this peer is to add up for a finisher elsewhere."""
        if self.row not in self._rows:
            return []
        return [c for c in self.mine if self.assignment.makers[c] != self.me and c not in self._summed]

    @property
    def averages_due(self) -> list[int]:
        """Chunks that this peer is to finish."""
        return [c for c in self.mine if self.assignment.makers[c] == self.me and c not in self.held]

    def ready(self, chunk: int) -> bool:
        """Whether the sums of all other rows are here."""
        return not self._awaited(chunk)

    def sum_made(self, chunk: int) -> list[Transmit]:
        """This peer has added up a chunk for its row."""
        self._summed.add(chunk)
        return self._send_sum(chunk)

    def _send_sum(self, chunk: int) -> list[Transmit]:
        maker = self.assignment.makers[chunk]
        return [] if maker == self.me or self.row not in self._rows else self._once(Transmit(maker, chunk, True))

    def take_sum(self, source: int, name: bytes, chunk: int) -> None:
        """An owner in another row has added up a chunk; it may have done so before this peer knows who counts."""
        came = self._sums.setdefault(chunk, {})
        if name == self.name and chunk not in self.held and source in self._awaited(chunk):
            self._lacking[source] -= 1
        came[source] = name

    def accepts(self, source: int, chunk: int) -> bool:
        """Whether a member gives this peer an average. That of another finisher waits until it is known who counts."""
        maker = self.assignment.makers[chunk : chunk + 1]
        return self.giver(chunk) == source and (self.held.get(chunk, *maker),) == maker

    def take(self, chunk: int) -> list[Transmit]:
        """An average of its present finisher is here."""
        if chunk in self.held:
            return []
        if (giver := self.giver(chunk)) is not None:
            self._lacking[giver] -= 1
        self.held[chunk] = self.assignment.makers[chunk]
        return self._hand_on(chunk)

    def _hand_on(self, chunk: int) -> list[Transmit]:
        """To owners in other rows, if this is the finisher, and to the members of this row, if it owns the chunk."""
        if not self._mine >> chunk & 1:
            return []
        sends = (Transmit(target, chunk, False) for _, target, _ in self.assignment.averages(self.me, chunk))
        return [each for send in sends for each in self._once(send)]

    def _once(self, transmit: Transmit) -> list[Transmit]:
        key = (*transmit, self.assignment.makers[transmit.chunk])
        if key in self._sent:
            return []
        self._sent.add(key)
        return [transmit]

    def owes(self, member: int) -> bool:
        """Whether this peer still lacks anything that a reducer is to give it of the average."""
        return self._lacking[member] > 0

    @property
    def owing(self) -> set[int]:
        return {member for member, count in self._lacking.items() if count > 0 and member >= 0}
