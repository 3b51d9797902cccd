"""The labelled samples that a model is fine-tuned and scored on."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dedloc_kit.config.loading import local
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.classes import named, names_of
from dedloc_kit.learning.data.sources.formats import BadRow
from dedloc_kit.learning.data.sources.patience import Warn, one_line
from dedloc_kit.learning.data.sources.reading import read_rows
from dedloc_kit.learning.data.sources.shards import Shard, find_splits
from dedloc_kit.learning.evaluate.settings import DATASETS, LikelihoodSettings, Settings

_VALIDATION_NAMES = ("validation", "valid", "val", "dev")
_HELD_OUT = ("test", *_VALIDATION_NAMES, "train")
"""Where samples that nothing is trained on are looked for, the best place first."""


@dataclass(frozen=True)
class Example:
    """One labelled sample: words with a tag each, or a text with one class."""

    text: Any
    label: Any


Check = Callable[[Any, Any], Example | None]
"""Makes an example of what the two columns hold, or none if it is empty; raises ValueError with what is wrong."""


@dataclass(frozen=True)
class Dataset:
    train: list[Example]
    """None of its texts occurs in the two others, so that nobody is scored on what they were trained on."""
    validation: list[Example]
    """Empty if the dataset has no such split."""
    test: list[Example]
    repeated: int
    """Samples that were left out of the training split because their text occurs in the two others."""


def load_dataset(settings: Settings, check: Check, warn: Warn) -> Dataset:
    """Read the splits `train`, `validation` (if there is one) and `test`.

    Raises UserError if there is no such dataset, split or column, and if a row is not what the task needs.
    """
    source, label_column = source_of(settings)
    splits = find_splits(source, warn)
    for split in ("train", "test"):
        if split not in splits:
            raise UserError(
                f"the dataset {source.dataset} has no split '{split}', only {', '.join(sorted(splits))}; "
                "choose a dataset with a train and a test split"
            )
    validation = next((name for name in _VALIDATION_NAMES if name in splits), None)

    def read(split: str) -> list[Example]:
        return read_examples(source, label_column, split, splits[split], check, warn)

    train, test = read("train"), read("test")
    held_out = test + (read(validation) if validation else [])
    seen = {_key(example.text) for example in held_out}
    kept = [example for example in train if _key(example.text) not in seen]
    if not kept:
        raise UserError(f"every training sample of {source.dataset} is in its test split; choose another dataset")
    return Dataset(some(kept, settings.train_samples), held_out[len(test) :], test, repeated=len(train) - len(kept))


def source_of(settings: Settings | LikelihoodSettings) -> tuple[Source, str]:
    """Where labelled samples are, and the column of the labels; raises UserError if the default needs its part."""
    defaults = DATASETS[settings.task]
    if settings.dataset is None and settings.subset is None:
        raise UserError(
            f"name the part of {defaults.dataset} with --subset, such as {defaults.subset}, or give another --dataset"
        )
    source = Source(
        dataset=defaults.dataset if settings.dataset is None else local(settings.dataset, Path()),
        subset=settings.subset,
        column=settings.column or defaults.column,
    )
    return source, settings.label_column or defaults.label_column


def held_out_split(source: Source, warn: Warn) -> tuple[str, tuple[Shard, ...]]:
    """The split to score on, and its files; raises UserError if the dataset has none of the usual ones."""
    splits = find_splits(source, warn)
    for split in _HELD_OUT:
        if split in splits:
            return split, splits[split]
    raise UserError(
        f"the dataset {source.dataset} has no split to score on, only {', '.join(sorted(splits)) or 'none at all'}; "
        f"choose one that has {' or '.join(_HELD_OUT)}"
    )


def _key(text: Any) -> Any:
    return text if isinstance(text, str) else tuple(text)


def some(examples: list[Example], count: int | None) -> list[Example]:
    """So many of them, drawn at random, always the same; all by default."""
    if count is None or count >= len(examples):
        return examples
    generator = np.random.default_rng(seed_of("evaluation", "train samples"))
    return [examples[index] for index in generator.choice(len(examples), size=count, replace=False)]


def read_examples(
    source: Source, label_column: str, split: str, shards: Sequence[Shard], check: Check, warn: Warn
) -> list[Example]:
    """The samples of a split; raises UserError if there is none, and for a row that is not what the task needs."""
    examples = list(_examples(source, label_column, split, shards, check, warn))
    if not examples:
        raise UserError(f"the split '{split}' of {source.dataset} is empty; choose another dataset")
    return examples


def _examples(
    source: Source, label_column: str, split: str, shards: Sequence[Shard], check: Check, warn: Warn
) -> Iterator[Example]:
    for shard in shards:
        try:
            names = names_of(source, shard, label_column, warn)
            for number, row in read_rows(shard, (source.column, label_column), warn):
                try:
                    if isinstance(row, BadRow):
                        raise ValueError(row.reason)
                    example = check(row[source.column], named(row[label_column], names))
                except ValueError as error:
                    raise UserError(
                        f"{shard.path}, row {number} (columns {source.column}, {label_column}): {error}"
                    ) from None
                if example is not None:
                    yield example
        except UserError:
            raise
        except Exception as error:  # whatever a broken file makes its decoder raise
            raise UserError(f"the split '{split}': {shard.path} cannot be read ({one_line(error)})") from None
