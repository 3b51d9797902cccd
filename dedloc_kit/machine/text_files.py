"""Text files: read as people's editors and shells leave them, and replaced as a whole."""

import codecs
import errno
import os
from pathlib import Path

MAX_BYTES = 16 * 2**20


def read_text(path: Path) -> str:
    """A file's text: UTF-8, or UTF-16 as PowerShell writes it, without the byte-order mark that Windows puts first.

    Raises OSError, as for a file of more than 16 MB, which nobody has written, and UnicodeDecodeError.
    """
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"more than {MAX_BYTES >> 20} MB, so another kind of file", str(path))
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if wide else "utf-8-sig")


def replace_text(path: Path, text: str) -> None:
    """Replace a file, so that a killed process leaves the old text or the new one. Raises OSError."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
