"""What is learned, and from which data: the sections `task` and `data`."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, PrivateAttr, field_validator

from dedloc_kit.config.section import HUB_REVISION, LATER, PLACE, PositiveFloat, Section

SEQUENCE_LENGTH = 512
"""Tokens of a text task's samples, if `task.sequence_length` does not say otherwise."""


class Source(Section):
    """One stream of documents or pictures."""

    dataset: Annotated[str, Field(min_length=1), PLACE]
    """A dataset on the Hub (`owner/name`) or a local folder or file of Parquet, JSON lines or text."""
    subset: str | None = None
    """The Hub dataset's configuration, such as `20231101.bn`."""
    revision: str | None = None
    """A commit of the Hub dataset, so that every volunteer reads the same data."""
    split: str = "train"
    column: str = "text"
    """The column that holds the text (or the picture). Of the task `chat` the one with conversations, by default
    `messages`, or those of prompts and responses, as `prompt,response`."""
    tokenized: bool = False
    """The dataset holds token ids instead of text, as `dedloc prepare tokens RUN.toml` writes them."""
    weight: PositiveFloat = 1.0
    """The share of this source in the mixture, relative to the other weights: in tokens if all sources hold tokens,
    else in bytes of their files."""
    _copy: str | None = PrivateAttr(default=None)

    @field_validator("subset")
    @classmethod
    def _subset_is_one_name(cls, subset: str | None) -> str | None:
        """Of a local dataset it is a folder in it, and nothing outside."""
        if subset is not None and (subset in (".", "..") or re.search(r"[/\\]|://|::", subset)):
            raise ValueError("subset must be one name, without slashes")
        return subset

    @field_validator("revision")
    @classmethod
    def _revision_is_one(cls, revision: str | None) -> str | None:
        if revision is not None and not re.fullmatch(HUB_REVISION, revision):
            raise ValueError("revision must be a commit, or a branch or tag")
        return revision

    @property
    def place(self) -> str:
        """Where this machine reads it: an absolute path if it lies here, else the name on the Hub."""
        return self._copy or self.dataset

    def copied_at(self, path: str | None) -> "Source":
        """The same, which this machine reads at that path of its own."""
        source = self.model_copy()
        source._copy = path
        return source


class DataConfig(Section):
    train: tuple[Source, ...] = Field(min_length=1)
    evaluation: Source | None = None
    """Held-out data for the coordinator's evaluation loss."""
    cooldown: Annotated[tuple[Source, ...], LATER] = ()
    """With the schedule `warmup-stable-decay`: what is read in place of `train` while the rate falls."""


class TaskConfig(Section):
    """What is learned. The keys beside `name` belong to the task, which checks them itself."""

    model_config = ConfigDict(extra="allow")

    name: str
    """A module of `dedloc_kit.learning.tasks`, such as `albert`."""
    _PLACES: ClassVar[tuple[str, ...]] = ("tokenizer", "init_from", "pictures.model")
    _copies: Mapping[str, str] = PrivateAttr(default={})

    @property
    def options(self) -> dict[str, Any]:
        """The task's own keys, as written in the file, but that of which this machine has a copy is named by its path.

        So a path is one of this machine, and every other name one on the Hub.
        """
        return dict(self.renamed(lambda name: self._copies.get(name, name)).model_extra or {})

    def copied_at(self, copies: Mapping[str, str]) -> "TaskConfig":
        """The same, which this machine reads where `copies` says, by the names in the file."""
        task = self.model_copy()
        task._copies = copies
        return task
