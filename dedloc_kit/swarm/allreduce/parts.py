"""What travels in a round, kept as it came: parts and sums at reducers, and the average at everyone."""

import hashlib
import time
from collections.abc import Callable, Collection, Sequence
from math import inf

import torch
from hivemind.proto import runtime_pb2
from torch import Tensor

from dedloc_kit.learning.train.flat import CHUNK
from dedloc_kit.swarm.allreduce.encoding.codec import check, decode, read_part
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding
from dedloc_kit.swarm.allreduce.flow import ChunkFlow
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.allreduce.reduction.keeping import Keep, Kept, in_memory

_HEADER_BYTES = 64
"""That an encoded chunk may have besides its values."""


class Parts:
    """What members sent of the chunks that this peer reduces: until it is agreed who counts, nothing is added up."""

    def __init__(self, plan: Plan, coding: Coding, flow: ChunkFlow, keep: Keep = in_memory) -> None:
        self._plan, self._coding, self._keep, self._flow = plan, coding, keep, flow
        self._kept: dict[int, dict[int, Kept]] = {}
        self._values = torch.empty(CHUNK)

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
        if self._flow.expects(member, number) or self._early(member) <= self._plan.inherited(self._flow.me):
            kept[number] = self._keep(encoded)
            self._flow.part_came(member, number)

    def _early(self, member: int) -> int:
        """How many parts are here that this peer does not reduce as far as it knows."""
        return sum(not self._flow.expects(member, number) for number in self._kept[member])

    def has(self, member: int, number: int) -> bool:
        return number in self._kept.get(member, {})

    def forget(self, member: int) -> None:
        self._kept.pop(member, None)
        self._flow.forget(member)

    def of(self, member: int, number: int) -> Tensor:
        """A member's values, float32 [numel], until the next call."""
        begin, end = self._plan.chunks[number]
        return decode(read_part(self._kept[member][number]()), end - begin, self._values[: end - begin])


class Average:
    """The average of one set of contributions, chunk by chunk, as everyone gets it.

    :ivar messages: encoded, in the order of the vector; empty where it is missing
    """

    def __init__(self, plan: Plan, coding: Coding, values: Tensor | None) -> None:
        """:param values: float32 [size], takes the average; None if this peer has no use for it"""
        self._plan, self._values = plan, values
        self._most = [
            coding.of_averages(begin, plan.layout).byte_count(end - begin) + _HEADER_BYTES for begin, end in plan.chunks
        ]
        self.name = b""
        """Of what is averaged, or the digest of what is fetched."""
        self.messages: list[bytes] = [b""] * len(plan.chunks)
        self._sources: list[int] = [-1] * len(plan.chunks)
        self._missing = set(range(len(plan.chunks)))
        self._early: dict[int, dict[int, tuple[bytes, bytes]]] = {}
        self._digest = ""
        self.stirred = time.monotonic()

    def begin(self, name: bytes, stays: Collection[int] | None = None) -> None:
        """Collect the average with this name.

        :param stays: chunks of it that are worth something, if not all that have come are
        """
        if name != self.name:
            self.drop()
        self.name, self._digest = name, ""
        lost = range(len(self.messages)) if stays is not None else ()
        for number in lost:
            if stays is not None and number not in stays:
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
        if number in early or owns or len(early) < 2 * owned + 1 + self._plan.inherited(source):
            early[number] = name, encoded

    def held_back(self, wanted: Callable[[int, bytes], bool]) -> list[tuple[int, int, bytes, bytes]]:
        """Take out what came early: from whom, which chunk, its name, and its values. The rest waits.

        :param wanted: whether a chunk of this name is
        """
        found = [
            (source, number, name, encoded)
            for source, kept in self._early.items()
            for number, (name, encoded) in kept.items()
            if wanted(number, name)
        ]
        for source, number, _, _ in found:
            del self._early[source][number]
        return found

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


class Sums:
    """What owners in other rows have added up, at their chunks' finisher."""

    def __init__(self, plan: Plan, coding: Coding, flow: ChunkFlow) -> None:
        self._plan, self._coding, self._flow = plan, coding, flow
        self._kept: dict[int, dict[int, tuple[bytes, bytes]]] = {}
        self._values = torch.empty(CHUNK if len(plan.teams) > 1 else 0)

    def take(self, source: int, number: int, name: bytes, encoded: bytes) -> None:
        """Keep a sum. Raises ValueError unless it can be one and is readable.

        It may come before this peer knows who counts, or who has died: the last of each number is kept, and beyond what
        its source reduces as far as this peer knows as many as of averages.
        """
        plan, row = self._plan, self._plan.rows[source]
        if number >= len(plan.chunks) or row == self._flow.row or source not in plan.reducers:
            raise ValueError(f"a sum {number} that nobody is to send here")
        begin, end = plan.chunks[number]
        if len(encoded) > self._coding.of_means(begin, plan.layout).byte_count(end - begin) + _HEADER_BYTES:
            raise ValueError(f"sum {number} takes more bytes than the run's compression needs")
        check(read_part(encoded), end - begin)
        kept, owned = self._kept.setdefault(source, {}), len(plan.first.owned.get(source, ()))
        owners = self._flow.assignment.owners[row]
        owns = bool(owners) and owners[number] == source
        if number in kept or owns or len(kept) < 2 * owned + 1 + plan.inherited(source):
            kept[number] = name, encoded
            self._flow.take_sum(source, name, number)

    def of(self, source: int, number: int) -> Tensor:
        """An owner's sum, float32 [numel], until the next call."""
        begin, end = self._plan.chunks[number]
        return decode(read_part(self._kept[source][number][1]), end - begin, self._values[: end - begin])


def digest_of(messages: Sequence[bytes]) -> str:
    """The digest of an average: of its encoded chunks with their lengths, in hexadecimal."""
    whole = hashlib.sha256()
    for message in messages:
        whole.update(len(message).to_bytes(8, "big"))
        whole.update(message)
    return whole.hexdigest()
