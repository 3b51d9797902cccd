"""Cards that compute nothing and take their time, by a clock of their own, for machines without a GPU and under load.

What the loop's thread computes counts as it is (its own processor time); what it would wait for a card is added, and
nobody really waits. So what else the machine does hardly matters. Several cards, of different speed, are looked at in
one pass, since what a loop does hangs on none of their times.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dedloc_kit.learning.train.copies import Copies, Readout

PINNED = 25e9
"""Bytes a second between pinned memory and a card (PCIe 4.0 x16 to 5.0 x16 reach 25 to 55)."""
CALL = 20e-6
"""Seconds that the loop's thread takes to start a copy on another stream: the calls that no processor makes."""
FORWARD, BACKWARD, OUTPUT = 0.28, 0.56, 0.16
"""Shares of a microbatch's time: all blocks of the model, and the output layer with its loss, which is one piece."""
_READS = frozenset(
    f"aten::{name}"
    for name in (
        "_local_scalar_dense",
        "is_nonzero",
        "equal",
        "nonzero",
        "masked_select",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "repeat_interleave",
        "_linalg_check_errors",
    )
)
"""Operations for whose result, or its shape, a GPU is waited for."""
_INDEXED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


@dataclass
class _Card:
    """One of them, in seconds of its clock."""

    microbatch: float
    added: float = 0.0
    """What the loop has waited for it."""
    free_at: float = 0.0
    """When all kernels that it has got are done."""
    in_at: float = 0.0
    out_at: float = 0.0
    """The same for copies to it and from it."""


Marks = list[float]
"""A moment of each card."""


class NullCards:
    """Some cards, all fed by one loop.

    :param microbatch: seconds of a microbatch on each
    :param clock: of the loop's thread
    """

    def __init__(self, microbatch: Sequence[float], clock: Callable[[], float] = time.thread_time) -> None:
        self._cards = [_Card(seconds) for seconds in microbatch]
        self._clock = clock
        self.waits = 0
        self.shares = 0.0
        """Of microbatches, that were put into the line."""
        self._size = 1.0
        self._launches = self._calls = 0
        self._looked_up: Counter[int] = Counter()
        self.launching = False
        """Whether a microbatch is; otherwise what is computed is computed for the processor."""

    def now(self) -> Marks:
        clock = self._clock()
        return [clock + card.added for card in self._cards]

    def works(self, seconds: float) -> None:
        """The loop's thread is busy for so long with what it does not do here."""
        for card in self._cards:
            card.added += seconds

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """What is done meanwhile would be done by another thread, or by nobody."""
        before, waits, began = [card.added for card in self._cards], self.waits, self._clock()
        yield
        spent, self.waits = self._clock() - began, waits
        for card, added in zip(self._cards, before, strict=True):
            card.added = added - spent

    def begin_microbatch(self, size: float = 1.0) -> None:
        """How many blocks it launches is known from the one before; the first one launches nothing.

        :param size: the part of a whole one that it is
        """
        self._size = size
        self._calls, self._launches, self.launching = self._launches // 2, 0, True

    def end_microbatch(self) -> None:
        """All of it is launched; what is looked up until the next one begins is looked up on the processor."""
        self.launching = False

    def launch(self, share: float) -> None:
        """Part of a microbatch, of which all blocks have `share` together."""
        self._launches += 1
        if self._calls:
            self._put(share / self._calls)
        for _ in range(self._looked_up[self._launches]):
            self.wait()

    def put_output(self) -> None:
        self._put(OUTPUT)

    def _put(self, share: float) -> None:
        share *= self._size
        self.shares += share
        for card, now in zip(self._cards, self.now(), strict=True):
            card.free_at = max(card.free_at, now) + share * card.microbatch

    def look_up(self) -> None:
        """If a microbatch is launched now, let all later ones wait here."""
        if self.launching:
            self._looked_up[max(1, self._launches)] += 1

    def wait(self, until: Marks | None = None) -> None:
        """For kernels, by default all."""
        self.waits += 1
        for number, (card, now) in enumerate(zip(self._cards, self.now(), strict=True)):
            card.added += max(0.0, (card.free_at if until is None else until[number]) - now)

    def mark(self) -> Marks:
        """When each card is done with all that it has got."""
        return [card.free_at for card in self._cards]

    def copy_in(self, size: float) -> None:
        """Beside the kernels; those that are launched from now on wait for it."""
        self.works(CALL)
        for card, now in zip(self._cards, self.now(), strict=True):
            card.in_at = max(card.in_at, now) + size / PINNED
            card.free_at = max(card.free_at, card.in_at)

    def copy_out(self, size: float, after: Marks) -> Marks:
        """Beside the kernels; returns when it is done."""
        self.works(CALL)
        for card, now, mark in zip(self._cards, self.now(), after, strict=True):
            card.out_at = max(card.out_at, mark, now) + size / PINNED
        return [card.out_at for card in self._cards]


class _NullReadout(Readout):
    def __init__(self, values: Tensor, cards: NullCards) -> None:
        super().__init__(values)
        self._cards, self._mark = cards, cards.mark()

    def read(self) -> list[float]:
        self._cards.wait(self._mark)
        return super().read()


class PinnedMemory:
    """Stands for pinned memory, which torch keeps and uses again: new pages would cost several times a copy."""

    _IN_FLIGHT = 3

    def __init__(self) -> None:
        self._rings: dict[Any, deque[Tensor]] = {}
        self._held = set[int]()

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy there, valid until a few later ones of this shape; of what is there already the same."""
        if tensor.data_ptr() in self._held:
            return tensor
        ring = self._rings.setdefault((tensor.shape, tensor.stride(), tensor.dtype), deque())
        if len(ring) < self._IN_FLIGHT:
            ring.append(torch.empty_like(tensor))
            self._held.add(ring[-1].data_ptr())
        ring.rotate(1)
        return ring[0].copy_(tensor)


class NullCopies(Copies):
    """Copies between the processor and such cards; their memory is the processor's.

    :param scale: how many times larger than here the vectors of all parameters are in the model that is stood for
    :param host: bytes a second that the loop's thread copies within the processor's memory
    """

    def __init__(self, cards: NullCards, scale: float, host: float) -> None:
        super().__init__(torch.device("cpu"))
        self.here = False
        self.memory = PinnedMemory()
        self._cards, self._scale, self._host = cards, scale, host
        self._pinned: Tensor | None = None

    def to_device(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        copied = []
        for tensor in tensors:
            if tensor is self._pinned:  # all parameters, which have been copied to pinned memory first
                self._cards.works((self._scale - 1) * tensor.nbytes / self._host)
                self._cards.copy_in(self._scale * tensor.nbytes)
                copied.append(tensor)
            else:
                self._cards.copy_in(tensor.nbytes)
                copied.append(self.memory.copy(tensor))
        return copied

    def mark(self) -> Any:
        return self._cards.mark()

    def to_host(self, values: Tensor, mark: Any) -> Tensor:
        self._cards.wait(self._cards.copy_out(self._scale * values.nbytes, mark))
        return values.clone()

    def readout(self, values: Tensor) -> Readout:
        self._cards.end_microbatch()
        self._cards.works(CALL)
        return _NullReadout(values, self._cards)

    def pinned(self, size: int) -> Tensor:
        self._pinned = made = super().pinned(size)
        return made


def host_rate() -> float:
    """Bytes a second that one thread copies within this machine's memory."""
    one, other = torch.zeros(2**23), torch.ones(2**23)
    taken = []
    for _ in range(5):
        began = time.thread_time()
        other.copy_(one)
        taken.append(time.thread_time() - began)
    return one.nbytes / min(taken)


def drive(cards: NullCards, model: nn.Module) -> None:
    """Let what a model repeats (the members of its module lists) put its part of the card's time into the line."""

    def before(module: nn.Module, given: Any) -> None:
        cards.launch(FORWARD)

    def after(module: nn.Module, given: Any, made: Any) -> None:
        output = made if isinstance(made, Tensor) else made[0]
        output.register_hook(lambda gradient: cards.launch(BACKWARD))

    for block in blocks_of(model):
        block.register_forward_pre_hook(before)
        block.register_forward_hook(after)


def blocks_of(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from blocks_of(child)


class Waits(TorchDispatchMode):
    """Finds where a model waits for a card, for the microbatches that come later."""

    def __init__(self, cards: NullCards) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cards = cards
        self.operations = 0
        """Of torch, a few of which start no kernel."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        self.operations += self._cards.launching
        if name in _READS or (name in _INDEXED and _by_bools(args[1])):
            self._cards.look_up()
        return func(*args, **(kwargs or {}))


def _by_bools(indices: Sequence[Tensor | None]) -> bool:
    return any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in indices)
