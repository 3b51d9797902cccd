"""The training data of a run as token ids: the organizer tokenizes once what every volunteer would tokenize again."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from rich.progress import MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from dedloc_kit.display.bar import BarDisplay
from dedloc_kit.errors import UserError
from dedloc_kit.hub import HubUnavailable, upload
from dedloc_kit.run.config import RunConfig
from dedloc_kit.run.section import public_name
from dedloc_kit.run.task import Source


def prepare_shards(run: RunConfig, folder: Path) -> int:
    """Write every source of a run's training data as token ids to a subfolder of its own; returns the tokens.

    Each source is read once, in the order of its files. Raises UserError, and leaves nothing behind, if the folder
    exists or a shard cannot be read: what is left out here would be missing for all.
    """
    from dedloc_kit.learning.data.folder import new_folder
    from dedloc_kit.learning.data.sources.stream import in_order, texts
    from dedloc_kit.learning.data.text.token_shards import write_token_shards
    from dedloc_kit.learning.task import create_task
    from dedloc_kit.learning.tasks.text.common import TextTask

    task = create_task(run)
    if not isinstance(task, TextTask):
        raise UserError(f"the task '{run.task.name}' learns no tokens; leave --shards out")
    names = _subsets(run)
    total = 0
    with new_folder(folder) as temporary, _Counting() as counting:
        for source, name in zip(run.data.train, names, strict=True):
            (temporary / name).mkdir()
            read = counting.each(name, in_order(source, texts, warn=counting.line))
            documents = task.texts.documents(read)
            written = write_token_shards(documents, temporary / name, task.vocabulary_hash, len(task.tokenizer))
            counting.line(f"{name}: {written} tokens of {source.dataset}")
            total += written
        configs = [{"config_name": name, "data_files": f"{name}/*.parquet"} for name in names]
        card = f"---\nconfigs: {json.dumps(configs)}\n---\n\nToken ids and sentence ends for the run `{run.name}`.\n"
        (temporary / "README.md").write_text(card, encoding="utf-8")
    return total


def push_shards(folder: Path, repository: str, private: bool = False) -> str:
    """Upload what `prepare_shards` wrote to a dataset repository on the Hub; returns the commit.

    Raises UserError if there is no token of the Hub, or it refuses or cannot be reached; the folder stays as it is.
    """
    try:
        return upload(folder, repository, ["*/*.parquet", "README.md"], kind="dataset", private=private)
    except HubUnavailable as error:
        raise UserError(
            f"the token ids are in {folder}, but not on the Hub ({error}); check the Internet connection, then give "
            "the same command again: it only uploads"
        ) from None


def sources_toml(run: RunConfig, dataset: str, revision: str | None) -> str:
    """The sections of the run's file that take its training data from there."""
    sections = []
    for source, name in zip(run.data.train, _subsets(run), strict=True):
        lines = ["[[data.train]]", f'dataset = "{dataset}"', f'subset = "{name}"', "tokenized = true"]
        lines += [f'revision = "{revision}"'] if revision else []
        lines += [f"weight = {source.weight}"] if source.weight != Source(dataset="any").weight else []
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def _subsets(run: RunConfig) -> list[str]:
    """A name for each source by which viewers know it again: `wikipedia-20231101.bn`."""
    plain = ["-".join(filter(None, (public_name(source.dataset), source.subset))) for source in run.data.train]
    names = [re.sub(r"[^\w.-]+", "-", name.rpartition("/")[2], flags=re.ASCII) for name in plain]
    return [name if names.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(names)]


class _Counting(BarDisplay):
    """How many documents have been read."""

    def __init__(self) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            MofNCompleteColumn(),
            TextColumn("documents"),
            TimeElapsedColumn(),
            stderr=True,
        )

    def each(self, name: str, documents: Iterator[str]) -> Iterator[str]:
        task = self._bar.add_task(name, total=None)
        for document in documents:
            yield document
            self._bar.advance(task)
