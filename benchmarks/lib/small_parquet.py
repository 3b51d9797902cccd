"""The kit's small text as Parquet, which is entered anywhere."""

from pathlib import Path

import pyarrow
from pyarrow import parquet

from dedloc_kit.resources import small_text

_ROWS = 50


def as_parquet(folder: Path) -> Path:
    """Write both splits into a new folder, in the column `text`; returns the folder."""
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        texts = (small_text() / f"{split}.txt").read_text(encoding="utf-8").strip().split("\n\n")
        parquet.write_table(pyarrow.table({"text": texts}), folder / f"{split}.parquet", row_group_size=_ROWS)
    return folder
