"""The names of classes, which most datasets keep apart from the numbers in their rows."""

import json
from typing import Any

from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.patience import Warn
from dedloc_kit.learning.data.sources.reading import class_names
from dedloc_kit.learning.data.sources.shards import LABELS_FILE, Shard, local_folder
from dedloc_kit.machine.text_files import read_text


def names_of(source: Source, shard: Shard, column: str, warn: Warn) -> list[str] | None:
    """The names that the numbers in a column stand for: as `labels.json` beside a local dataset says, else the shard.

    None where neither tells. Raises UserError if that file does not hold names.
    """
    folder = local_folder(source)
    path = None if folder is None else folder / LABELS_FILE
    if path is None or not path.is_file():
        return class_names(shard, column, warn)
    try:
        names = json.loads(read_text(path))[column]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f'{path} does not name the classes of {column}; write {{"{column}": ["O", "B-PER"]}}') from None
    return names


def named(label: Any, names: list[str] | None) -> Any:
    """Class numbers as their names; what is something else stays as it is. Raises ValueError if one has no name."""
    if isinstance(label, list):
        return [named(entry, names) for entry in label]
    if names is None or isinstance(label, bool) or not isinstance(label, int):
        return label
    if not 0 <= label < len(names):
        raise ValueError(f"the class {label} has no name; {len(names)} classes have one")
    return names[label]
