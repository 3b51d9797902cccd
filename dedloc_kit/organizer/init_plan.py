"""What an organizer says to `dedloc init`: the recipe, and which data is learned from and held out."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import HUB_REPOSITORY
from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.shards import loader_of
from dedloc_kit.learning.data.sources.splits import files_in, split_of
from dedloc_kit.machine.paths import exists, expanded

SOURCE = "DATASET[:SUBSET[:SPLIT]]"
HELD_OUT = "test"
"""The split that is held out where none is named."""


@dataclass
class Plan:
    """What the organizer says on the command line."""

    name: str
    recipe: str | None
    datasets: list[str]
    """Each as `DATASET[:SUBSET[:SPLIT]][=WEIGHT]`."""
    evaluation: str | None
    language: str | None
    """One or, after commas, several; without datasets it says which."""
    about: str | None
    start: str | None = None
    """The model to go on from, `OWNER/NAME@COMMIT`, for a recipe that does."""


def draws(base: RunConfig) -> bool:
    """Whether it learns from codes of pictures, which are made of what the organizer names."""
    return "pictures" in base.task.options


def of_text(base: RunConfig) -> bool:
    """Whether it has a language."""
    return "language" in base.task.options or isinstance(base.task.options.get("tokenizer"), str)


def learns_text(base: RunConfig) -> bool:
    """Whether it learns from any text, rather than from pictures or conversations."""
    return of_text(base) and not draws(base) and base.task.name != "chat"


def parse_source(text: str, column: str, folder: Path, split: str | None = None) -> Source:
    """The source `DATASET[:SUBSET[:SPLIT]][=WEIGHT]`; a local dataset's path is written as seen from `folder`.

    Raises UserError with what is wrong.

    :param split: where the text names none, unless it is a file or a folder that has no such split
    """
    where, equals, after = text.rpartition("=")
    weighted = bool(equals) and re.fullmatch(r"\d*\.?\d+", after) is not None
    dataset, subset, named, *more = [*(where if weighted else text).split(":"), "", ""]
    if not dataset or any(more) or "=" in subset + named:
        raise UserError(f"'{text}' is no dataset; write {SOURCE}=WEIGHT, such as wikimedia/wikipedia:20231101.bn=0.23")
    values: dict[str, object] = {"dataset": dataset, "column": column}
    if exists(place := expanded(dataset)):
        values["dataset"] = os.path.relpath(place, folder)
        split = split if split in _splits_in(place / subset) else None
    elif re.fullmatch(HUB_REPOSITORY, dataset) is None:
        raise UserError(f"there is no folder or file {dataset}, and on the Hub a dataset is called OWNER/NAME")
    values |= {key: value for key, value in (("subset", subset), ("split", named or split)) if value}
    if weighted:
        values["weight"] = float(after)
    try:
        return Source.model_validate(values)
    except ValidationError:
        raise UserError(f"the weight of '{text}' must be more than 0") from None


def source_for(base: RunConfig, text: str, folder: Path, split: str | None = None) -> Source:
    """As `parse_source`, for a recipe."""
    column = base.data.train[0].column
    column = "messages" if "," in column else column  # what a recipe's own dataset calls its prompts says nothing
    source = parse_source(text, "image" if draws(base) else column, folder, split)
    if draws(base) and source.weight != 1:
        raise UserError(f"every picture is taken once, so '{text}' can have no weight; leave ={source.weight:g} out")
    return source


def held_out(base: RunConfig, plan: Plan, sources: list[Source], folder: Path) -> Source | None:
    """The named data, or else that of the first folder to train on that has some."""
    if plan.evaluation or draws(base):
        return source_for(base, plan.evaluation, folder, HELD_OUT) if plan.evaluation else None
    for source in sources:
        if HELD_OUT in _splits_in(Path(os.path.normpath(folder / source.dataset)) / (source.subset or "")):
            return source.model_copy(update={"split": HELD_OUT, "weight": 1.0})
    return None


def _splits_in(folder: Path) -> set[str]:
    """Of the data in a folder; nothing if it is none."""
    return {split_of(path.relative_to(folder)) for path in files_in(folder) if loader_of(path)}
