"""Pictures from shards: encoded as they come, decoded in threads as they are needed."""

import io
import os
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dedloc_kit.data.sources.formats import BadRow
from dedloc_kit.data.sources.losses import Unproven
from dedloc_kit.data.sources.shards import Shard, Warn, one_line, read_rows
from dedloc_kit.errors import UserError
from dedloc_kit.run.task import Source

Pixels = NDArray[np.uint8]
Label: TypeAlias = int | str | None
"""A picture's class, where that is known and wanted."""
Labelled: TypeAlias = tuple[Pixels, Label]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
"""What is decoded; Pillow knows others that start programs (PostScript) or that nobody fuzzes."""
MAX_PIXELS = 64_000_000
"""Of a picture when it is decoded, some 200 MB: a small file can hold a very large one."""
MAX_IN_A_ROW = 2048
"""So many pictures that cannot be decoded, before any that can, are no accident."""
_LOOKED_AT = 32
"""Pixels along each side: a JPEG is decoded faster where few are wanted."""


@dataclass(eq=False)
class Encoded(Unproven):
    """A picture as a file."""

    data: bytes
    label: Label


File = TypeVar("File", bound=Encoded)


def encoded_images(source: Source, shard: Shard, warn: Warn, label: str | None = None) -> Iterator[Encoded | BadRow]:
    """The pictures of a shard as files, each with what its column `label` holds, if there is to be one.

    Rows without that label are left out; where the columns hold something else than pictures and classes it is a bad
    row.
    """
    columns = (source.column, *([label] if label else []))
    for number, row in enumerate(read_rows(shard, columns, warn), start=shard.first + 1):
        if isinstance(row, BadRow):
            yield row
            continue
        name = row[label] if label else None
        if label and name is None:
            continue
        data = file_of(row[source.column])
        if not isinstance(name, int | str | None):
            yield BadRow(number, f"holds {type(name).__name__}, not classes, in column '{label}'; set task.label")
        elif data is None:
            yield no_picture(number, row[source.column], source.column)
        else:
            yield Encoded(number, data, name)


def no_picture(number: int, value: Any, column: str) -> BadRow:
    """A row that holds something else where the picture should be."""
    return BadRow(
        number,
        f"holds {type(value).__name__}, not pictures, in column '{column}'; set the source's column to one that does",
    )


def file_of(value: Any) -> bytes | None:
    """A picture's bytes, empty for a missing one; none if the value is of another kind."""
    # Only ever the bytes: a path in someone's data may point at anything on this machine.
    data = value.get("bytes", b"") if isinstance(value, dict) and value.keys() <= {"bytes", "path"} else value
    return data or b"" if data is None or isinstance(data, bytes) else None


def flaw(value: Any) -> str:
    """What is wrong with what should be a picture and holds bytes; empty if it is one."""
    try:
        decode(file_of(value) or b"", _LOOKED_AT)
    except ValueError as error:
        return str(error)
    return ""


def sides(data: bytes) -> tuple[int, int] | None:
    """A picture's width and height, without decoding it; none if they cannot be told."""
    from PIL import Image

    _without_warnings()
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            return picture.size
    except Exception:  # whatever a broken file makes its decoder raise
        return None


@cache
def _without_warnings() -> None:
    """Pillow warns of pictures that `decode` refuses, in several lines."""
    from PIL import Image

    warnings.simplefilter("ignore", Image.DecompressionBombWarning)


def decode(data: bytes, size: int, *, on_white: bool = False) -> Pixels:
    """The middle square of a picture, resized: [size, size, 3].

    Any kind of picture becomes red, green and blue, a small one is enlarged, and of a moving one the first is taken.
    Raises ValueError if the file is broken, truncated, no picture at all or too large.

    :param on_white: transparent places are white; otherwise they have the colours that the file hides in them
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    _without_warnings()
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            picture.draft("RGB", (size, size))  # a JPEG is then read at a fraction of its size
            if picture.width * picture.height > MAX_PIXELS:
                raise ValueError(f"{picture.width} x {picture.height} pixels are too many")
            if picture.mode.startswith("I"):  # 16 bits of gray, of which Pillow would make white
                gray = Image.fromarray((np.asarray(picture).astype(np.int64).clip(0, 65535) >> 8).astype(np.uint8))
                return np.asarray(ImageOps.fit(gray.convert("RGB"), (size, size), Image.Resampling.BILINEAR))
            # A palette's transparency has to become a channel before it can be dropped.
            colours = picture.convert("RGBA") if picture.has_transparency_data else picture
            if on_white and colours.mode == "RGBA":
                colours = Image.alpha_composite(Image.new("RGBA", colours.size, "white"), colours)
            fitted = ImageOps.fit(colours.convert("RGB"), (size, size), Image.Resampling.BILINEAR)
        return np.asarray(fitted)
    except UnidentifiedImageError:
        raise ValueError(f"holds no picture that can be decoded (none of {', '.join(FORMATS)})") from None
    except Exception as error:  # whatever a broken file makes its decoder raise
        raise ValueError(f"holds no picture that can be decoded ({one_line(error)})") from None


def decoded(items: Iterator[Encoded], size: int) -> Iterator[Labelled]:
    """The pictures and their classes, otherwise as `each_decoded`."""
    return ((pixels, item.label) for pixels, item in each_decoded(items, size))


def each_decoded(items: Iterator[File], size: int, *, on_white: bool = False) -> Iterator[tuple[Pixels, File]]:
    """The pictures in their order, decoded a few ahead in threads (Pillow lets other threads run meanwhile).

    Those that cannot be decoded are left out and are bad rows of their source. Raises UserError if none of very many
    at the beginning can be.
    """
    threads = min(8, os.cpu_count() or 1)
    waiting: deque[tuple[Future[Pixels], File]] = deque()
    seen = broken = 0
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        try:
            while True:
                while len(waiting) < 4 * threads and (item := next(items, None)) is not None:
                    waiting.append((pool.submit(decode, item.data, size, on_white=on_white), item))
                if not waiting:
                    return
                seen += 1
                future, item = waiting.popleft()
                try:
                    pixels = future.result()
                except ValueError as error:
                    broken += 1
                    item.bad(str(error))
                    if seen == broken == MAX_IN_A_ROW:
                        raise UserError(
                            f"none of the first {broken} pictures can be used: the last row {error}; "
                            "check the source and its column"
                        ) from None
                    continue
                yield pixels, item
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
