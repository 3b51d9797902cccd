"""Which files a dataset on the Hub may consist of: those of its own repository, whatever its card says.

A card may name files anywhere, on the disk of whoever reads it too, and some versions of `datasets` follow it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from dedloc_kit.errors import UserError

_LOADERS = {"arrow", "csv", "imagefolder", "json", "parquet", "text", "webdataset"}
"""Of `datasets`; all that their files say stands in themselves."""
_CARDS = ("README.md", ".huggingface.yaml")
"""Where `datasets` looks for what a dataset says of its files."""


def check_files(dataset: str, files: Iterable[str]) -> None:
    """Raise UserError unless each is `hf://datasets/OWNER/NAME@COMMIT/...` of this very dataset, with nothing behind.

    :param dataset: `OWNER/NAME`
    """
    own = re.compile(rf"hf://datasets/{re.escape(dataset)}@[0-9a-f]{{40}}/[^\x00-\x1f]+")
    for file in files:
        if not own.fullmatch(file) or _leads_away(file.partition("@")[2]):
            raise _refused(dataset, file)


def check_loader(dataset: str, loader: str) -> None:
    """Raise UserError for a loader of `datasets` whose files may refer to others, as HDF5's external data do."""
    if loader not in _LOADERS:
        raise UserError(
            f"the dataset {dataset} holds files for the loader {loader!r:.40} of datasets, which is not used here; "
            f"choose one with files of {', '.join(sorted(_LOADERS))}"
        )


def check_card(dataset: str, card: Mapping[str, Any]) -> None:
    """Raise UserError if the head of a dataset's card names data outside the dataset; before anybody looks there."""
    configs = card.get("configs")
    for config in configs if isinstance(configs, list) else [configs]:
        for name in _texts([config.get("data_files"), config.get("data_dir")] if isinstance(config, dict) else config):
            if name.startswith(("/", "~")) or _leads_away(name):
                raise _refused(dataset, name)


def commit_of(dataset: str, revision: str | None) -> str:
    """The commit that a dataset is read at; the cards that it has there are checked.

    Raises UserError as `check_card`, and what huggingface_hub raises.
    """
    import yaml  # type: ignore[import-untyped]
    from huggingface_hub import DatasetCard, HfApi, hf_hub_download
    from huggingface_hub.errors import RemoteEntryNotFoundError

    commit = str(HfApi().dataset_info(dataset, revision=revision).sha)
    for name in _CARDS:
        try:
            path = hf_hub_download(dataset, name, repo_type="dataset", revision=commit)
        except RemoteEntryNotFoundError:
            continue
        if name.endswith(".md"):
            check_card(dataset, DatasetCard.load(path).data.to_dict())
        elif isinstance(values := yaml.safe_load(Path(path).read_text(encoding="utf-8")), dict):
            check_card(dataset, values)
    return commit


def subsets_in(error: ValueError) -> list[str]:
    """The subsets of a dataset that an error of `datasets` lists, which calls them configs; all of them."""
    listed = re.search(r"(?:available configs|Available): \[(.*?)\]", str(error), re.DOTALL)
    return re.findall(r"'([^']*)'", listed[1]) if listed else []


def _leads_away(path: str) -> bool:
    return any(mark in path for mark in ("://", "::", "\\")) or ".." in PurePosixPath(path).parts


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            yield from _texts([*value.keys(), *value.values()])
        case list() | tuple():
            for each in value:
                yield from _texts(each)


def _refused(dataset: str, file: str) -> UserError:
    return UserError(
        f"the dataset {dataset} names {file!r:.120} as data, which is no file of its own on the Hub, and is not read; "
        "choose another dataset, or tell the organizer"
    )
