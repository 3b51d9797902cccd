"""What a run's names of data, tokenizers and models mean on one machine. A name from others is never a path here."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import HUB_REPOSITORY, HUB_REVISION, public_name
from dedloc_kit.config.task import TaskConfig
from dedloc_kit.errors import UserError
from dedloc_kit.machine.paths import expanded

ON_HUB = rf"({HUB_REPOSITORY})(?:@({HUB_REVISION}))?"
"""The pattern of `OWNER/NAME` and `OWNER/NAME@REVISION`."""
HAVE_IT_HERE = "if you have a copy, name it with --data NAME=PATH"


def names_of(run: RunConfig) -> list[str]:
    """Every name in the configuration that stands for data, a tokenizer or a model."""
    found: list[str] = []
    run.renamed(lambda name: (found.append(name), name)[1])  # type: ignore[func-returns-value]
    return found


def names_local_files(run: RunConfig) -> bool:
    """Does a volunteer have to read what lies on the organizer's machine alone?"""
    task = run.task.options
    organizers = {"pictures", "init_from"} if "tokenizer" in task else {"pictures"}
    read = TaskConfig(name=run.task.name, **{key: value for key, value in task.items() if key not in organizers})
    return any(not re.fullmatch(ON_HUB, name) for name in names_of(run.model_copy(update={"task": read})))


def volunteers_read(run: RunConfig) -> dict[tuple[str, str | None], Literal["model", "dataset"]]:
    """The repositories on the Hub that every volunteer reads, each with its revision, and their kinds."""
    found: dict[tuple[str, str | None], Literal["model", "dataset"]] = {}
    for source in (*run.data.train, *run.data.cooldown):
        if re.fullmatch(HUB_REPOSITORY, source.place):
            found[source.place, source.revision] = "dataset"
    spelling = run.task.options.get("tokenizer", run.task.options.get("init_from"))
    if isinstance(spelling, str) and (named := re.fullmatch(ON_HUB, spelling)):
        found[named[1], named[2]] = "model"
    return found


def published(run: RunConfig) -> dict[str, Any]:
    """The configuration as plain values for others: of a path only its last part. The run keeps its id."""
    return run.renamed(public_name).model_dump(mode="json")


def check_names(run: RunConfig) -> None:
    """Raise UserError if a run from the network names anything but what is on the Hub, or bare names."""
    for name in names_of(run):
        if not re.fullmatch(ON_HUB, name) and (re.search(r"[/\\]|::|^~", name) or name in (".", "..")):
            raise UserError(
                f"it names {name!r:.80}, which is neither OWNER/NAME of the Hub nor a bare name, and no run may name "
                "files of another machine"
            )


def local_copies(run: RunConfig) -> dict[str, Path]:
    """Where the local things of a run of one's own are, by the names that others know.

    Raises UserError if one name stands for several.
    """
    places: dict[str, Path] = {}
    for name in names_of(run):
        if Path(name).is_absolute() and places.setdefault(public_name(name), Path(name)) != Path(name):
            raise UserError(
                f"{name} and {places[public_name(name)]} have the same name, by which others know them; rename one"
            )
    for name in names_of(run):
        if not Path(name).is_absolute() and _last(name) in places:
            raise UserError(f"{places[_last(name)]} and {name} have the same name; rename the one on this machine")
    return places


def with_copies(run: RunConfig, copies: Mapping[str, Path]) -> RunConfig:
    """The run, which reads this machine's own copies of what it names; what all share stays as it is.

    :param copies: by the last part of the run's names, see `PeerConfig.data`

    Raises UserError if the run names nothing of that kind.
    """
    names = sorted(set(names_of(run)))
    for key in copies:
        if all(_last(name) != key for name in names):
            known = ", ".join(sorted({_last(name) for name in names}))
            raise UserError(f"--data {key}=...: this run reads nothing of this name; it reads: {known}")
    found = {name: str(expanded(copies[_last(name)]).absolute()) for name in names if _last(name) in copies}
    data = run.data
    changes = {
        "train": tuple(source.copied_at(found.get(source.dataset)) for source in data.train),
        "cooldown": tuple(source.copied_at(found.get(source.dataset)) for source in data.cooldown),
        "evaluation": data.evaluation and data.evaluation.copied_at(found.get(data.evaluation.dataset)),
    }
    return run.model_copy(update={"data": data.model_copy(update=changes), "task": run.task.copied_at(found)})


def _last(name: str) -> str:
    """The last part of a name, without a revision."""
    on_hub = re.fullmatch(ON_HUB, name)
    return (on_hub[1] if on_hub else name).rpartition("/")[2]
