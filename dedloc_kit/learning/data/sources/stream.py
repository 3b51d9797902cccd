"""Documents once in their order, or without end and shuffled; and what is read ahead of its use."""

import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.blocks import Blocks
from dedloc_kit.learning.data.sources.data_issues import Losses
from dedloc_kit.learning.data.sources.formats import BadRow, not_text
from dedloc_kit.learning.data.sources.patience import Warn, one_line
from dedloc_kit.learning.data.sources.reading import read_rows
from dedloc_kit.learning.data.sources.shards import Reader, Shard, find_shards

Item = TypeVar("Item")


def documents(sources: Sequence[Source], *, seed: int, warn: Warn) -> Iterator[str]:
    """Texts of a weighted mixture of sources, endless, as `shuffled`. Blank texts are left out. A bad row (not UTF-8,
    no text, a line cut in two) costs that row."""
    return shuffled(sources, texts, seed=seed, warn=warn)


def shuffled(sources: Sequence[Source], read: Reader, *, seed: int, warn: Warn) -> Iterator[Any]:
    """What a weighted mixture of sources holds, endless, in an order that depends on `seed` and the files alone; for
    what nobody reads again. Errors and losses as of `Blocks`."""
    blocks = Blocks(sources, read, seed=seed, warn=warn, checked=False)  # so that a wrong source is known at once
    return (item for block in blocks.from_block(0) for item in block.items)


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


def texts(source: Source, shard: Shard, warn: Warn) -> Iterator[str | BadRow]:
    """The texts of a shard that are not blank; what is no text is a bad row."""
    return (text for _, text in numbered_texts(source, shard, warn))


def numbered_texts(source: Source, shard: Shard, warn: Warn, first: int = 0) -> Iterator[tuple[int, str | BadRow]]:
    """The same, each with its row's number in the file.

    :param first: as for `read_rows`
    """
    if source.tokenized:
        raise UserError(f"{source.dataset} holds token ids; name the texts that they were made of")
    for number, row in read_rows(shard, (source.column,), warn, first):
        value = row if isinstance(row, BadRow) else row[source.column]
        if isinstance(value, BadRow) or (isinstance(value, str) and value.strip()):
            yield number, value
        elif value is not None and not isinstance(value, str):
            yield number, BadRow(number, not_text(value, source.column))


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
