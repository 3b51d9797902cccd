"""Captions and the codes of their pictures as Parquet files: a reader needs no picture model and no Pillow."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from dedloc_kit.config.section import PIXELS, Section, Unit
from dedloc_kit.learning.data.sources.formats import Unusable
from dedloc_kit.learning.data.sources.patience import Warn
from dedloc_kit.learning.data.sources.reading import read_batches
from dedloc_kit.learning.data.sources.shards import Shard
from dedloc_kit.learning.data.text.token_shards import VOCABULARY, flat, shard_path, write_lists
from dedloc_kit.learning.data.text.tokens import Ids, ids_dtype

CAPTION, CODES = "caption", "codes"
"""The columns: a list of token ids, and a list of codes row by row."""
PICTURES = b"dedloc_kit.pictures"
"""The key in a file's metadata of what made its codes."""
MAX_CAPTION = 1024
"""Tokens of a caption."""

_ROWS_AT_ONCE = 500
"""Samples in one row group, which a reader fetches at once."""
_CODES_IN_A_FILE = 64_000_000
_AGAIN = "write it again with: dedloc prepare images RUN.toml --shards"


class PictureCodes(Section):
    """The picture model that made the codes of a run's pictures."""

    model: str = Field(min_length=1)
    """The picture model: a published one, `OWNER/NAME@COMMIT`, or a folder beside the run's file."""
    codes: Annotated[int, Field(ge=2, le=65536)]
    """The number of different codes: the size of its codebook."""
    side: Annotated[int, Field(ge=1, le=256), Unit("codes")]
    """Height and width of a picture in codes."""
    size: Annotated[int, Field(ge=8, le=1024), PIXELS]
    """Height and width of a picture in pixels."""
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """SHA-256 of the picture model's weights; `dedloc launch` fills it in."""

    @model_validator(mode="after")
    def _whole_patches(self) -> "PictureCodes":
        if self.size % self.side:
            raise ValueError(
                f"pictures.size must be a multiple of pictures.side: {self.size} pixels are not {self.side} codes"
            )
        return self

    @property
    def length(self) -> int:
        """Codes of a picture."""
        return self.side**2


@dataclass(frozen=True, slots=True, eq=False)
class Captioned:
    """A picture as its codes, and the words for it."""

    caption: Ids
    """[tokens], without special tokens and unpadded"""
    codes: Ids
    """uint16 [side * side], row by row"""


def write_code_shards(
    items: Iterable[Captioned],
    folder: Path,
    pictures: PictureCodes,
    vocabulary_hash: str,
    vocabulary: int,
    split: str = "train",
) -> int:
    """Write samples to `SPLIT-00000.parquet` and so on in an existing folder; returns how many there are."""
    types = {CAPTION: ids_dtype(vocabulary), CODES: np.uint8 if pictures.codes <= 256 else np.uint16}
    metadata = {VOCABULARY: vocabulary_hash, PICTURES: _maker(pictures)}
    items, a_file = iter(items), max(1, _CODES_IN_A_FILE // pictures.length)

    def rows() -> Iterator[Sequence[tuple[Ids, ...]]]:
        some = islice(items, a_file)
        while group := [(item.caption, item.codes) for item in islice(some, _ROWS_AT_ONCE)]:
            yield group

    total = 0
    for number in count():
        # A dictionary of the codes packs them into as many bits as they have.
        written = write_lists(rows(), shard_path(folder, number, split), types, metadata, use_dictionary=True)
        if not written:
            break
        total += written
    return total


def read_code_shard(
    shard: Shard, pictures: PictureCodes, vocabulary_hash: str, vocabulary: int, warn: Warn
) -> Iterator[Captioned]:
    """The samples of a shard, in its order.

    Network errors are announced through `warn` and retried from where it was. Raises Unusable if the
    file holds no codes, or those of another picture model or captions of another vocabulary than the run's, and
    whatever pyarrow raises if it cannot be read.
    """

    def check(schema: Any) -> None:
        _check(schema, pictures, vocabulary_hash)

    for batch in read_batches(shard, (CAPTION, CODES), check, warn):
        yield from _samples(batch, shard, pictures, vocabulary)


def _maker(pictures: PictureCodes) -> str:
    return json.dumps(pictures.model_dump(exclude={"model"}), sort_keys=True)


def _check(schema: Any, pictures: PictureCodes, vocabulary_hash: str) -> None:
    metadata = schema.metadata or {}
    if not {CAPTION, CODES} <= set(schema.names) or PICTURES not in metadata:
        raise Unusable("holds no codes of pictures; write them with: dedloc prepare images RUN.toml --shards")
    if metadata[PICTURES] != _maker(pictures).encode():
        raise Unusable(f"was written with another picture model than task.pictures says; {_AGAIN}")
    if metadata.get(VOCABULARY) != vocabulary_hash.encode():
        raise Unusable(f"was written with another tokenizer than task.tokenizer; {_AGAIN}")


def _samples(batch: Any, shard: Shard, pictures: PictureCodes, vocabulary: int) -> Iterator[Captioned]:
    """Copies, since a slice would keep its whole row group in memory. Every value is checked: it indexes arrays."""
    captions, starts = flat(batch.column(CAPTION), shard)
    codes, code_starts = flat(batch.column(CODES), shard)
    lengths = np.diff(starts)
    if (np.diff(code_starts) != pictures.length).any():
        raise Unusable(f"{shard.path} holds pictures that are not {pictures.side} x {pictures.side} codes; {_AGAIN}")
    if codes.max(initial=0) >= pictures.codes:
        raise Unusable(
            f"{shard.path} holds the code {codes.max()}, and task.pictures.codes is {pictures.codes}; {_AGAIN}"
        )
    if captions.max(initial=0) >= vocabulary or ((lengths < 1) | (lengths > MAX_CAPTION)).any():
        raise Unusable(f"{shard.path} holds captions that cannot be; {_AGAIN}")
    grids = codes.astype(np.uint16).reshape(-1, pictures.length)
    for row, grid in enumerate(grids):
        yield Captioned(captions[starts[row] : starts[row + 1]].copy(), grid.copy())
