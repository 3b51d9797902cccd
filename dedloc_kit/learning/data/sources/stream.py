"""Documents without end: sources are mixed by weight, shuffled, and read ahead of their use."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from sys import getsizeof
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import numpy as np

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.formats import BadRow, Unusable, not_text
from dedloc_kit.learning.data.sources.losses import HOPELESS, Losses
from dedloc_kit.learning.data.sources.shards import (
    Shard,
    Warn,
    count_rows,
    find_shards,
    is_transient,
    one_line,
    read_shard,
)
from dedloc_kit.run.seeds import seed_of
from dedloc_kit.run.task import Source

Item = TypeVar("Item")
Reader = Callable[[Source, Shard, Warn], Iterator[Any]]
"""What a shard of a source holds and the task can use, and each bad row; raises Unusable if it is of no use.

It reads only the rows that the shard names.
"""

MAX_HELD = 2**30
"""Bytes of the texts or pictures among which is shuffled; without this bound, 10,000 of the longest rows."""
_FIRST_BUFFER = 64


def documents(sources: Sequence[Source], *, seed: int, shuffle_buffer: int, warn: Warn) -> Iterator[str]:
    """Texts of a weighted mixture of sources, endless, in an order that depends on `seed` alone.

    Every pass over a source takes its shards in a new order, and each Parquet file from a new row on, round to the row
    before it: a session that ends soon has not read the heads of files alone. `shuffle_buffer` texts are held in memory
    and the next one is drawn from them at random. Blank texts are left out. A bad row (not UTF-8, no text, a line cut
    in two) costs that row, and a shard that cannot be read what follows the place; `warn` is told what is lost as a
    `Loss`.
    Raises UserError, at once or while reading, if a source is missing or nothing of it can be used.
    """
    return mixture(sources, texts, seed=seed, shuffle_buffer=shuffle_buffer, warn=warn)


def in_order(source: Source, read: Reader, *, warn: Warn) -> Iterator[Any]:
    """What a source holds, once, in the order of its files: the same on every machine. Bad rows are told and left out.

    Raises UserError if a shard cannot be read, for what is measured or made of the rest would not compare.
    """
    shards = find_shards(source, warn)
    losses = Losses(source.dataset, len(shards), warn)
    for shard in shards:
        try:
            yield from losses.usable(shard, read(source, shard, warn))
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"{shard.path} cannot be read (column '{source.column}', {one_line(error)}); replace the file"
            ) from error


def mixture(
    sources: Sequence[Source],
    read: Reader,
    *,
    seed: int,
    shuffle_buffer: int,
    warn: Warn,
) -> Iterator[Any]:
    """What `documents` is for anything that a shard may hold: `read` yields what is usable."""
    # Shards are looked up here, not at the first item, so that a wrong source is known before training starts.
    streams = [
        _passes(source, find_shards(source, warn), read, seed_of(seed, "source", number), warn)
        for number, source in enumerate(sources)
    ]
    generator = np.random.default_rng(seed_of(seed, "mixture"))
    mixed = _mixed(streams, [source.weight for source in sources], generator)
    return _shuffled(mixed, shuffle_buffer, np.random.default_rng(seed_of(seed, "shuffle")))


def texts(source: Source, shard: Shard, warn: Warn) -> Iterator[str | BadRow]:
    """The texts of a shard that are not blank; what is no text is a bad row."""
    if source.tokenized:
        raise UserError(f"{source.dataset} holds token ids; name the texts that they were made of")
    for number, value in enumerate(read_shard(shard, source.column, warn), start=shard.first + 1):
        if isinstance(value, BadRow) or (isinstance(value, str) and value.strip()):
            yield value
        elif value is not None and not isinstance(value, str):
            yield BadRow(number, not_text(value, source.column))


def _passes(source: Source, shards: tuple[Shard, ...], read: Reader, seed: int, warn: Warn) -> Iterator[Any]:
    """What a source holds, pass after pass, each in a new order of the shards and from a new row of each."""
    losses = Losses(source.dataset, len(shards), warn)
    found = number = 0
    while True:
        before = found
        generator = np.random.default_rng(seed_of(seed, "pass", number))
        order, begins = generator.permutation(len(shards)), generator.random(len(shards)).tolist()
        for index in order:
            shard, rows = shards[index], 0
            try:
                for value in losses.usable(shard, _rotated(source, shard, begins[index], read, warn)):
                    rows += 1
                    found += 1
                    yield value
            except UserError as error:
                if not isinstance(error, Unusable):
                    raise
                losses.lose(shard, error, rows, source.column)
            except Exception as error:  # whatever a broken file makes its decoder raise
                losses.lose(shard, error, rows, source.column)
            if not found and len(losses.unreadable) >= HOPELESS:
                break
        if found == before:
            if losses.unreadable:
                raise UserError(f"no file of the dataset {source.dataset} can be read: {losses.reason}")
            raise UserError(
                f"the column '{source.column}' of {source.dataset} is empty; set the source's column to another one"
            )
        number += 1


def _rotated(source: Source, shard: Shard, where: float, read: Reader, warn: Warn) -> Iterator[Any]:
    """A shard from the row on that lies so far into it, from 0 to 1, and then what comes before; one that cannot be
    entered in the middle from its first row on. If what follows that row breaks off, what comes before is still read.
    """
    if not shard.seekable:
        yield from read(source, shard, warn)
        return
    rows = count_rows(shard, warn)
    begin, broken = int(where * rows), None
    try:
        yield from read(source, replace(shard, rows=range(begin, rows)), warn)
    except Exception as error:  # whatever a broken file makes its decoder raise
        if (isinstance(error, UserError) and not isinstance(error, Unusable)) or is_transient(error):
            raise
        broken = error
    if begin:
        yield from read(source, replace(shard, rows=range(begin)), warn)
    if broken:
        raise broken


def _mixed(
    streams: Sequence[Iterator[Item]], weights: Sequence[float], generator: np.random.Generator
) -> Iterator[Item]:
    shares = np.array(weights) / sum(weights)
    while True:
        for number in generator.choice(len(streams), size=1024, p=shares):
            yield next(streams[number])


def _shuffled(items: Iterator[Item], size: int, generator: np.random.Generator) -> Iterator[Item]:
    """Draw at random from a buffer that grows to `size` while it is used: nobody waits until it is full.

    It holds `MAX_HELD` bytes of texts or pictures and one more.
    """
    buffer: list[Item] = []
    held = 0

    def take() -> int:
        buffer.append(next(items))
        return _bytes_of(buffer[-1])

    while len(buffer) < min(size, _FIRST_BUFFER) and held <= MAX_HELD:
        held += take()
    while True:
        slot = int(generator.integers(len(buffer)))
        item = buffer[slot]
        held -= _bytes_of(item)
        yield item
        if held > MAX_HELD:
            buffer[slot] = buffer[-1]
            buffer.pop()
            continue
        held += take()
        buffer[slot] = buffer.pop()
        if len(buffer) < size and held <= MAX_HELD:
            held += take()


def _bytes_of(item: Any) -> int:
    """Of a text, or of a picture as a file; others are small."""
    return getsizeof(getattr(item, "data", item))


class Prefetch(Generic[Item]):
    """Runs an iterator in a background thread, at most `size` items ahead of their use.

    What the iterator raises is raised by `next` once the items before it are used up. `close`, or leaving the `with`
    block, ends the thread as soon as the iterator is done with the item in hand.
    """

    def __init__(self, items: Iterator[Item], size: int) -> None:
        self._items = items
        self._size = size
        self._ready: deque[Item] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._exhausted = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._fill, name="prefetch", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._exhausted or self._closed)
            if self._closed:
                raise StopIteration
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
        if self._error is not None:
            raise self._error
        raise StopIteration

    def close(self, timeout: float = 5.0) -> None:
        """Stop reading ahead and wait for the thread, at most `timeout` seconds if it is stuck in a read."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join(timeout)

    def _fill(self) -> None:
        try:
            for item in self._items:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or len(self._ready) < self._size)
                    if self._closed:
                        return
                    self._ready.append(item)
                    self._changed.notify_all()
        except BaseException as error:  # it belongs to whoever waits for the next item
            self._error = error
        finally:
            if isinstance(self._items, Generator):
                self._items.close()  # here, in its own thread: open files are let go now, not when Python exits
            with self._changed:
                self._exhausted = True
                self._changed.notify_all()
