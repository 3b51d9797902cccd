"""A peer's batches: a pure function of run, peer and position, so any of them is made again from its name.

A block's samples have a fixed order, whatever size of microbatch suits a device: they are made in batches of one size,
of which a microbatch is a part.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, lru_cache
from typing import Any

import torch

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.batch_process import LoaderDied
from dedloc_kit.learning.data.prefetching import Loader
from dedloc_kit.learning.data.sampler import DECAY, Origin, Position
from dedloc_kit.learning.data.sources.blocks import Block, Blocks
from dedloc_kit.learning.data.sources.data_issues import HOPELESS
from dedloc_kit.learning.data.sources.stream import Prefetch
from dedloc_kit.learning.task import Batch, Task, create_task
from dedloc_kit.learning.train.computing.card import samples_in
from dedloc_kit.learning.train.computing.microbatch import MAX_SAMPLES, pieces

ORIGIN = "origin"
"""In a batch: where each sample comes from, int64 [samples, 3]. So it stays with them however they are divided."""
TRAIN_START, DECAY_START = Position(0), Position(DECAY)
"""Where the data begins, and where that of `data.cooldown` does."""
WIDE_STRETCH = 2**23
"""Bytes of a stretch where all microbatches have the same size: of a block a part of one is given up at its end, so it
has to hold many. Such tasks learn from pictures."""
_NONE = -1
_log = logging.getLogger(__name__)

Warn = Callable[[str], None]


def run_on(run: RunConfig, sources: tuple[Source, ...], **data: Any) -> RunConfig:
    """The run with other training data.

    :param data: further keys of `run.data` that change
    """
    changed = run.data.model_copy(update={"train": sources, **data})
    return run.model_copy(update={"data": changed})


def seed_for(run: RunConfig, peer: str) -> int:
    """Of a peer's data, in all its sessions."""
    return seed_of(run.run_id, peer)


def origin_of(batch: Batch) -> Origin:
    """The name of a batch of `Batches`, or of a part of one."""
    block, missing, position = batch[ORIGIN][0].tolist()
    return Origin(block, None if missing == _NONE else missing, position, samples_in(batch))


def after(batch: Batch) -> Position:
    """Where its peer goes on after a batch."""
    origin = origin_of(batch)
    return Position(origin.block, origin.position + origin.samples)


class Batches:
    """The batches of a run's data in the order of a seed (`seed_for`): those of `data.train`, and from `DECAY_START` on
    those of `data.cooldown`.

    Each holds `ORIGIN`, but where a task makes its samples without data. For one thread at a time.

    :param warn: is told what of the data cannot be read, some of it as a `Loss`
    :param module: as for `create_task`
    """

    def __init__(self, run: RunConfig, task: Task, seed: int, warn: Warn, module: str | None = None) -> None:
        self._run, self._warn = run, warn
        self.seed = seed
        self._task = cache(lambda decay: create_task(run_on(run, run.data.cooldown), module) if decay else task)
        # Who asks for a microbatch often asks for its neighbour.
        self._again = lru_cache(maxsize=1)(self._read_again)
        self._blocks = cache(self._open)
        self._open_block: tuple[Block | None, Iterator[Batch], int, Batch] = None, iter(()), -1, {}
        self._size = run.microbatch or MAX_SAMPLES
        self._exact = run.microbatch is not None

    @property
    def has_decay(self) -> bool:
        """Whether the run names `data.cooldown`."""
        return bool(self._run.data.cooldown)

    def batches(self, microbatch: int, position: Position = TRAIN_START) -> Iterator[Batch]:
        """Batches without end, from a position on, at most `microbatch` samples in each.

        Raises UserError, at once or while reading, if the data is not there, or if very many blocks in a row make no
        sample.
        """
        decay = position.block >= DECAY
        task = self._task(decay)
        own = task.batches(microbatch, seed_of(self.seed, "decay") if decay else self.seed, self._warn)
        if own is not None:
            return own
        return self._from(self._open(decay), decay, microbatch, position)

    def _from(self, blocks: Blocks, decay: bool, microbatch: int, position: Position) -> Iterator[Batch]:
        barren, first = 0, DECAY if decay else 0
        with Prefetch(blocks.from_block(position.block - first), 1) as found:
            for block in found:
                barren += 1
                skipped = position.sample if block.number + first == position.block else 0
                for batch in self._made(block, decay):
                    barren, count = 0, samples_in(batch)
                    if skipped < count:
                        rest = {name: values[skipped:] for name, values in batch.items()} if skipped else batch
                        yield from pieces(rest, microbatch)
                    skipped = max(0, skipped - count)
                if barren >= HOPELESS:
                    why = blocks.example or "their documents are too short"
                    raise UserError(
                        f"{barren} parts of the data in a row make not a single sample ({why}); choose data that the "
                        "task can use"
                    )

    def derive(self, origin: Origin) -> Batch:
        """The microbatch of that name, bit for bit, without what came before its block.

        Raises ValueError if there is none, and Unread if its block cannot be read here.
        """
        number, begin = divmod(origin.position, self._size)
        decay = origin.block >= DECAY
        if decay and not self._run.data.cooldown:
            raise ValueError("the run has no data for its end")
        if begin + origin.samples <= self._size:  # else no device can have got it, and nothing has to be read for it
            batch = self._batch(self._again(origin.block, origin.missing), decay, number)
            part = {name: values[begin : begin + origin.samples] for name, values in batch.items()}
            if part and samples_in(part) == origin.samples:
                return part
        raise ValueError(f"the data holds no microbatch {origin}")

    def _read_again(self, number: int, missing: int | None) -> Block:
        decay = number >= DECAY
        return self._blocks(decay).again(number - DECAY if decay else number, missing)

    def _batch(self, block: Block, decay: bool, number: int) -> Batch:
        """The batch of this number of a block, or nothing. What comes after the one that was asked for last is read on
        from there."""
        open_block, rest, before, batch = self._open_block
        if open_block is not block or number < before:
            rest, before, batch = self._made(block, decay), -1, {}
        for _ in range(number - before):
            if not (batch := next(rest, {})):
                break
        self._open_block = block, rest, number, batch
        return batch

    def _open(self, decay: bool) -> Blocks:
        task, data = self._task(decay), self._run.data
        return Blocks(
            data.cooldown if decay else data.train,
            task.read,
            seed=seed_of(self.seed, "decay") if decay else self.seed,
            warn=self._warn,
            checked=self._run.trust.checks == "on",
            **({"stretch": WIDE_STRETCH} if self._exact else {}),
        )

    def _made(self, block: Block, decay: bool) -> Iterator[Batch]:
        position, task = 0, self._task(decay)
        for batch in task.batches_of(block.items, self._size, block.seed):
            samples = samples_in(batch)
            if samples < self._size and self._exact:  # of a loss that looks at several samples together
                return
            origins = torch.empty(samples, 3, dtype=torch.int64)
            origins[:, 0] = block.number + (DECAY if decay else 0)
            origins[:, 1] = _NONE if block.missing is None else block.missing
            origins[:, 2] = torch.arange(position, position + samples)
            position += samples
            yield {**batch, ORIGIN: origins}


def batches_of(run: RunConfig, task: Task, microbatch: int, seed: int, warn: Warn) -> Iterator[Batch]:
    """A task's batches from the beginning of an order that a seed decides, without end."""
    return Batches(run, task, seed, warn).batches(microbatch)


def loader_of(run: RunConfig, task: Task, warn: Warn, ahead: int) -> Loader:
    """Makes the batches of `data.train` once it is started with the size of a microbatch, a seed and a position."""

    def make(told: Warn, microbatch: int, seed: int, block: int, sample: int) -> Iterator[Batch]:
        return Batches(run, task, seed, told).batches(microbatch, Position(block, sample))

    return Loader(make, warn, ahead)


class Feed:
    """What a volunteer trains on: its data from where it stopped, and while the learning rate falls that of
    `data.cooldown`, if that names anything.

    :param loader: a `loader_of` this run, which makes the batches of `data.train`; none, or once its process has died:
        a thread does
    """

    def __init__(
        self,
        batches: Batches,
        train: Position = TRAIN_START,
        decay: Position = DECAY_START,
        loader: Loader | None = None,
    ) -> None:
        self._batches, self._loader = batches, loader
        self.train, self.decay = train, decay
        """Where it goes on: after the batches that were taken."""

    @contextmanager
    def batches(self, microbatch: int, falls: Callable[[], bool], ahead: int) -> Iterator[Iterator[Batch]]:
        """As `Batches.batches`, at most `ahead` of them read in the background until the block is left.

        :param falls: does the learning rate fall now? It is asked when a batch is taken: what was read ahead of the
            other mixture is then not in its way, and waits
        """
        with ExitStack() as stack:

            def read_train() -> Iterator[Batch]:
                return stack.enter_context(Prefetch(self._batches.batches(microbatch, self.train), ahead))

            def read_loader(loader: Loader) -> Iterator[Batch]:
                try:
                    yield from loader
                    return
                except LoaderDied as error:
                    _log.warning("%s; this process makes them now", error)
                yield from read_train()

            if self._loader is None:
                train = read_train()
            else:
                started = self._loader.start(microbatch, self._batches.seed, *self.train)
                train = read_loader(stack.enter_context(started))

            def read_decay() -> Iterator[Batch]:
                yield from self._batches.batches(microbatch, self.decay)

            @cache
            def decay() -> Iterator[Batch]:
                return stack.enter_context(Prefetch(read_decay(), ahead))

            yield iter(lambda: self._taken(next(decay() if self._batches.has_decay and falls() else train)), None)

    def _taken(self, batch: Batch) -> Batch:
        if ORIGIN in batch:
            position = after(batch)
            if position.block >= DECAY:
                self.decay = position
            else:
                self.train = position
        return batch
