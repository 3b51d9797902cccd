"""How many samples go through the model at once: tried out at the start, and fewer where memory runs out later."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.train.computing.card import Batch, Card, samples_in
from dedloc_kit.learning.train.computing.device import free_cached

MAX_SAMPLES = 64
MAX_SECONDS = 1.0
"""A peer joins an average and takes over new parameters only between two microbatches, so they should be short."""
_MEMORY_SHARE = 0.85
"""Of a GPU's memory during a trial; the rest is for accumulated gradients and for batches that need more."""
_NEARLY_BEST, _MUCH_FASTER = 0.95, 1.1
_TRIAL_RUNS = 2
_TRIAL_SECONDS = 0.1
_SLOW_SECONDS = 5.0
"""What takes so long is tried once: it is not only the first run of a GPU, which loads its code."""


def largest_microbatch(run: RunConfig, devices: int = 1) -> int:
    """At most so many samples at once on each device of a host.

    Of a batch that many peers fill they are together an eighth at most, which the peers would otherwise overshoot. A
    local step is the peer's own: any power of two will do that overshoots it by no more than that.
    """
    most = max(1, min(MAX_SAMPLES, run.peer_batch // (8 * devices)))
    if run.averaging.mode != "local-steps":
        return most
    powers = [1 << power for power in range(MAX_SAMPLES.bit_length())]
    return max([most, *(size for size in powers if -run.peer_batch % (size * devices) <= run.peer_batch // 8)])


Clock = Callable[[], float]


def find_microbatch(card: Card, batch: Batch, clock: Clock = time.perf_counter) -> int:
    """The smallest power of two that is about as fast as any that takes a second at most and fits into the memory.

    Tried with the first samples of `batch`, the largest size that is wanted, in a few seconds. Parameters, buffers
    and random states stay as they are, gradients are cleared. Where one sample does not fit, or only few do and more
    would be much faster, blocks are checkpointed; raises UserError if one does not fit even so. It waits for the
    device after each pass: a time without that would be the one of launching.
    """
    with untouched(card), _memory_margin(card.device):
        trial = partial(_rates, card, batch, clock)
        rates, full = trial(1)
        if not rates:
            card.checkpointing.begin()
            rates, _ = trial(1)
            if not rates:
                card.checkpointing.begin()  # says that there is nothing left to do
        elif full and card.checkpointing.possible:
            card.checkpointing.begin()
            more, _ = trial(2 * max(rates))
            if max(more.values(), default=0.0) > _MUCH_FASTER * max(rates.values()):
                rates = more
            else:
                card.checkpointing.end()
    return min(size for size, rate in rates.items() if rate >= _NEARLY_BEST * max(rates.values()))


def _rates(card: Card, batch: Batch, clock: Clock, size: int) -> tuple[dict[int, float], bool]:
    """Samples a second by microbatch, from `size` on, and whether it was the memory that ended the trial."""
    rates: dict[int, float] = {}
    while size <= samples_in(batch):
        seconds = _seconds(card, next(pieces(batch, size)), clock)
        if seconds is None:
            return rates, True
        if rates and seconds > MAX_SECONDS:
            break
        rates[size] = size / seconds
        if 1.5 * seconds > MAX_SECONDS:  # twice as many take longer by more than this
            break
        size *= 2
    return rates, False


class Microbatches:
    """The batches of a stream, in smaller pieces from the moment that one did not fit into the memory."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._waiting: deque[Batch] = deque()
        self._most = 0  # samples at once; 0: as they come

    def __next__(self) -> Batch:
        if not self._waiting:
            batch = next(self._batches)
            self._waiting.extend(pieces(batch, self._most) if self._most else [batch])
        return self._waiting.popleft()

    def put_back(self, batch: Batch, most: int) -> None:
        """This batch, and all that follow, come in pieces of at most `most` samples."""
        self._most = most
        self._waiting = deque(piece for each in (batch, *self._waiting) for piece in pieces(each, most))


def pieces(batch: Batch, size: int) -> Iterator[Batch]:
    """The batch in parts of `size` samples; the last one may be smaller."""
    for start in range(0, samples_in(batch), size):
        yield {name: values[start : start + size] for name, values in batch.items()}


def _seconds(card: Card, batch: Batch, clock: Clock) -> float | None:
    """The shortest time that a forward and backward pass takes; none if the memory does not hold it."""
    taken: list[float] = []
    while (len(taken) < _TRIAL_RUNS or sum(taken) < _TRIAL_SECONDS) and sum(taken) < _SLOW_SECONDS:
        begin = clock()
        if card.measure(batch) is None:
            return None
        taken.append(clock() - begin)
    return min(taken)


@contextmanager
def untouched(card: Card) -> Iterator[None]:
    """Try something: buffers and random states are put back afterwards, and gradients cleared."""
    buffers = [(buffer, buffer.clone()) for buffer in card.model.buffers()]
    with torch.random.fork_rng(devices=[card.device] if card.device.type == "cuda" else []):
        yield
    card.clear()
    for buffer, before in buffers:
        buffer.copy_(before)


@contextmanager
def _memory_margin(device: torch.device) -> Iterator[None]:
    """Memory runs out a little early."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_per_process_memory_fraction(_MEMORY_SHARE, device)
    try:
        yield
    finally:
        free_cached(device)
        torch.cuda.set_per_process_memory_fraction(1.0, device)
