"""Pictures that the tests draw themselves: stripes of several widths and directions, in any colours."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from PIL import Image
from pyarrow import parquet

CLASSES = 4


def draw(number: int, size: int = 32) -> Image.Image:
    """Picture `number` of class `number % CLASSES`: the class is the direction of its stripes."""
    generator = np.random.default_rng(number)
    angle = np.pi * (number % CLASSES) / CLASSES
    y, x = np.mgrid[:size, :size] / size
    wave = np.sin(generator.uniform(15, 30) * (x * np.cos(angle) + y * np.sin(angle)) + generator.uniform(0, 6))
    light, dark = generator.uniform(0, 255, (2, 3))
    mixed = (wave[..., None] + 1) / 2 * light + (1 - wave[..., None]) / 2 * dark
    return Image.fromarray(mixed.astype(np.uint8))


def encoded(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def write_pictures(path: Path, files: list[bytes | None], labels: list[Any]) -> None:
    """A Parquet shard as the Hub holds pictures."""
    images = pyarrow.array(
        [{"bytes": data, "path": "/etc/passwd"} for data in files],
        pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())]),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    # What `datasets` writes: that the column holds pictures, which it would decode when reading.
    kind = "int64" if isinstance(labels[0], int) else "string"
    features = {"image": {"_type": "Image"}, "label": {"dtype": kind, "_type": "Value"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pyarrow.table({"image": images, "label": labels})
    parquet.write_table(table.replace_schema_metadata(metadata), path)


def striped(folder: Path, number: int = 64, split: str = "train") -> Path:
    """A dataset of so many striped pictures in a folder; splits hold different ones."""
    first = 0 if split == "train" else 100_000
    numbers = range(first, first + number)
    files: list[bytes | None] = [encoded(draw(each)) for each in numbers]
    write_pictures(folder / f"{split}-00000-of-00001.parquet", files, [each % CLASSES for each in numbers])
    return folder
