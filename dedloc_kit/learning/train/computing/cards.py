"""All cards of a host at work for its one peer, each with a replica of the model and microbatches of its own size.

Threads are enough: torch lets others run while it computes or waits for a GPU, and data are read elsewhere. What the
cards have computed is told in one thread, so that nothing else has to know how many there are.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch

from dedloc_kit.errors import UserError
from dedloc_kit.learning.train.computing.card import Batch, Computed, LossFunction, Prepare, Work, samples_in
from dedloc_kit.learning.train.computing.checkpointing import Compile
from dedloc_kit.learning.train.computing.compiling import CompiledCard
from dedloc_kit.learning.train.computing.device import describe_device, half_precision, make_current
from dedloc_kit.learning.train.computing.microbatch import Microbatches, find_microbatch
from dedloc_kit.learning.train.computing.recomputing import Again, Part, Wanted, recompute
from dedloc_kit.learning.train.state.replica import Replica

MOST_TIMES = 8
"""What others have computed at once is too much for a device that takes so many times less: it would take long, and
memory that there may not be."""

_log = logging.getLogger(__name__)


def _unnamed(batch: Batch, step: int) -> bytes:
    return b""


@dataclass(frozen=True)
class Callbacks:
    """What the cards ask of the training loop."""

    refresh: Callable[[int], None]
    """Lets a replica take over the newest parameters."""
    leave_out: Callable[[int], bool]
    """Told of a replica whose device has failed; says whether the others can go on without it."""
    work: Work = _unnamed


class InlineExecutor(Executor):
    """Runs each call at once in the calling thread, for a single card."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class _Worker:
    """One card, its thread and its batches."""

    def __init__(
        self, number: int, replica: Replica, stream: Iterator[Batch], make: Callable[[], CompiledCard], alone: bool
    ) -> None:
        self.number, self._replica = number, replica
        self.name = f"{describe_device(replica.device)} ({replica.device})"
        self._batches = Microbatches(stream)
        self._line: Executor = InlineExecutor() if alone else ThreadPoolExecutor(1, f"device {number}")
        self._line.submit(make_current, replica.device).result()
        self._card = self._line.submit(make).result()
        self._batch: Batch = {}  # what it computes
        self.most = 0
        """Samples at once, as far as it has been seen to take them."""

    def find_size(self) -> Future[int]:
        """Try the size that suits it; it is tried with the next batch, which comes again in pieces of that size."""
        batch = next(self._batches)

        def find() -> int:
            found = find_microbatch(self._card, batch)
            self._batches.put_back(batch, found)
            return found

        return self._line.submit(find)

    def compile(self) -> Future[float]:
        """As `CompiledCard.compile`, with two batches that come again: documents make one of another shape."""
        some = [next(self._batches), next(self._batches)]
        for batch in reversed(some):
            self._batches.put_back(batch, max(map(samples_in, some)))
        return self._line.submit(self._card.compile, some)

    def begin(self) -> "Future[list[Computed] | None]":
        """Submit the next batch; what became of earlier ones, or none if the memory does not hold it."""
        self._batch = batch = next(self._batches)
        self.most = max(self.most, samples_in(batch))
        return self._line.submit(lambda: self._card.results() if self._card.submit(batch) else None)

    def recompute(self, wanted: Wanted) -> Future[Part | None]:
        return self._line.submit(recompute, self._replica, self._card, wanted)

    def make_room(self) -> str:
        """Its memory did not hold a microbatch: that comes again, in a way that needs less. Returns what to tell."""
        samples = samples_in(self._batch)
        self.most = max(1, samples // 2)
        if samples > 1:
            self._batches.put_back(self._batch, samples // 2)
            return f"the memory does not hold {samples} samples at once; going on with {samples // 2}"
        self._card.checkpointing.begin()
        self._batches.put_back(self._batch, 1)
        return "the memory hardly holds one sample; going on in a way that needs less memory and more time"

    def close(self) -> None:
        """Wait for what it computes, and end the thread."""
        self._line.shutdown(cancel_futures=True)
        with suppress(RuntimeError):  # of a device that has failed
            self._card.clear()


class Cards:
    """All cards of a host on one stream of batches; use it in one thread, and `close` it.

    :param losses: one for each replica, for a task may keep something from one microbatch to the next
    :param stream: batches, which come to whichever card is next
    :param in_step: whether all begin and end together, because what they compute must be of the same parameters;
        otherwise each goes on as soon as it can
    :param half: the type to compute with on a device, or none for float32
    :param compile: for `compile`, as `compiling.compiler`
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        losses: Sequence[LossFunction],
        stream: Iterator[Batch],
        caller: Callbacks,
        *,
        in_step: bool,
        prepare: Prepare = dict,
        half: Callable[[torch.device], torch.dtype | None] = half_precision,
        compile: Compile | None = None,
    ) -> None:
        self._caller, self._in_step = caller, in_step

        def card(number: int) -> CompiledCard:
            replica = replicas[number]
            options: Any = {"prepare": prepare, "work": caller.work, "number": number, "compile": compile}
            return CompiledCard(replica, losses[number], half(replica.device), **options)

        self._workers = [
            _Worker(number, replica, stream, partial(card, number), alone=len(replicas) == 1)
            for number, replica in enumerate(replicas)
        ]
        self._working: dict[Future[list[Computed] | None], _Worker] = {}

    def find_sizes(self) -> list[int]:
        """Let batches come in the size that suits each card; those that it is tried with come again.

        Raises UserError if no card's memory holds a single sample.
        """
        trials = [(worker, worker.find_size()) for worker in self._workers]
        found = []
        for worker, trial in trials:
            try:
                found.append(trial.result())
            except (RuntimeError, UserError) as error:
                self._leave_out(worker, error)
        return found

    def compile(self) -> list[float]:
        """Let each card compile its model for batches as they come from now on; how many times as fast each is.

        One after the other: what compiles is not made for several threads.
        """
        found = []
        for worker in tuple(self._workers):
            try:
                found.append(worker.compile().result())
            except RuntimeError as error:
                self._leave_out(worker, error)
        return found

    def compute(self) -> list[Computed]:
        """Give each card that waits a microbatch. Returns what became of those that have been computed, which may be
        none; in step all cards have begun and ended theirs, as far as they are waited for."""
        idle = [worker for worker in self._workers if worker not in self._working.values()]
        for worker in idle:
            self._caller.refresh(worker.number)
        self._working |= {worker.begin(): worker for worker in idle}
        done, _ = wait(self._working, return_when=ALL_COMPLETED if self._in_step else FIRST_COMPLETED)
        computed = [each for future in done for each in self._taken(self._working.pop(future), future)]
        return sorted(computed, key=attrgetter("replica"))

    def recompute(self, wanted: Wanted) -> Part | None:
        """Compute on a card that waits what somebody else has computed, as `recomputing.Again`. Call it when
        all that the cards have computed is taken. None also if no card waits, or none takes so many samples."""
        worker = next((worker for worker in self._workers if worker not in self._working.values()), None)
        if worker is None or samples_in(wanted.batch) > MOST_TIMES * worker.most:
            return None
        return self._recompute_on(worker, wanted)

    def each(self) -> list[tuple[str, Again]]:
        """The name of each device, and how it computes again, also what is larger than it has seen. Call these when no
        card works."""
        return [(worker.name, partial(self._recompute_on, worker)) for worker in self._workers]

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _recompute_on(self, worker: _Worker, wanted: Wanted) -> Part | None:
        try:
            return worker.recompute(wanted).result()
        except RuntimeError as error:
            self._leave_out(worker, error)
            return None

    def _taken(self, worker: _Worker, future: "Future[list[Computed] | None]") -> list[Computed]:
        try:
            computed = future.result()
            if computed is None:
                _log.warning(worker.make_room() + self._where(worker))
        except (RuntimeError, UserError) as error:
            self._leave_out(worker, error)
            return []
        return computed or []

    def _where(self, worker: _Worker) -> str:
        return f" ({worker.name})" if len(self._workers) > 1 else ""

    def _leave_out(self, worker: _Worker, error: Exception) -> None:
        """Go on without a card that has failed; raises what it failed with if the others cannot."""
        if len(self._workers) == 1 or not self._caller.leave_out(worker.number):
            raise error
        self._workers.remove(worker)
        worker.close()
        reason = (str(error) or type(error).__name__).splitlines()[0]
        _log.warning("%s is left out, the others go on: %.200s", worker.name, reason)
