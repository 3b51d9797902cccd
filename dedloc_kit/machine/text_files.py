"""Text files that people write, as their editors and shells leave them."""

import codecs
from pathlib import Path


def read_text(path: Path) -> str:
    """A file's text: UTF-8, or UTF-16 as PowerShell writes it, without the byte-order mark that Windows puts first.

    Raises OSError and UnicodeDecodeError.
    """
    data = path.read_bytes()
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if wide else "utf-8-sig")
