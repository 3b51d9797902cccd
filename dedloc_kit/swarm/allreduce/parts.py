"""What travels in a round, kept as it came: members' parts at their reducer, and the average at everyone."""

import hashlib
import time
from collections.abc import Sequence
from math import inf

import torch
from hivemind.proto import runtime_pb2
from torch import Tensor

from dedloc_kit.learning.train.flat import CHUNK
from dedloc_kit.swarm.allreduce.encoding.codec import check, decode, read_part
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.allreduce.reduction.keeping import Keep, Kept, in_memory

_HEADER_BYTES = 64
"""That an encoded chunk may have besides its values."""


class Parts:
    """What members sent of the chunks that this peer reduces: until it is agreed who counts, nothing is added up."""

    def __init__(self, plan: Plan, coding: Coding, me: int, keep: Keep = in_memory) -> None:
        self._plan, self._coding, self._keep, self._me = plan, coding, keep, me
        self._kept: dict[int, dict[int, Kept]] = {}
        self._values = torch.empty(CHUNK)
        self.mine: frozenset[int] = frozenset()
        """The chunks that this peer reduces."""

    def assign(self, owners: Sequence[int]) -> None:
        """Who reduces which chunk from now on."""
        self.mine = frozenset(number for number, owner in enumerate(owners) if owner == self._me)

    def take(self, member: int, number: int, encoded: bytes) -> None:
        """Keep a part. Raises ValueError unless it is the first of its kind, within its bounds and readable.

        A member may have heard before this peer does that it inherits chunks: as many are kept as it reduces in all.
        """
        kept = self._kept.setdefault(member, {})
        if number in kept or number >= len(self._plan.chunks):
            raise ValueError(f"part {number} came twice, or there is none")
        begin, end = self._plan.chunks[number]
        if len(encoded) > self._coding.of_gradients(begin, self._plan.layout).byte_count(end - begin) + _HEADER_BYTES:
            raise ValueError(f"part {number} takes more bytes than the run's compression needs")
        check(read_part(encoded), end - begin)
        early = len(kept.keys() - self.mine)
        if number in self.mine or early <= len(self._plan.chunks) // max(1, len(self._plan.reducers)):
            kept[number] = self._keep(encoded)

    def has(self, member: int, number: int) -> bool:
        return number in self._kept.get(member, {})

    def whole(self, member: int) -> bool:
        """Whether a member has sent all that this peer reduces."""
        return self.mine <= self._kept.get(member, {}).keys()

    def forget(self, member: int) -> None:
        self._kept.pop(member, None)

    def of(self, member: int, number: int) -> Tensor:
        """A member's values, float32 [numel], until the next call."""
        begin, end = self._plan.chunks[number]
        return decode(read_part(self._kept[member][number]()), end - begin, self._values[: end - begin])


class Average:
    """The average of one set of contributions, chunk by chunk, as everyone gets it.

    :ivar name: of what was averaged
    :ivar messages: encoded, in the order of the vector; empty where it is missing
    """

    def __init__(self, plan: Plan, coding: Coding, values: Tensor | None) -> None:
        """:param values: float32 [size], takes the average; None if this peer has no use for it"""
        self._plan, self._values = plan, values
        self._most = [
            coding.of_averages(begin, plan.layout).byte_count(end - begin) + _HEADER_BYTES for begin, end in plan.chunks
        ]
        self.name = b""
        self.messages: list[bytes] = [b""] * len(plan.chunks)
        self._sources: list[int] = [-1] * len(plan.chunks)
        self._missing = set(range(len(plan.chunks)))
        self._early: dict[int, dict[int, tuple[bytes, bytes]]] = {}
        self._digest = ""
        self.stirred = time.monotonic()

    def begin(self, name: bytes, owners: Sequence[int] | None = None) -> None:
        """Collect the average with this name. What has come of it stays, if it came from those who reduce it now."""
        if name != self.name:
            self.drop()
        self.name, self._digest = name, ""
        for number, owner in enumerate(owners or ()):
            if self._sources[number] != owner:
                self.messages[number], self._sources[number] = b"", -1
        self._missing = {number for number, message in enumerate(self.messages) if not message}
        self.stirred = time.monotonic()

    def drop(self) -> None:
        """Collect all of it anew."""
        self.messages, self._sources = [b""] * len(self._plan.chunks), [-1] * len(self._plan.chunks)
        self._missing, self._digest = set(range(len(self._plan.chunks))), ""
        self.stirred = -inf

    def take(self, source: int, number: int, encoded: bytes) -> None:
        """A chunk; the first of each number stays. Raises ValueError if it cannot be read, is longer than agreed, or
        its source has sent another one before."""
        self._check_size(number, encoded)
        if not self.messages[number]:
            self._read(number, read_part(encoded))
            self.messages[number], self._sources[number] = encoded, source
            self._missing.discard(number)
        elif self.messages[number] != encoded and self._sources[number] == source:
            raise ValueError(f"average {number} came twice")
        self.stirred = time.monotonic()

    def _check_size(self, number: int, encoded: bytes) -> None:
        if number >= len(self._most) or len(encoded) > self._most[number]:
            raise ValueError(f"average {number} takes more bytes than the run's compression needs, or there is none")

    def _read(self, number: int, part: runtime_pb2.Tensor) -> None:
        begin, end = self._plan.chunks[number]
        place = self.place(number)
        if place is None:
            check(part, end - begin)
        else:
            decode(part, end - begin, place)

    def hold_back(self, source: int, number: int, name: bytes, encoded: bytes, *, owns: bool) -> None:
        """An average that came before it was agreed who counts: one for each chunk that its source reduces, as this
        peer knows, as many again, and one share, which it may have inherited."""
        self._check_size(number, encoded)
        early, owned = self._early.setdefault(source, {}), len(self._plan.first.owned.get(source, ()))
        share = 1 + len(self._plan.chunks) // len(self._plan.reducers)
        if number in early or owns or len(early) < 2 * owned + share:
            early[number] = name, encoded

    def held_back(self) -> list[tuple[int, int, bytes]]:
        """What came early under the present name: from whom, which chunk, and its values. The rest is dropped."""
        early, self._early = self._early, {}
        return [
            (source, number, encoded)
            for source, kept in early.items()
            for number, (name, encoded) in kept.items()
            if name == self.name
        ]

    @property
    def missing(self) -> list[int]:
        return sorted(self._missing)

    @property
    def complete(self) -> bool:
        return not self._missing

    @property
    def digest(self) -> str:
        """Of the whole of it, in hexadecimal; see `digest_of`."""
        self._digest = self._digest or digest_of(self.messages)
        return self._digest

    def load(self, messages: Sequence[bytes]) -> None:
        """Take a whole average that this peer holds already; raises ValueError."""
        self.begin(bytes.fromhex(digest_of(messages)))
        self.drop()
        for number, encoded in enumerate(messages):
            self.take(-1, number, encoded)

    def place(self, number: int) -> Tensor | None:
        """Where the values of a chunk go."""
        begin, end = self._plan.chunks[number]
        return None if self._values is None else self._values[begin:end]


def digest_of(messages: Sequence[bytes]) -> str:
    """The digest of an average: of its encoded chunks with their lengths, in hexadecimal."""
    whole = hashlib.sha256()
    for message in messages:
        whole.update(len(message).to_bytes(8, "big"))
        whole.update(message)
    return whole.hexdigest()
