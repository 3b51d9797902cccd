"""A source of texts as token shards: read and tokenized once, in bounded memory, and resumed where it stopped."""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeInt, RootModel, ValidationError

from dedloc_kit.config.seeds import seed_of
from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.data_issues import HOPELESS, Losses
from dedloc_kit.learning.data.sources.formats import BadRow, Unusable
from dedloc_kit.learning.data.sources.patience import Warn, is_transient, one_line
from dedloc_kit.learning.data.sources.shards import Shard, find_shards
from dedloc_kit.learning.data.sources.stream import numbered_texts
from dedloc_kit.learning.data.text.token_shards import FILE_TOKENS, shard_path, write_token_shard
from dedloc_kit.learning.data.text.tokens import Document

_PROGRESS = "progress.json"
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Sizes:
    """What bounds the memory, and how far a document can move from its neighbours."""

    file: int = FILE_TOKENS
    """Tokens in a file, at least."""
    characters: int = 2**24
    texts: int = 2**17
    """What is tokenized and shuffled together: texts that have so many characters, or are so many."""


class Reached(BaseModel):
    """How much of a source is read: everything before a row of a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    identity: str
    """Digest of all that the result depends on."""
    file: NonNegativeInt = 0
    row: NonNegativeInt = 0
    documents: NonNegativeInt = 0
    """That are written."""
    bad_rows: NonNegativeInt = 0
    lost: dict[str, str] = {}
    """Files that could not be read, or not to their end, with the reason."""
    done: bool = False


class Progress(Reached):
    """How much of a source is prepared as token shards."""

    shards: NonNegativeInt = 0
    tokens: NonNegativeInt = 0


Kind = TypeVar("Kind", bound=Reached)


@dataclass(frozen=True)
class Tokenizer:
    """What makes documents of texts."""

    documents: Callable[[Iterable[str]], Iterator[Document]]
    """In the order of the texts; it may read ahead, but not beyond their end."""
    hash: str
    """Of the vocabulary; see `vocabulary_hash`."""
    vocabulary: int
    """Tokens."""


class Workplace(Generic[Kind]):
    """The folder in which shards are written, and the progress of each source in it.

    :param folder: each source has a subfolder of its name
    :param kind: of the progress
    """

    def __init__(self, folder: Path, kind: type[Kind]) -> None:
        self.folder = folder
        self._kind = kind
        self._sources: dict[str, Kind] = {}
        try:
            text = (folder / _PROGRESS).read_text(encoding="utf-8")
            found = RootModel[dict[str, Any]].model_validate_json(text).root
            self._sources = {name: kind.model_validate(each) for name, each in found.items()}
        except (OSError, ValidationError):
            pass

    def progress(self, name: str, identity: str) -> Kind:
        """Of a source; from the beginning if its subfolder is missing or was made of something else."""
        known = self._sources.get(name)
        if known is not None and known.identity == identity and (self.folder / name).is_dir():
            return known
        shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / name).mkdir()
        return self._kind(identity=identity)

    def keep(self, names: Iterable[str]) -> None:
        """Remove what was made of all other sources."""
        for folder in set(self.folder.iterdir()) - {self.folder / name for name in names}:
            if folder.is_dir():
                shutil.rmtree(folder)

    def save(self, name: str, progress: Kind) -> None:
        self._sources[name] = progress
        temporary = self.folder / f"{_PROGRESS}.partial"
        text = RootModel[dict[str, Any]](self._sources).model_dump_json()
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self.folder / _PROGRESS)


@contextmanager
def workplace(folder: Path, kind: type[Kind]) -> Iterator[Workplace[Kind]]:
    """A folder `NAME.partial` beside `folder`, which becomes `folder` when the block ends without an error.

    After an error it stays, for the next attempt. Raises UserError if `folder` exists and is not empty, if another
    process prepares it, or if the disk is full.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already; remove it or choose another folder")
    partial = folder.with_name(f"{folder.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    lock = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        work = Workplace(partial, kind)
        yield work
        (partial / _PROGRESS).unlink(missing_ok=True)
        os.replace(partial, folder)
    except BlockingIOError:
        raise UserError(f"another process writes to {partial}; wait until it is done") from None
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise UserError(
            f"the disk of {partial} is full; make room there, then give the same command again: it goes on from what "
            "is written"
        ) from None
    finally:
        os.close(lock)


def prepare_source(
    source: Source, tokenizer: Tokenizer, work: Workplace[Progress], name: str, warn: Warn, sizes: Sizes = Sizes()
) -> Progress:
    """Write all of a source's texts as token shards to the subfolder `name`, from where an earlier attempt stopped.

    Files are read in their order. Documents are shuffled within chunks of `sizes` alone, by a seed that
    follows from the source: the same source gives the same shards, however often this was interrupted. A bad row is
    left out, and so is what follows the place where a file cannot be read; `warn` is told of both as a `Loss`.

    Raises UserError if the source is missing, nothing of it can be used, or the network fails for long; what is written
    until then is kept.
    """
    files = find_shards(source, warn)
    identity = identity_of(source, tokenizer.hash, files)
    progress = work.progress(name, identity)
    if progress.done:
        return progress
    if progress.shards:
        warn(f"{name}: going on after {progress.tokens:,} tokens that are written")
    losses = Losses(source.dataset, len(files), warn)
    rows = Rows(source, files, progress, losses, warn, sizes)
    while not rows.over:
        documents = _documents(rows, tokenizer, seed_of(identity, progress.shards), sizes.file)
        path = shard_path(work.folder / name, progress.shards)
        written = write_token_shard(documents, path, tokenizer.hash, tokenizer.vocabulary)
        made = {
            "shards": progress.shards + bool(written.documents),
            "documents": progress.documents + written.documents,
            "tokens": progress.tokens + written.tokens,
        }
        progress = progress.model_copy(update=made | rows.reached(progress))
        if progress.documents:
            work.save(name, progress)
    if not progress.documents:
        raise losses.nothing(source.column)
    return progress


def identity_of(source: Source, maker: str, files: Sequence[Shard]) -> str:
    """Names what shards follow from: a file of this machine that changes makes others.

    :param maker: what makes them of the source
    """
    parts = [source.model_dump_json(exclude={"weight"}), maker]
    for file in files:
        parts.append(file.path)
        if "://" not in file.path:
            stat = Path(file.path).stat()
            parts.append(f"{stat.st_size} {stat.st_mtime_ns}")
    return sha256("\0".join(parts).encode()).hexdigest()


def _documents(rows: "Rows", tokenizer: Tokenizer, seed: int, size: int) -> Iterator[Document]:
    """Those of one file. It ends with a chunk, so that the place that `rows` has reached says what is left."""
    tokens = chunk = 0
    while tokens < size and not rows.over:
        found = [document for document in tokenizer.documents(rows.chunk()) if len(document.ids)]
        tokens += sum(len(document.ids) for document in found)
        for place in np.random.default_rng(seed_of(seed, chunk)).permutation(len(found)):
            yield found[place]
        chunk += 1


class Rows:
    """The texts of a source's files, chunk by chunk, and the place that they have reached.

    A bad row is left out, and so is what follows the place where a file cannot be read.
    """

    def __init__(
        self, source: Source, files: Sequence[Shard], begin: Reached, losses: Losses, warn: Warn, sizes: Sizes
    ) -> None:
        self.file, self.row = begin.file, begin.row
        """So many files are read, and of the next one so many rows."""
        self.over = False
        self._bad_before = begin.bad_rows
        self._any = begin.documents > 0
        self._source, self._files, self._losses, self._warn, self._sizes = source, files, losses, warn, sizes
        self._texts = self._all()

    def reached(self, before: Reached) -> dict[str, Any]:
        """What of a progress follows from the place; the rest of `before` stays."""
        lost = {path: one_line(error) for path, error in self._losses.unreadable.items()}
        return {
            "file": self.file,
            "row": self.row,
            "bad_rows": self._bad_before + self._losses.bad_rows,
            "lost": before.lost | lost,
            "done": self.over,
        }

    def chunk(self) -> Iterator[str]:
        """The next texts, in all about as many characters as `sizes` says; then the place is behind them."""
        characters = number = 0
        while characters < self._sizes.characters and number < self._sizes.texts:
            text = next(self._texts, None)
            if text is None:
                self.over = True
                return
            characters, number = characters + len(text), number + 1
            yield text

    def _all(self) -> Iterator[str]:
        for file in self._files[self.file :]:
            found = 0
            try:
                for row, text in self._usable(file, self.row):
                    self.row, self._any, found = row, True, found + 1
                    yield text
            except Unusable as error:
                self._losses.lose(file, error, found, self._source.column)
            except UserError:
                raise
            except Exception as error:  # whatever a broken file makes its decoder raise
                if is_transient(error):
                    raise UserError(
                        f"{file.path} cannot be read on ({one_line(error)}); check the Internet connection, then give "
                        "the same command again: it goes on from what is written"
                    ) from None
                self._losses.lose(file, error, found, self._source.column)
            self.file, self.row = self.file + 1, 0
            if not self._any and len(self._losses.unreadable) >= HOPELESS:
                return

    def _usable(self, file: Shard, first: int) -> Iterator[tuple[int, str]]:
        """The texts after so many rows, each with the number of rows up to it."""
        found = numbered_texts(self._source, file, self._warn, first)
        items = (text if isinstance(text, BadRow) else (row, text) for row, text in found)
        return self._losses.usable(file, items, begun=first > 0)
