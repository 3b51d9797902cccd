"""A task's batches in blocks of data: any microbatch can be named, and made again from its name.

A block's samples have a fixed order, whatever size of microbatch suits a device: they are made in batches of one size,
of which a microbatch is a part.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.blocks import PLACES, Block, Blocks
from dedloc_kit.learning.data.sources.losses import HOPELESS
from dedloc_kit.learning.data.sources.stream import Prefetch
from dedloc_kit.learning.task import Batch, Task
from dedloc_kit.learning.train.computing.card import samples_in
from dedloc_kit.learning.train.computing.microbatch import MAX_SAMPLES, pieces
from dedloc_kit.run.config import RunConfig

ORIGIN = "origin"
"""In a batch: where each sample comes from, int64 [samples, 3]. So it stays with them however they are divided."""
DECAY = 2**32
"""Blocks from this number on are of `data.decay`. Nobody reads so many of either mixture."""
_NONE = -1
_MAX_POSITION = 2**32


@dataclass(frozen=True)
class Origin:
    """The name of a microbatch among those of a seed; raises ValueError for one that cannot be."""

    block: int
    """Its number, from 0 or from `DECAY` on."""
    missing: int | None
    """The place of the block that could not be read, for all microbatches of a block the same."""
    position: int
    """Of its first sample among the block's, from 0 on."""
    samples: int

    def __post_init__(self) -> None:
        missing_fits = self.missing is None or 0 <= self.missing < PLACES
        in_range = 0 <= self.block < 2 * DECAY and 0 <= self.position < _MAX_POSITION
        if not in_range or not missing_fits or self.samples < 1:
            raise ValueError(f"no microbatch: {self}")


def origin_of(batch: Batch) -> Origin:
    """The name of a batch of `InBlocks`, or of a part of one."""
    block, missing, position = batch[ORIGIN][0].tolist()
    return Origin(block, None if missing == _NONE else missing, position, samples_in(batch))


class InBlocks:
    """The batches of a run's training data that follow from a seed.

    :param warn: is told what of the data cannot be read
    """

    def __init__(self, run: RunConfig, task: Task, seed: int, warn: Callable[[str], None]) -> None:
        self._task = task
        self._blocks = Blocks(run.data.train, task.read, seed=seed, warn=warn)
        self._again = lru_cache(maxsize=1)(self._blocks.again)  # who asks for a microbatch often asks for its neighbour
        self._open: tuple[Block | None, Iterator[Batch], int, Batch] = None, iter(()), -1, {}
        self._size = run.microbatch or MAX_SAMPLES
        self._exact = run.microbatch is not None

    def batches(self, microbatch: int, first: int = 0) -> Iterator[Batch]:
        """As `Task.batches`, with `ORIGIN`, from the block `first` on; at most `microbatch` samples in each.

        Raises UserError if very many blocks in a row make no sample.
        """
        barren = 0
        with Prefetch(self._blocks.from_block(first), 1) as blocks:
            for block in blocks:
                barren += 1
                for batch in self._batches(block):
                    barren = 0
                    yield from pieces(batch, microbatch)
                if barren >= HOPELESS:
                    raise UserError(
                        f"{barren} parts of the data in a row make not a single sample; choose data that the task can "
                        "use, with longer documents"
                    )

    def derive(self, origin: Origin) -> Batch:
        """The microbatch of that name, bit for bit, without what came before its block.

        Raises ValueError if there is none, and Unread if its block cannot be read here.
        """
        number, begin = divmod(origin.position, self._size)
        if begin + origin.samples <= self._size:  # else no device can have got it, and nothing has to be read for it
            batch = self._batch(self._again(origin.block, origin.missing), number)
            part = {name: values[begin : begin + origin.samples] for name, values in batch.items()}
            if part and samples_in(part) == origin.samples:
                return part
        raise ValueError(f"the data holds no microbatch {origin}")

    def _batch(self, block: Block, number: int) -> Batch:
        """The batch of this number of a block, or nothing. What comes after the one that was asked for last is read on
        from there."""
        open_block, rest, last, batch = self._open
        if open_block is not block or number < last:
            rest, last, batch = self._batches(block), -1, {}
        for _ in range(number - last):
            if not (batch := next(rest, {})):
                break
        self._open = block, rest, number, batch
        return batch

    def _batches(self, block: Block) -> Iterator[Batch]:
        position = 0
        for batch in self._task.batches_of(block.items, self._size, block.seed):
            samples = samples_in(batch)
            if samples < self._size and self._exact:  # of a loss that looks at several samples together
                return
            origins = torch.empty(samples, 3, dtype=torch.int64)
            origins[:, 0], origins[:, 1] = block.number, _NONE if block.missing is None else block.missing
            origins[:, 2] = torch.arange(position, position + samples)
            position += samples
            yield {**batch, ORIGIN: origins}
