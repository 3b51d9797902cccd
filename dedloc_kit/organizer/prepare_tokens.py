"""The training data of a run as token shards: tokenized once by the organizer, and not by every volunteer."""

import json
import re
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import public_name
from dedloc_kit.config.task import Source
from dedloc_kit.display.counting import CountDisplay
from dedloc_kit.display.human import count
from dedloc_kit.errors import UserError
from dedloc_kit.hub import HubUnavailable, upload

if TYPE_CHECKING:
    from dedloc_kit.learning.data.text.tokens import Document
    from dedloc_kit.organizer.prepare_source import Progress, Reached


def prepare_tokens(run: RunConfig, folder: Path) -> dict[str, "Progress"]:
    """Write every source of a run's training data, `data.cooldown` too, as token shards to a subfolder of its own.

    Returns what was made of each source, by the name of its subfolder. Bad rows and files that cannot be read are left
    out and counted. Raises UserError if the folder exists, the task learns no tokens, or a source cannot be used; what
    is done by then stays beside `folder`, and the next call goes on from there.
    """
    from dedloc_kit.learning.task import create_task
    from dedloc_kit.learning.tasks.text.common import TextTask
    from dedloc_kit.organizer.prepare_source import Progress, Tokenizer, prepare_source, workplace

    check_learns_tokens(run)
    task = create_task(run)
    if task.own_records:
        raise UserError(f"the task '{run.task.name}' reads its data as it is, so there are no tokens to prepare")
    assert isinstance(task, TextTask), "no other one of the package has a tokenizer"
    made = {}
    with workplace(folder, Progress) as work, CountDisplay("documents") as counting:
        work.keep(name for _, name in named_sources(run))
        for source, name in named_sources(run):

            def documents(texts: Iterable[str], name: str = name) -> Iterator["Document"]:
                return counting.each(name, task.texts.documents(texts))

            tokenizer = Tokenizer(documents, task.vocabulary_hash, len(task.tokenizer))
            made[name] = prepare_source(source, tokenizer, work, name, counting.line)
            for line in _described(name, made[name]):
                counting.line(line)
        configs = [{"config_name": name, "data_files": f"{name}/*.parquet"} for name in made]
        card = f"---\nconfigs: {json.dumps(configs)}\n---\n\nToken ids and sentence ends for the run `{run.name}`.\n"
        (work.folder / "README.md").write_text(card, encoding="utf-8")
    return made


def check_learns_tokens(run: RunConfig) -> None:
    """Raise UserError for a task that reads no text."""
    if "pictures" in run.task.options:
        raise UserError(f"the task '{run.task.name}' learns from codes; use: dedloc prepare images RUN.toml --shards")
    if "tokenizer" not in run.task.options and "init_from" not in run.task.options:
        raise UserError(f"the task '{run.task.name}' has no tokenizer, so there are no tokens to prepare")


def push_tokens(folder: Path, repository: str, private: bool = False) -> str:
    """Upload what `prepare_tokens` wrote to a dataset repository on the Hub; returns the commit.

    Raises UserError if there is no token of the Hub, or it refuses or cannot be reached; the folder stays as it is.
    """
    try:
        return upload(folder, repository, ["*/*.parquet", "README.md"], kind="dataset", private=private)
    except HubUnavailable as error:
        raise UserError(
            f"the token ids are in {folder}, but not on the Hub ({error}); check the Internet connection, then give "
            "the same command again: it only uploads"
        ) from None


def sources_toml(
    run: RunConfig, dataset: str, revision: str | None, tokenized: bool = True, missing: Container[str] = ()
) -> str:
    """The sections of the run's file that take its training data from there.

    :param tokenized: the dataset holds token ids, not text
    :param missing: subsets that the dataset does not have
    """
    names = {_key(source): name for source, name in named_sources(run)}
    sections = []
    for section, sources in (("data.train", run.data.train), ("data.cooldown", run.data.cooldown)):
        for source in sources:
            if names[_key(source)] in missing:
                continue
            lines = [
                f"[[{section}]]",
                f'dataset = "{dataset}"',
                f'subset = "{names[_key(source)]}"',
            ]
            lines += ["tokenized = true"] if tokenized else []
            lines += [f'revision = "{revision}"'] if revision else []
            lines += [f"weight = {source.weight}"] if source.weight != Source(dataset="any").weight else []
            sections.append("\n".join(lines))
    return "\n\n".join(sections)


def _described(name: str, made: "Progress") -> list[str]:
    """What was made of a source, in lines."""
    left_out = f"; {count(made.bad_rows, 'bad row')} left out" if made.bad_rows else ""
    first = f"{name}: {count(made.documents, 'document')}, {count(made.tokens, 'token')}{left_out}"
    return [first, *lost_files(name, made)]


def lost_files(name: str, reached: "Reached") -> list[str]:
    """What of a source could not be read, in lines."""
    if not reached.lost:
        return []
    first = f"{name}: {count(len(reached.lost), 'file')} could not be read, or not to the end:"
    return [first, *(f"  {path}: {reason}" for path, reason in reached.lost.items())]


def _key(source: Source) -> tuple[str | None, ...]:
    """What of a source decides which texts it holds."""
    return source.dataset, source.subset, source.revision, source.split, source.column


def named_sources(run: RunConfig) -> list[tuple[Source, str]]:
    """The different sources, each with a name by which viewers know it again: `wikipedia-20231101.bn`."""
    sources = dict[tuple[str | None, ...], Source]()
    for source in (*run.data.train, *run.data.cooldown):
        sources.setdefault(_key(source), source)
    plain = ["-".join(filter(None, (public_name(each.dataset), each.subset))) for each in sources.values()]
    names = [re.sub(r"[^\w.-]+", "-", name.rpartition("/")[2], flags=re.ASCII) for name in plain]
    unique = [name if names.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(names)]
    return list(zip(sources.values(), unique, strict=True))
