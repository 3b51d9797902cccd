"""Files of a dataset as bytes, unpacked if they are packed: their first bytes tell, for names may lie."""

import io
import lzma
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pyarrow

from dedloc_kit.learning.data.sources.formats import Unusable

PACKED = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
MAX_WINDOW = 2**28
"""Bytes that unpacking may keep of what it unpacked; `xz -9` wants a quarter of them, and for zstd the library allows
half of them."""

_CHUNK = 2**16
_HEAD = 64
_BEGINNINGS = {
    "gzip": re.compile(rb"\x1f\x8b\x08"),
    "bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\0"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
}
_OTHERS = {
    rb"version https://git-lfs\.github\.com/spec/": "is a Git LFS pointer, not the file; fetch it with: git lfs pull",
    rb"PK\x03\x04": "is a ZIP archive; unpack it with: unzip",
    rb"%PDF-": "is a PDF file; take its text out with: pdftotext",
}
_NO_PARQUET = {rb"PAR1": "is a Parquet file; rename it to .parquet"}


def opened(path: str, parquet: bool = False) -> Any:
    """A file of a dataset to read bytes from.

    Raises Unusable if it is of quite another kind; call it within `unpacking`.

    :param parquet: whether it should be a Parquet file
    """
    return unpacked(raw(path, parquet), parquet)


def unpacked(file: Any, parquet: bool = False) -> Any:
    """The same of a file that is open."""
    try:
        head = file.read(_HEAD)
        file.seek(0)
        for beginning, what in (_OTHERS if parquet else _OTHERS | _NO_PARQUET).items():
            if re.match(beginning, head):
                raise Unusable(what)
    except BaseException:
        file.close()
        raise
    packed = _packed(head)
    if parquet and packed in ("xz", "zstd"):  # in which nobody can seek
        file.close()
        raise Unusable(f"is packed; unpack it with: {packed} -d")
    if not packed:
        return file
    content = io.BufferedReader(_unpacked(file, packed))
    try:
        if _packed(content.peek(_HEAD)):
            raise Unusable(f"is packed twice; unpack it once, with: {'bzip2' if packed == 'bz2' else packed} -d")
    except BaseException:
        content.close()
        raise
    return content


def raw(path: str, exact: bool = False) -> Any:
    """A file as it lies there.

    :param exact: of one far away only what is asked for is fetched, and nothing ahead
    """
    if "://" not in path:  # a local name may hold anything; fsspec would look for protocols in it
        return Path(path).open("rb")
    system, name = fsspec.core.url_to_fs(path)
    return system.open(name, "rb", **({"cache_type": "none"} if exact else {}))


def _packed(head: bytes) -> str | None:
    return next((kind for kind, beginning in _BEGINNINGS.items() if beginning.match(head)), None)


def _unpacked(file: Any, packed: str) -> Any:
    if packed == "zstd":  # Python has no codec for it before 3.14
        return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), packed)
    if packed == "xz":
        return _Xz(file)
    return fsspec.compression.compr[packed](file, mode="rb")


@contextmanager
def unpacking() -> Iterator[None]:
    """Raise Unusable for a file that takes too much memory to unpack."""
    try:
        yield
    except lzma.LZMAError as error:
        if "limit exceeded" not in str(error):
            raise
        raise Unusable("takes too much memory to unpack; unpack it with: xz -d") from None
    except OSError as error:
        if "Frame requires too much memory" not in str(error):
            raise
        raise Unusable("takes too much memory to unpack; unpack it with: zstd -d --long=31") from None


class _Xz(io.RawIOBase):
    """Unpacks a file with no more memory than `MAX_WINDOW`, which Python's own reader knows nothing of."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._stream: lzma.LZMADecompressor | None = None
        self._waiting = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while True:
            if not self._waiting and (self._stream is None or self._stream.needs_input):
                self._waiting = self._file.read(_CHUNK)
                if not self._waiting and self._stream is not None:
                    raise EOFError("the file ends before what is packed in it does")
            if self._stream is None:  # one may follow another, after zeros
                if not self._waiting:
                    return 0
                self._waiting = self._waiting.lstrip(b"\0")
                if not self._waiting:
                    continue
                self._stream = lzma.LZMADecompressor(memlimit=MAX_WINDOW)
            found = self._stream.decompress(self._waiting, len(buffer))
            self._waiting = b""
            if self._stream.eof:
                self._waiting, self._stream = self._stream.unused_data, None
            if found:
                buffer[: len(found)] = found
                return len(found)
