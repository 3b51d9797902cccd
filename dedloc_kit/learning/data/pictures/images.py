"""Pictures from shards: encoded as they come, decoded in threads as they are needed."""

import io
import os
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import Condition
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.data_issues import LazyRow
from dedloc_kit.learning.data.sources.formats import BadRow
from dedloc_kit.learning.data.sources.patience import Warn, one_line
from dedloc_kit.learning.data.sources.reading import read_rows
from dedloc_kit.learning.data.sources.shards import Shard

if TYPE_CHECKING:
    from PIL import Image

Pixels = NDArray[np.uint8]
Label: TypeAlias = int | str | None
"""A picture's class, where that is known and wanted."""
Labelled: TypeAlias = tuple[Pixels, Label]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
"""What is decoded; Pillow knows others that start programs (PostScript) or that nobody fuzzes."""
MAX_PIXELS = 64_000_000
"""Of a picture when it is decoded: a small file can hold a very large one."""
MAX_SIDE = 65_535
"""Pixels along a side: decoders hold whole rows."""
MEMORY = 2**29
"""Bytes that all pictures together take that are decoded at a time, in all threads."""
_BYTES_PER_PIXEL, _RGB_BYTES_PER_PIXEL, _WEBP_BYTES_PER_PIXEL = 8, 4, 20
"""Measured: of any kind of picture, of one that needs no change of colours, and of a WebP."""
_STRIP_PIXELS = 2**18
_BLOCK = 2**26
"""Bytes of a picture that are taken as one: of smaller blocks, glibc keeps for each thread what it took last."""
MAX_IN_A_ROW = 2048
"""So many pictures that cannot be decoded, before any that can, are no accident."""
_LOOKED_AT = 32
"""Pixels along each side: a JPEG is decoded faster where few are wanted."""


@dataclass(eq=False)
class Encoded(LazyRow):
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
    for number, row in read_rows(shard, columns, warn):
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

    _prepare_pillow()
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            return picture.size
    except Exception:  # whatever a broken file makes its decoder raise
        return None


@cache
def _prepare_pillow() -> None:
    """No warnings of pictures that `decode` refuses, and memory as `decode` counts it."""
    from PIL import Image, PngImagePlugin

    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    warnings.filterwarnings("ignore", "Corrupt EXIF data")
    PngImagePlugin.MAX_TEXT_MEMORY = PngImagePlugin.MAX_TEXT_CHUNK  # text is unpacked before the size is known
    Image.core.set_block_size(_BLOCK)  # type: ignore[attr-defined]


class _Memory:
    """Bytes that threads reserve before they take them; a thread waits until enough of them are free."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._changed = Condition()

    @contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._free >= size)
            self._free -= size
        try:
            yield
        finally:
            with self._changed:
                self._free += size
                self._changed.notify_all()


_memory = _Memory(MEMORY)


def decode(data: bytes, size: int, *, on_white: bool = False) -> Pixels:
    """The middle square of a picture, resized and turned as its EXIF says: [size, size, 3].

    Any kind of picture becomes red, green and blue, a small one is enlarged, and of a moving one the first is taken.
    All threads together take `MEMORY`; a thread waits for its part. Raises ValueError if the file is broken,
    truncated, no picture at all or too large.

    :param on_white: transparent places are white; otherwise they have the colours that the file hides in them
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    _prepare_pillow()
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            width, height = picture.size
            needed = _needed(picture, size)
            if picture.width * picture.height > MAX_PIXELS or max(picture.size) > MAX_SIDE or needed > MEMORY:
                raise ValueError(f"{width} x {height} pixels are too many")
            with _memory.reserved(needed):
                colours = _in_colours(picture, on_white)
                return np.asarray(_turned(ImageOps.fit(colours, (size, size), Image.Resampling.BILINEAR), picture))
    except UnidentifiedImageError:
        raise ValueError(f"holds no picture that can be decoded (none of {', '.join(FORMATS)})") from None
    except Exception as error:  # whatever a broken file makes its decoder raise
        raise ValueError(f"holds no picture that can be decoded ({one_line(error)})") from None


def _needed(picture: "Image.Image", size: int) -> int:
    """Bytes that decoding takes at most; a JPEG is set to be read at a fraction of its size if that is enough."""
    coefficients = 0
    if layers := getattr(picture, "layer", None):  # a JPEG's; its decoder may hold those of the whole picture
        across, down = max(layer[1] for layer in layers), max(layer[2] for layer in layers)
        of_all = sum(layer[1] * layer[2] for layer in layers)
        coefficients = 2 * picture.width * picture.height * of_all // max(across * down, 1)
    picture.draft("RGB", (size, size))
    if picture.format == "WEBP":
        bytes_per_pixel = _WEBP_BYTES_PER_PIXEL
    else:
        bytes_per_pixel = _RGB_BYTES_PER_PIXEL if _is_plain(picture) else _BYTES_PER_PIXEL
    return coefficients + picture.width * picture.height * bytes_per_pixel


def _turned(square: "Image.Image", picture: "Image.Image") -> "Image.Image":
    """The middle square of a picture, turned as the picture says that it should be looked at."""
    from PIL import ExifTags, ImageOps

    try:
        orientation = picture.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # whatever broken EXIF makes its reader raise: the picture is good without
        return square
    exif = square.getexif()
    exif.clear()
    exif[ExifTags.Base.Orientation] = orientation
    return ImageOps.exif_transpose(square)


def _is_plain(picture: "Image.Image") -> bool:
    return picture.mode == "RGB" and not picture.has_transparency_data


def _in_colours(picture: "Image.Image", on_white: bool) -> "Image.Image":
    """Red, green and blue of a picture, strip by strip, as each form in between takes memory as well."""
    from PIL import Image

    if _is_plain(picture):
        picture.load()
        return picture
    colours = Image.new("RGB", picture.size)
    rows = max(1, _STRIP_PIXELS // picture.width)
    for top in range(0, picture.height, rows):
        strip = picture.crop((0, top, picture.width, min(top + rows, picture.height)))
        colours.paste(_strip_in_colours(strip, on_white), (0, top))
    return colours


def _strip_in_colours(strip: "Image.Image", on_white: bool) -> "Image.Image":
    from PIL import Image

    if strip.mode.startswith("I"):  # 16 bits of gray, of which Pillow would make white
        return Image.fromarray((np.asarray(strip).clip(0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    # A palette's transparency has to become a channel before it can be dropped.
    colours = strip.convert("RGBA") if strip.has_transparency_data else strip
    if on_white and colours.mode == "RGBA":
        colours = Image.alpha_composite(Image.new("RGBA", colours.size, "white"), colours)
    return colours.convert("RGB")


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
