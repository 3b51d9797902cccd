"""The shard files of a data source: which there are."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from dedloc_kit.config.places import HAVE_IT_HERE
from dedloc_kit.config.section import HUB_REPOSITORY
from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.fetching import by_plain_http
from dedloc_kit.learning.data.sources.hub_files import check_files, check_loader, commit_of, subsets_in
from dedloc_kit.learning.data.sources.open_files import OpenFiles
from dedloc_kit.learning.data.sources.packed import PACKED
from dedloc_kit.learning.data.sources.patience import Warn, be_patient, one_line, retried
from dedloc_kit.learning.data.sources.splits import canonical, files_in, names_split, split_of

LABELS_FILE = "labels.json"
"""In a local dataset: the names of the classes of each column of numbers, as `{"ner_tags": ["O", "B-PER"]}`."""

_LOADERS = {
    ".parquet": "parquet",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".arrow": "arrow",
    ".tar": "webdataset",
}


@dataclass(frozen=True)
class Shard:
    """One file of a source, or a part of it."""

    path: str
    """A local path or a URL such as `hf://datasets/OWNER/NAME@REVISION/FILE`."""
    loader: str
    """What reads it: `parquet`, `json`, `csv`, `tsv`, `text`, or the loader of `datasets` of that name."""
    part: tuple[int, int, int] | None = None
    """Only what lies from (begin / size) to (end / size) of it is read: rows of a file that can be entered anywhere,
    else bytes. None: all."""
    files: OpenFiles | None = field(default=None, compare=False, repr=False)
    """Keeps it open for what follows."""

    @property
    def seekable(self) -> bool:
        """Whether it can be read from any row on without what comes before: a Parquet file, not within an archive."""
        return self.loader == "parquet" and loader_of(Path(self.path)) == "parquet"


Reader = Callable[[Source, Shard, Warn], Iterator[Any]]
"""What a shard of a source holds and the task can use, and each bad row; raises Unusable if it is of no use.

It reads only the part that the shard names.
"""


def find_shards(source: Source, warn: Warn) -> tuple[Shard, ...]:
    """The source's files in a fixed order; raises UserError if the dataset, its split or its files do not exist.

    A local folder holds its files itself or in folders below; `splits.py` says which split a file belongs to. A single
    file is whatever split the source names.
    """
    splits = find_splits(source, warn)
    if source.split not in splits and canonical(source.split) in splits:
        return splits[canonical(source.split)]
    if source.split not in splits:
        names = ", ".join(sorted(splits)) or "none at all"
        raise UserError(
            f"the dataset {source.dataset} has no split '{source.split}'; set the source's split to one of: {names}"
        )
    return splits[source.split]


def find_splits(source: Source, warn: Warn) -> dict[str, tuple[Shard, ...]]:
    """The files of all splits of the source's dataset, by split; otherwise as `find_shards`."""
    path = Path(source.place)
    if not path.is_absolute():  # a name from the network may be one of them, and leads to no file of this machine
        if re.fullmatch(HUB_REPOSITORY, source.place) is None:
            raise UserError(f"the dataset {source.dataset} is not on the Hub, where it is OWNER/NAME; {HAVE_IT_HERE}")
        return _hub_splits(source, warn)
    if path.is_file():
        return {source.split: (_local_shard(path),)}
    if path.is_dir():
        return _folder_splits(source)
    raise UserError(f"the dataset {path} does not exist; correct the path")


def loader_of(path: Path) -> str | None:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in PACKED]
    return _LOADERS.get(suffixes[-1]) if suffixes else None


def _local_shard(path: Path) -> Shard:
    loader = loader_of(path)
    if loader is None:
        raise UserError(
            f"{path} is none of the known kinds of data; use one of: {', '.join(_LOADERS)} "
            f"(text also packed: {', '.join(PACKED)})"
        )
    return Shard(str(path), loader)


def local_folder(source: Source) -> Path | None:
    """The folder of a local dataset, or of its subset; none if it is on the Hub."""
    folder = Path(source.place)
    if not folder.is_absolute():
        return None
    return folder / source.subset if source.subset else folder


def _folder_splits(source: Source) -> dict[str, tuple[Shard, ...]]:
    folder = local_folder(source)
    assert folder is not None, "others are on the Hub"
    if not folder.is_dir():
        have = ", ".join(path.name for path in sorted(folder.parent.iterdir()) if _is_subset(path))
        fix = f"set the source's subset to one of: {have}" if have else "leave the subset out"
        raise UserError(f"{folder.parent} has no subset '{folder.name}'; {fix}")
    splits: dict[str, tuple[Shard, ...]] = {}
    for path in sorted(files_in(folder)):
        if loader_of(path):
            split = split_of(path.relative_to(folder))
            splits[split] = (*splits.get(split, ()), _local_shard(path))
    if not splits:
        raise UserError(f"{folder} holds no data; put {', '.join(_LOADERS)} files into it")
    return splits


def _is_subset(path: Path) -> bool:
    hidden = path.name.startswith((".", "__"))
    return path.is_dir() and not hidden and not names_split(path.name) and any(map(loader_of, files_in(path)))


def strays(source: Source) -> list[str]:
    """The files of a local folder that are not read, for their kind is unknown."""
    folder = local_folder(source)
    if folder is None or not folder.is_dir():
        return []
    return [str(path.relative_to(folder)) for path in files_in(folder) if not loader_of(path)]


def _hub_splits(source: Source, warn: Warn) -> dict[str, tuple[Shard, ...]]:
    from datasets import config, load_dataset_builder
    from datasets.exceptions import DataFilesNotFoundError, DatasetNotFoundError
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    missing = (DatasetNotFoundError, DataFilesNotFoundError, RepositoryNotFoundError, RevisionNotFoundError)
    if os.path.lexists(source.dataset):  # `datasets` would take that, whatever it is told
        raise UserError(
            f"there is a {source.dataset} in the current folder, which would hide the dataset of this name on the Hub; "
            "start from another folder"
        )
    disable_progress_bars()  # for a README of 200 bytes
    be_patient()
    config.HF_UPDATE_DOWNLOAD_COUNTS = False  # it would report each look-up, and wait for the answer

    def look_up() -> Any:
        with by_plain_http():
            commit = commit_of(source.dataset, source.revision)
            return load_dataset_builder(source.dataset, name=source.subset, revision=commit)

    try:
        builder = retried(source.dataset, warn, look_up)
    except UserError:
        raise
    except missing as error:
        raise UserError(
            f"the dataset {source.dataset} is not open to you on the Hub ({one_line(error)}); correct its name, or "
            "log in with: hf auth login"
        ) from None
    except ValueError as error:
        if subsets := subsets_in(error):
            have = f"has no subset '{source.subset}'" if source.subset else "has several subsets"
            raise UserError(
                f"the dataset {source.dataset} {have}; set the source's subset to one of: {', '.join(subsets)}"
            ) from None
        raise UserError(
            f"the dataset {source.dataset} cannot be used ({one_line(error)}); correct the subset"
        ) from None
    except Exception as error:
        raise UserError(
            f"the dataset {source.dataset} cannot be looked up ({one_line(error)}); "
            "check the Internet connection and the dataset's name"
        ) from None
    files = {str(split): sorted(map(str, paths)) for split, paths in (builder.config.data_files or {}).items()}
    check_loader(source.dataset, builder.name)
    check_files(source.dataset, chain.from_iterable(files.values()))
    return {
        split: tuple(Shard(path, loader_of(Path(path)) or builder.name) for path in paths)
        for split, paths in files.items()
    }
