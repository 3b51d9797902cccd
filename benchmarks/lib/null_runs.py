"""What is trained before a card that is not there: runs of the real size for batches, narrow ones for the model."""

import io
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from PIL import Image
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.lib.null_card import PinnedMemory
from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import Source
from dedloc_kit.learning.data.labels import PLACES, TARGETS
from dedloc_kit.learning.data.pictures.codes import Captioned, PictureCodes, write_code_shards
from dedloc_kit.learning.data.prefetching import Loader
from dedloc_kit.learning.data.tokenizers.bare import BareTokenizer
from dedloc_kit.learning.models.packed_attention import BOUNDS
from dedloc_kit.learning.task import Batch, Task, create_task
from dedloc_kit.learning.tasks.batches import batches_of
from dedloc_kit.organizer.prepare import prepare_tokenizer
from dedloc_kit.organizer.prepare_tokens import prepare_tokens, sources_toml

NARROW, WORDS, TOKENS = 64, 512, 16
"""The narrow model's width and vocabulary, and of how many tokens of a microbatch it computes."""
KEPT = "classifier_kept"
"""In a batch of ALBERT what has the model's width."""
_LABELS = 5
"""Of these tokens, where a task tells few of them."""
_SIDES = ((8192, 32), (64, 4))
"""Codes of the codebook and along each side of a picture, wide and narrow."""
_PICTURES, _CODES = 256, 2048
_PICTURES_AT_ONCE = 64
_READY = _AHEAD = 4
"""Batches."""

Few = Callable[[Batch], Batch]


@dataclass(frozen=True)
class Trained:
    """A task in its real size, and the narrow one that stands for its model."""

    task: Task
    """Makes and prepares the batches."""
    narrow: Task
    """Has the model and its loss."""
    few: Few
    """Of a prepared batch what the narrow model computes."""
    samples: int
    """Of a microbatch."""
    parameters: float
    """Of the real model."""


@dataclass(frozen=True)
class _Text:
    layers: int
    length: int
    parameters: float
    model: dict[str, Any]


_TEXTS = {
    "albert": _Text(24, 512, 18e6, {"embedding_size": 16, "num_attention_heads": 4}),
    "causal": _Text(16, 1024, 124e6, {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "encoder": _Text(22, 1024, 150e6, {"num_attention_heads": 4}),
}
"""ALBERT-large and the shapes of recipes/gpt and recipes/encoder."""
TASKS = (*_TEXTS, "swav", "text-to-image")


def trained(name: str, source: str, folder: Path, tokens: int, data: "Data") -> Trained:
    """The task of this name; what it reads and its tokenizers lie in the folder.

    :param source: as `--source` of `benchmarks.task`
    :param tokens: of a microbatch; of SwAV it is as in its recipe
    """
    if name == "swav":
        return _swav(folder)
    if name == "text-to-image":
        return _text_to_image(folder, tokens)
    return _text(name, source, folder, tokens, data)


@contextmanager
def batches_ahead(made: Trained, samples: int, source: str, memory: PinnedMemory) -> Iterator[Iterator[Batch]]:
    """Where the loop takes its batches from: without end, and made in the background. Each is copied to pinned memory,
    as the loader does where there is a GPU."""

    def make(_warn: Callable[[str], None]) -> Iterator[Batch]:
        batches = batches_here(made, samples)
        return cycle(list(islice(batches, _READY))) if source == "ready" else batches

    with Loader(make, print, _AHEAD, copy=memory.copy) as loader:
        yield loader.start()


def batches_here(made: Trained, samples: int) -> Iterator[Batch]:
    """The same, made by whoever takes them."""
    return batches_of(made.task.run, made.task, samples, 1, print)


@dataclass(frozen=True)
class Data:
    """Text to learn from."""

    datasets: tuple[str, ...]
    language: str
    vocabulary: int


def _text(name: str, source: str, folder: Path, tokens: int, data: Data) -> Trained:
    shape = _TEXTS[name]
    small = {"hidden_size": NARROW, "num_hidden_layers": shape.layers, "intermediate_size": 2 * NARROW, **shape.model}
    wide = _text_run(name, folder / f"tokenizer-{name}", data.vocabulary, shape.length, {}, data)
    narrow = _text_run(name, folder / f"narrow-{name}", WORDS, TOKENS, small, data)
    for run in (wide, narrow):
        prepare_tokenizer(run, 5_000_000)
    if source != "text":
        shards = folder / f"shards-{name}"
        prepare_tokens(wide, shards)
        wide = wide.model_copy(update={"data": wide.data.model_copy(update={"train": _sources(wide, shards)})})
    samples = max(1, tokens // shape.length)
    return Trained(create_task(wide), create_task(narrow), _few_tokens, samples, shape.parameters)


def _sources(run: RunConfig, shards: Path) -> tuple[Source, ...]:
    told = tomllib.loads(sources_toml(run, str(shards), None))["data"]["train"]
    return tuple(Source(**each) for each in told)


def _text_run(name: str, tokenizer: Path, vocabulary: int, length: int, model: dict[str, Any], data: Data) -> RunConfig:
    return parse_run(
        {
            "name": "bench",
            "global_batch": 4096,
            "task": {
                "name": name,
                "tokenizer": str(tokenizer),
                "vocab_size": vocabulary,
                "language": data.language,
                "sequence_length": length,
                "model": model,
            },
            "data": {"train": [{"dataset": dataset} for dataset in data.datasets]},
        }
    )


def _few_tokens(batch: Batch) -> Batch:
    """The first tokens of the first sample, as words of the narrow model, and as one document."""
    few = {}
    for name, values in batch.items():
        last = NARROW if name == KEPT else TOKENS
        few[name] = values[:1] if values.ndim == 1 else values[:1, ..., :last]
    few["input_ids"] = few["input_ids"] % WORDS
    labels = TOKENS
    if PLACES in batch:
        labels = min(_LABELS, len(batch[TARGETS]))
        few[PLACES] = torch.arange(1, labels + 1)
    few[TARGETS] = batch[TARGETS][:labels] % WORDS
    if BOUNDS in batch:
        few[BOUNDS] = torch.tensor([0, TOKENS], dtype=torch.int32)
        few["position_ids"] = torch.arange(TOKENS)[None]
    return few


def _swav(folder: Path) -> Trained:
    """Recipes/swav, from pictures like ImageNet's."""
    _write_pictures(folder / "pictures")
    model = {"hidden_sizes": (8, 8, 8, 8), "embedding_size": 8, "projection": (32, 16), "num_prototypes": 32}
    large = {"count": 2, "size": 32, "scale": (0.14, 1.0)}
    small = {"count": 6, "size": 16, "scale": (0.05, 0.14)}
    options = {"image_size": 32, "queue_length": 16, "global_crops": large, "local_crops": small, "model": model}
    narrow = create_task(_swav_run(folder, options))

    def few(batch: Batch) -> Batch:
        some = {name: batch[name][:2] for name in ("pictures", "large", "small")}
        return narrow.prepare({**some, "pictures": some["pictures"][:, :, :32, :32]})

    return Trained(create_task(_swav_run(folder, {})), narrow, few, _PICTURES_AT_ONCE, 28e6)


def _swav_run(folder: Path, options: dict[str, Any]) -> RunConfig:
    return parse_run(
        {
            "name": "bench",
            "global_batch": 4096,
            "microbatch": _PICTURES_AT_ONCE,
            "task": {"name": "swav", **options},
            "data": {"train": [{"dataset": str(folder / "pictures"), "column": "image"}]},
        }
    )


def _write_pictures(folder: Path) -> None:
    """JPEGs about as large as ImageNet's."""
    folder.mkdir()
    rows, generator = [], np.random.default_rng(0)
    for _ in range(_PICTURES):
        coarse = Image.fromarray(generator.integers(0, 255, (24, 32, 3), dtype=np.uint8))
        file = io.BytesIO()
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        rows.append({"bytes": file.getvalue(), "path": ""})
    images = pyarrow.array(rows, pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())]))
    parquet.write_table(pyarrow.table({"image": images}), folder / "train-00000-of-00001.parquet")


def _text_to_image(folder: Path, tokens: int) -> Trained:
    """Recipes/text-to-image, from shards of codes."""
    words = {f"word{number}": number for number in range(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="word0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (folder / "words").mkdir()
    tokenizer.save(str(folder / "words" / "tokenizer.json"))
    wide, small = (PictureCodes(model="pictures", codes=codes, side=side, size=8 * side) for codes, side in _SIDES)
    bare = BareTokenizer(str(folder / "words"))
    (folder / "codes").mkdir()
    write_code_shards(_drawn(wide), folder / "codes", wide, bare.vocabulary_hash, bare.tokens)
    model = {"hidden_size": NARROW, "num_attention_heads": 4}
    narrow = {"caption_length": 8, "pictures": small.model_dump(), "model": model}

    def few(batch: Batch) -> Batch:
        return {"captions": batch["captions"][:1, :8] % WORDS, "codes": batch["codes"][:1, :TOKENS] % small.codes}

    task, stand_in = (create_task(_codes_run(folder, each)) for each in ({"pictures": wide.model_dump()}, narrow))
    return Trained(task, stand_in, few, max(1, tokens // 2048), 125.5e6)  # a power of two of 1,279 places each


def _drawn(pictures: PictureCodes) -> Iterator[Captioned]:
    generator = np.random.default_rng(0)
    for _ in range(_CODES):
        caption, codes = generator.integers(WORDS, size=20), generator.integers(pictures.codes, size=pictures.length)
        yield Captioned(caption.astype(np.uint16), codes.astype(np.uint16))


def _codes_run(folder: Path, options: dict[str, Any]) -> RunConfig:
    return parse_run(
        {
            "name": "bench",
            "global_batch": 4096,
            "task": {"name": "text-to-image", "tokenizer": str(folder / "words"), **options},
            "data": {"train": [{"dataset": str(folder / "codes"), "tokenized": True}]},
        }
    )
