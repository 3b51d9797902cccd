"""What is learned, and from which data: the sections `task` and `data`."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from dedloc_kit.run.section import LATER, PositiveFloat, PositiveInt, Section

NAMES_OF_FILES = ("tokenizer", "start")
"""Keys of `task` that name a folder or what is on the Hub; so does the key `model` of its table `pictures`."""
SEQUENCE_LENGTH = 512
"""Tokens of a text task's samples, if `task.sequence_length` does not say otherwise."""


class Source(Section):
    """One stream of documents or pictures."""

    dataset: str = Field(min_length=1)
    """A dataset on the Hub (`owner/name`) or a local folder or file of Parquet, JSON lines or text."""
    subset: str | None = None
    """The Hub dataset's configuration, such as `20231101.bn`."""
    revision: str | None = None
    """A commit of the Hub dataset, so that every volunteer reads the same data."""
    split: str = "train"
    column: str = "text"
    """The column that holds the text (or the picture)."""
    tokenized: bool = False
    """The dataset holds token ids instead of text, as `dedloc tokenizer RUN.toml --shards` writes them."""
    weight: PositiveFloat = 1.0
    """The share of this source in the mixture, relative to the other weights."""


class DataConfig(Section):
    train: tuple[Source, ...] = Field(min_length=1)
    evaluation: Source | None = None
    """Held-out data for the coordinator's evaluation loss."""
    decay: Annotated[tuple[Source, ...], LATER] = ()
    """With the schedule `warmup-stable-decay`: what is read in place of `train` while the rate falls."""
    shuffle_buffer: PositiveInt = 10_000
    """Documents from which the next one is drawn at random; more shuffles better and takes more memory."""


class TaskConfig(Section):
    """What is learned. The keys beside `name` belong to the task, which checks them itself."""

    model_config = ConfigDict(extra="allow")

    name: str
    """A module of `dedloc_kit.tasks`, such as `albert`."""

    @property
    def options(self) -> dict[str, Any]:
        """The task's own keys, as written in the file."""
        return dict(self.model_extra or {})
