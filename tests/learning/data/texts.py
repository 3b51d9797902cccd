"""Texts, and a folder of files in which all goes wrong that does."""

import json
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

BENGALI = [f"আমার সোনার বাংলা, আমি তোমায় ভালোবাসি। {number}" for number in range(300)]
LONG = [f"{number} " + "A sentence of a document. " * 8 for number in range(300)]


def lines(values: list[Any], column: str = "text") -> bytes:
    return "".join(json.dumps({column: value}, ensure_ascii=False) + "\n" for value in values).encode()


FAULTS = [
    ("c-utf16.txt is UTF-16", "iconv -f UTF-16 -t UTF-8"),
    (
        "d-latin.txt has no usable row among 2: row 1 is not UTF-8",
        "find out its encoding, and convert it with: iconv -f ENCODING",
    ),
    ("e-column.parquet has no column 'text'", "set the column to one of: content"),
    ("f-broken.parquet cannot be read beyond row 0", "replace the file"),
]
"""What is wrong in the folder of all that goes wrong, and how to mend it."""
ODD = [
    "1 files of unknown kinds are not read: notes.docx",
    "a-type.jsonl: 1 of the 301 rows that were read are left out; row 151 holds dict, not text",
    "b-cut.jsonl: 1 of the 300 rows that were read are left out; row 300 is no whole JSON object",
]


def all_that_goes_wrong(folder: Path) -> None:
    (folder / "a-type.jsonl").write_bytes(lines([*LONG[:150], {"a": 1}, *LONG[150:]]))
    (folder / "b-cut.jsonl").write_bytes(lines(LONG)[:-30])
    (folder / "c-utf16.txt").write_text("Some text.\n", encoding="utf-16")
    (folder / "d-latin.txt").write_bytes("Où êtes-vous né ?\n\nAu château.\n".encode("latin-1"))
    parquet.write_table(pyarrow.table({"content": LONG}), folder / "e-column.parquet")
    (folder / "f-broken.parquet").write_bytes(b"PAR1 this is not Parquet")
    (folder / "notes.docx").write_bytes(b"")
    (folder / "dataset_infos.json").write_text("{}")
    (folder / "bn_test.jsonl").write_bytes(lines(LONG[:1]))
