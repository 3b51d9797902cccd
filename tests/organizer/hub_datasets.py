"""FineWeb-2, FineWeb, Wikipedia and HPLT on a loopback Hub, each laid out as it is on the Hub, with a little text."""

import io
from collections.abc import Iterable

import numpy as np
import pyarrow
from pyarrow import parquet

from dedloc_kit.config.task import Source
from tests.loopback_hub import LoopbackHub

# How each dataset's card names the files of a subset's split, and one of these.
_LAYOUTS = {
    "HuggingFaceFW/fineweb-2": ("data/{subset}/{split}/*", "data/{subset}/{split}/000_00000.parquet"),
    "HuggingFaceFW/fineweb": ("{sample}/*", "{sample}/000_00000.parquet"),
    "wikimedia/wikipedia": ("{subset}/train-*", "{subset}/train-00000-of-00001.parquet"),
    "HPLT/HPLT2.0_cleaned": ("{subset}/train-*", "{subset}/train-00000-of-00001.parquet"),
}
ROWS = 40
_SYLLABLES = [first + second for first in "bdfghjklmnprstvw" for second in "aeiou"]


def put_on_hub(hub: LoopbackHub, sources: Iterable[Source]) -> None:
    """Make the datasets with these subsets and splits, and in each of them one that is not asked for."""
    wanted: dict[str, dict[str, set[str]]] = {}
    for source in sources:
        assert source.subset is not None
        wanted.setdefault(source.dataset, {}).setdefault(source.subset, {"train"}).add(source.split)
    for dataset, subsets in wanted.items():
        files, card = {}, ["---", "configs:"]
        for subset, splits in {"aaa_Latn": {"train"}, **subsets}.items():
            card += [f"- config_name: {subset}", "  data_files:"]
            for split in sorted(splits):
                names = {"subset": subset, "split": split, "sample": subset.replace("-", "/")}
                pattern, file = (each.format(**names) for each in _LAYOUTS[dataset])
                card += [f"  - split: {split}", f"    path: {pattern}"]
                files[file] = _parquet(dataset, subset, split)
        hub.commits[f"datasets/{dataset}"] = [{"README.md": "\n".join([*card, "---", ""]).encode(), **files}]


def _parquet(dataset: str, subset: str, split: str) -> bytes:
    words = np.random.default_rng(0)
    texts = [
        ". ".join([f"{dataset} {subset} {split} {number}", *(_sentence(words) for _ in range(20))])
        for number in range(ROWS)
    ]
    table = pyarrow.table({"id": [str(row) for row in range(ROWS)], "text": texts, "url": ["https://a.example"] * ROWS})
    written = io.BytesIO()
    parquet.write_table(table, written)
    return written.getvalue()


def _sentence(generator: np.random.Generator) -> str:
    """Of so many different words that a vocabulary can be made of them."""
    return " ".join("".join(generator.choice(_SYLLABLES, generator.integers(1, 4))) for _ in range(8))
