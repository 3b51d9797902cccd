"""What travels in a round, kept as it came: the members' parts at their reducer, and the averages at everyone."""

import time
from collections import Counter
from collections.abc import Sequence

import torch
from hivemind.proto import runtime_pb2
from torch import Tensor

from dedloc_kit.learning.train.flat import CHUNK
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.averaging.agreement.roll import hash_of
from dedloc_kit.swarm.averaging.encoding.codec import check, decode, read_part
from dedloc_kit.swarm.averaging.encoding.feedback import Coding
from dedloc_kit.swarm.averaging.reduction.keeping import Keep, Kept, in_memory
from dedloc_kit.swarm.averaging.reduction.plan import Plan
from dedloc_kit.swarm.averaging.streams.messages import read_with_path
from dedloc_kit.swarm.trust.pledge import Pledged

_HEADER_BYTES = 64
"""That a part may have besides its values."""


class Parts:
    """What members sent of the values that this peer reduces: until it is agreed who counts, nothing is added up.

    :param keep: takes each part until then
    """

    def __init__(self, plan: Plan, coding: Coding, keep: Keep = in_memory) -> None:
        self._plan, self._coding, self._keep = plan, coding, keep
        self._kept: dict[int, dict[int, Kept]] = {}
        self._values = torch.empty(CHUNK)
        self.mine: tuple[int, ...] = ()
        """The chunks that this peer reduces."""
        self._first: tuple[int, ...] = ()
        """Those that it would if all lived."""

    def room(self, member: int, number: int) -> bool:
        """May this part be kept? Of another's share as many as of this peer's own: a member may have heard before this
        peer does that it inherits them, or of another ballot."""
        others = self._kept.get(member, {}).keys() - set(self.mine)
        return number in self.mine or len(others) < max(1, len(self._first))

    def take(self, member: int, number: int, content: bytes, brought: Contribution) -> None:
        """Keep a part; raises ValueError unless it is the first of its kind, can be read, and is the one to which its
        author has committed itself with what it brought, if it has."""
        kept = self._kept.setdefault(member, {})
        if number in kept or number >= len(self._plan.chunks):
            raise ValueError(f"part {number} came twice, or there is none")
        encoded = self._pledged(number, content, brought) if isinstance(brought, Pledged) else content
        begin, end = self._plan.chunks[number]
        if len(encoded) > self._coding.of_gradients(begin, self._plan.layout).byte_count(end - begin) + _HEADER_BYTES:
            raise ValueError(f"part {number} takes more bytes than the run's compression needs")
        check(read_part(encoded), end - begin)
        if self.room(member, number):
            kept[number] = self._keep(encoded)

    def _pledged(self, number: int, content: bytes, brought: Pledged) -> bytes:
        path, encoded = read_with_path(content)
        if not brought.sends(number, self._plan.chunks, encoded, path):
            raise ValueError(f"part {number} is not what was pledged")
        return encoded

    def deal(self, mine: int, owners: Sequence[int]) -> None:
        """Who reduces which chunk from now on."""
        self.mine = tuple(number for number, owner in enumerate(owners) if owner == mine)
        first = self._plan.first.owners[self._plan.rows[mine]]
        self._first = tuple(number for number, owner in enumerate(first) if owner == mine)

    def all_of(self, member: int, *, first: bool = False) -> bool:
        """Has this member sent all that this peer reduces, or would reduce if all lived?"""
        kept = self._kept.get(member, {})
        return all(number in kept for number in (self._first if first else self.mine))

    def has(self, member: int, number: int) -> bool:
        return number in self._kept.get(member, {})

    def forget(self, member: int) -> None:
        self._kept[member] = {}

    def of(self, member: int, number: int) -> Tensor:
        """A member's values, float32 [numel], until the next call."""
        begin, end = self._plan.chunks[number]
        return decode(read_part(self._kept[member][number]()), end - begin, self._values[: end - begin])


class Averages:
    """The averages of one roll, as everyone gets them.

    :param average: float32 [size]; takes them. None at a peer that has no use for their values: it looks whether they
        can be read
    """

    def __init__(self, plan: Plan, coding: Coding, average: Tensor | None) -> None:
        self._most = [
            coding.of_averages(begin, plan.layout).byte_count(end - begin) + _HEADER_BYTES for begin, end in plan.chunks
        ]
        self._chunks = plan.chunks
        self._average = average
        self._shares = counts([owner for row in plan.first.owners for owner in row], len(plan.members))
        self.messages: list[bytes] = []
        """Encoded, in the order of the vector; empty for those that are missing."""
        self._early: dict[int, dict[int, tuple[bytes, bytes]]] = {}
        self._stirred = time.monotonic()
        self.begin()

    def begin(self) -> None:
        """There is another roll: what came for the one before is of no use."""
        self.messages = [b""] * len(self._chunks)
        self._missing = set(range(len(self._chunks)))

    def take(self, number: int, encoded: bytes) -> None:
        """Raises ValueError if it cannot be read, is longer than agreed, or another one was there."""
        if len(encoded) > self._most[number]:
            raise ValueError(f"average {number} takes more bytes than the run's compression needs")
        if self.messages[number] not in (b"", encoded):
            raise ValueError(f"average {number} came twice")
        if not self.messages[number]:
            self._read(number, read_part(encoded))
            self.messages[number] = encoded
            self._missing.discard(number)
        self.stir()

    def _read(self, number: int, part: runtime_pb2.Tensor) -> None:
        (begin, end), place = self._chunks[number], self.place(number)
        if place is None:
            check(part, end - begin)
        else:
            decode(part, end - begin, place)

    def stir(self, seconds: float = 0.0) -> None:
        """Something has come of the roll, or so many seconds nobody has listened."""
        self._stirred = self._stirred + seconds if seconds else time.monotonic()

    def quiet(self, now: float) -> float:
        """Seconds since anything came."""
        return now - self._stirred

    def hold_back(self, sender: int, number: int, roll: bytes, encoded: bytes) -> None:
        """An average came before its roll. From each reducer as much is kept as may be its share at most."""
        early = self._early.setdefault(sender, {})
        if len(encoded) > self._most[number]:
            return
        if number in early or len(early) < 2 * self._shares[sender]:
            early[number] = roll, encoded

    def held_back(self, roll: bytes) -> list[tuple[int, int, bytes]]:
        """What came early of this roll: from whom, which one, and its values. It is not kept any longer."""
        early, self._early = self._early, {}
        return [(s, n, encoded) for s, kept in early.items() for n, (of, encoded) in kept.items() if of == roll]

    def missing(self) -> list[int]:
        return sorted(self._missing)

    @property
    def complete(self) -> bool:
        return not self._missing

    def name(self) -> bytes:
        """One hash for all of them."""
        return hash_of(*self.messages)

    def place(self, number: int) -> Tensor | None:
        """Where the values of an average go."""
        begin, end = self._chunks[number]
        return None if self._average is None else self._average[begin:end]


def counts(owners: Sequence[int], members: int) -> list[int]:
    """How many chunks each member reduces."""
    count = Counter(owners)
    return [count[member] for member in range(members)]
