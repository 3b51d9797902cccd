"""What is learned, and from which data: the sections `task` and `data`."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, PrivateAttr, field_validator

from dedloc_kit.config.section import HUB_REVISION, LATER, PLACE, PositiveFloat, Section

SEQUENCE_LENGTH = 512
"""Tokens of a text task's samples, if `task.sequence_length` does not say otherwise."""


class Source(Section):
    """One dataset, as a table `[[data.train]]`, `[data.evaluation]` or `[[data.cooldown]]`."""

    dataset: Annotated[str, Field(min_length=1), PLACE]
    """A dataset on the Hub (`OWNER/NAME`), or a local folder or file of Parquet, JSON lines or text."""
    subset: str | None = None
    """The subset (configuration) of the dataset, such as `20231101.bn`."""
    revision: str | None = None
    """A commit, branch or tag of the dataset on the Hub; with a commit every volunteer reads the same."""
    split: str = "train"
    """The split of the dataset."""
    column: str = "text"
    """The column with the text or the picture. The task `chat` reads `messages` by default, or two columns, as
    `prompt,response`."""
    tokenized: bool = False
    """Whether the dataset holds token ids instead of text, as `dedloc prepare tokens` writes them."""
    weight: PositiveFloat = 1.0
    """Weight of this source in the mixture, relative to the others: by tokens if all sources hold tokens, else by
    bytes."""
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
    """What the run learns from, as tables `[[data.train]]`, `[data.evaluation]` and `[[data.cooldown]]`."""

    train: tuple[Source, ...] = Field(min_length=1)
    """The training data: a mixture of one or more sources."""
    evaluation: Source | None = None
    """Held-out data, on which the coordinator measures the loss."""
    cooldown: Annotated[tuple[Source, ...], LATER] = ()
    """The mixture that replaces `train` while the learning rate falls, with the schedule `warmup-stable-decay`."""


class TaskConfig(Section):
    """What is learned. The other keys belong to the task, which checks them itself."""

    model_config = ConfigDict(extra="allow")

    name: str
    """The task: `albert`, `causal`, `chat`, `encoder`, `span-corruption`, `swav`, `text-to-image`, or one of the module
    that each peer names with `--task-module`."""
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
