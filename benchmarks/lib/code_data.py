"""`python -m benchmarks.data --task text-to-image`: samples per second, read as codes or encoded from pictures."""

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from PIL import Image
from pyarrow import parquet

from benchmarks.lib.picture_training import Training, architecture_of
from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import Source
from dedloc_kit.learning.data.pictures.codes import Captioned, PictureCodes, read_code_shard
from dedloc_kit.learning.data.pictures.images import each_decoded
from dedloc_kit.learning.data.sources.shards import find_shards
from dedloc_kit.learning.data.sources.stream import in_order
from dedloc_kit.learning.data.text.tokens import vocabulary_hash
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer
from dedloc_kit.learning.models.picture_model.autoencoder import Autoencoder
from dedloc_kit.learning.models.picture_model.captioned import PictureSource, captioned
from dedloc_kit.learning.models.picture_model.encoding import Encoder
from dedloc_kit.learning.models.picture_model.files import completed, pictures_of
from dedloc_kit.learning.models.picture_model.loading import load_picture_model, save
from dedloc_kit.learning.models.picture_model.settings import Images
from dedloc_kit.organizer.images import prepare_caption_tokenizer, prepare_code_shards

_ROW = "{:26}{:>14}{:>14}{:>24}{:>10}"
SETTINGS = {"32 px, 8 x 8 of 256": (256, 8, 32, 2000), "256 px, 32 x 32 of 8,192": (8192, 32, 256, 128)}
"""Codes, side, size, and how many pictures are drawn; the second is the size of the large recipe."""


def coded(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    print(_ROW.format("", "way", "samples/s", "(each)", "ratio"))
    found: dict[str, Any] = {}
    for name, (codes, side, size, number) in SETTINGS.items():
        with tempfile.TemporaryDirectory() as temporary:
            run, images = _prepared(Path(temporary), codes, side, size, number)
            rates, sizes = _measured(run, images, Path(temporary) / "codes", options)
        speed = {way: statistics.median(each) for way, each in rates.items()}
        for way, each in rates.items():
            row = f"{speed[way]:,.0f}", f"{min(each):,.0f}..{max(each):,.0f}", f"{speed[way] / speed['encoded']:.0f} x"
            print(_ROW.format(name, way, *row), flush=True)
        written, bare = sizes
        print(f"{'':26}a sample takes {written:.0f} bytes, its caption and codes {bare:.0f}: {written / bare:.2f} x")
        found[name] = {"ratio": speed["read"] / speed["encoded"], "bytes": written, "bare": bare, "rates": rates}
    if options.json:
        ratios = [each["ratio"] for each in found.values()]
        size_ratios = [each["bytes"] / each["bare"] for each in found.values()]
        options.json.write_text(json.dumps({"ratio": min(ratios), "size": max(size_ratios), "each": found}) + "\n")
    return 0


def _prepared(folder: Path, codes: int, side: int, size: int, number: int) -> tuple[RunConfig, Images]:
    """A run with pictures of its own, an untrained picture model (it takes as long), and its shards."""
    print(f"preparing: {number} pictures of {size} pixels and their codes", file=sys.stderr)
    generator = np.random.default_rng(0)
    words = ["".join(generator.choice(list("aeioumnrst"), 5)) for _ in range(2000)]
    table = {
        "image": [_drawn(generator, size) for _ in range(number)],
        "caption": [" ".join(generator.choice(words, generator.integers(3, 15))) for _ in range(number)],
    }
    (folder / "pictures").mkdir()
    parquet.write_table(pyarrow.table(table), folder / "pictures" / "train-00000-of-00001.parquet")
    images = Images(sources=(PictureSource(dataset=str(folder / "pictures")),))
    pictures = {"model": str(folder / "model"), "codes": codes, "side": side, "size": size}
    task = {"name": "text-to-image", "tokenizer": str(folder / "tokenizer"), "vocab_size": 2000, "pictures": pictures}
    data = {"train": [{"dataset": str(folder / "codes"), "tokenized": True}]}
    run = parse_run({"name": "benchmark", "global_batch": 8, "task": task, "data": data})
    architecture = architecture_of(pictures_of(run), Training())
    (folder / "model").mkdir()
    save(Autoencoder(architecture), architecture, folder / "model")
    run = completed(run)
    prepare_caption_tokenizer(run, images)
    prepare_code_shards(run, images, folder / "codes")
    return run, images


def _drawn(generator: np.random.Generator, size: int) -> bytes:
    """Large patches of colour, as a file of some kilobytes."""
    patches = Image.fromarray(generator.integers(0, 256, (8, 8, 3), np.uint8))
    file = io.BytesIO()
    patches.resize((size, size), Image.Resampling.BICUBIC).save(file, "PNG" if size < 64 else "JPEG")
    return file.getvalue()


def _measured(
    run: RunConfig, images: Images, shards: Path, options: argparse.Namespace
) -> tuple[dict[str, list[float]], tuple[float, float]]:
    """Samples per second of each way, and bytes of a sample: in its file, and of its caption and codes."""
    pictures, tokenizer = pictures_of(run), load_tokenizer(str(run.task.options["tokenizer"]))
    encoder = Encoder(load_picture_model(pictures), tokenizer, images.caption_tokens, Counter())
    source = Source(dataset=str(shards), tokenized=True)
    (shard,) = find_shards(source, print)

    def encoded() -> Iterator[Captioned]:
        read = captioned(images.sources, images, False, Counter())
        files = in_order(images.sources[0].source, read, warn=print)
        return encoder.samples(each_decoded(files, pictures.size, on_white=True))

    def read() -> Iterator[Captioned]:
        return read_code_shard(shard, pictures, vocabulary_hash(tokenizer), len(tokenizer), print)

    ways: dict[str, Callable[[], Iterator[Captioned]]] = {"encoded": encoded, "read": read}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(options.repeats):
        for way, samples in ways.items():
            rates[way].append(_rate(samples, options.seconds))
            print(f"{number + 1} of {options.repeats}: {way}", file=sys.stderr)
    found = list(read())
    return rates, (Path(shard.path).stat().st_size / len(found), _bare(found, pictures))


def _bare(samples: list[Captioned], pictures: PictureCodes) -> float:
    """Bytes of a caption and its codes, as few as whole bytes allow."""
    code = 1 if pictures.codes <= 256 else 2
    return statistics.mean(2 * len(sample.caption) + code * len(sample.codes) for sample in samples)


def _rate(samples: Callable[[], Iterator[Captioned]], seconds: float) -> float:
    """Samples per second of the processor, in batches as a task stacks them, pass after pass."""
    count, began, stream = 0, time.process_time(), samples()
    while (spent := time.process_time() - began) < seconds:
        some = list(islice(stream, 64))
        count += len(np.stack([sample.codes for sample in some]).astype(np.int64)) if some else 0
        stream = stream if some else samples()
    return count / spent
