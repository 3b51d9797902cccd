"""Which file of a folder belongs to which split, by the names that `datasets` knows on the Hub.

There a file whose name names no split is left out as soon as another one's does; here it is training data.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePath

_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SPLIT_OF = {word: split for split, words in _KEYWORDS.items() for word in words}
_WORDS = re.compile(r"[-._ 0-9]+")
_SHARD = re.compile(r"^(?!data-)([\w.]+)-\d+-of-\d+\b")
_NO_DATA = {
    "README.md",
    "config.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "state.json",
    "labels.json",
}
"""What stands beside data: descriptions of the Hub's, `save_to_disk`'s, and our names of classes."""


def files_in(folder: Path) -> Iterator[Path]:
    """The files of a folder and all below it, in a fixed order, but for hidden ones and descriptions."""
    seen: set[str] = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(parent))
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "__")) and os.path.realpath(Path(parent, name)) not in seen
        )
        for name in sorted(files):
            if not name.startswith((".", "cache-")) and name not in _NO_DATA:
                yield Path(parent, name)


def split_of(path: PurePath) -> str:
    """The split of a file, whose path is relative to the dataset: its shard's name, else a folder's, else its own."""
    shard = _SHARD.match(path.name)
    if shard:
        return canonical(shard[1])
    for name in (*path.parts[:-1], path.name):
        if found := names_split(name):
            return found
    return "train"


def names_split(name: str) -> str:
    """The split that the name of a file or a folder names; empty if it names none."""
    found = [_SPLIT_OF[word] for word in _WORDS.split(name.lower()) if word in _SPLIT_OF]
    return found[-1] if found else ""


def canonical(split: str) -> str:
    """The name that `datasets` gives to a split: `dev` is `validation`."""
    return _SPLIT_OF.get(split, split)
