"""How fast are copies found beside bare rensa, how many, and in how much memory?

Documents are made of words by Zipf's law, and each tenth has a copy with some words changed. From texts to the list of
copies, in turns on one core, in the processor's seconds:

- *ours*: `prepare corpus` without the rules: sketches written to the disk, keys compared, candidates verified;
- *rensa*: `RMinHashDeduplicator` on the same runs of five words;
- *rensa, single words*: the same on `text.split()`, as its README has it: it cannot tell in which order words stand.

*Recall* is of planted pairs whose Jaccard similarity, over the runs of five words themselves, is 0.8 or more.
*Precision* is the share of removed documents that are planted copies of 0.6 or more.

The memory for ten million documents is extrapolated from two numbers of documents and two of keys that are compared at
once; that of rensa's index from what the process grows by.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from rensa import RMinHashDeduplicator

from dedloc_kit.organizer.corpus.duplicates import (
    KEYS_AT_ONCE,
    Duplicates,
    SketchFiles,
    find_duplicates,
    write_sketches,
)
from dedloc_kit.organizer.corpus.reading import BATCH, batches
from dedloc_kit.organizer.corpus.sketch import KEYS, SHINGLE, Sketches, sketches_of
from dedloc_kit.organizer.corpus.words import words_of

LARGE = 10_000_000
_ROW = "{:22}{:>14}{:>18}{:>9}{:>9}{:>11}"


@dataclass(frozen=True)
class Planted:
    """Documents, and those of them that are copies, with how similar each is to its original."""

    texts: list[str]
    similarities: dict[int, float]


def main() -> int:
    options = _parse()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    planted = plant(options.documents, options.words)
    words_of(planted.texts[:100])  # makes its tables
    ways: dict[str, Callable[[list[str]], list[bool]]] = {
        "ours": ours,
        "rensa": lambda texts: bare(texts, runs),
        "rensa, single words": lambda texts: bare(texts, str.split),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    found = {}
    for turn in range(options.repeats):
        for name, way in ways.items():
            began = time.process_time()
            found[name] = way(planted.texts)
            rates[name].append(len(planted.texts) / (time.process_time() - began))
            print(f"{turn + 1} of {options.repeats}: {name}", file=sys.stderr)
    speed = {name: statistics.median(each) for name, each in rates.items()}
    quality = {name: judged(planted, stay) for name, stay in found.items()}
    print(_ROW.format("", "documents/s", "(each)", "ratio", "recall", "precision"))
    for name, each in rates.items():
        spread = f"{min(each):,.0f}..{max(each):,.0f}"
        ratio, (recall, precision) = speed[name] / speed["rensa"], quality[name]
        print(_ROW.format(name, f"{speed[name]:,.0f}", spread, f"{ratio:.2f} x", f"{recall:.3f}", f"{precision:.3f}"))
    memory = {"ours": memory_of_ours(options.documents), "rensa": memory_of_rensa(options.documents)}
    for name, size in memory.items():
        print(f"{name}: {size / 1e6:,.0f} MB for {LARGE:,} documents, extrapolated")
    if options.json:
        recall, precision = quality["ours"]
        ratios = {
            "ratio": speed["ours"] / speed["rensa"],
            "ratio_single_words": speed["ours"] / speed["rensa, single words"],
            "recall": recall,
            "precision": precision,
        }
        options.json.write_text(json.dumps({**ratios, "memory": memory, "documents_per_second": rates}) + "\n")
    return 0


def plant(number: int, length: int) -> Planted:
    """So many documents, and copies of a tenth of them at the end."""
    generator = np.random.default_rng(0)
    vocabulary = np.array([f"{word:x}" for word in generator.permutation(50_000)])
    documents = [vocabulary[np.minimum(generator.zipf(1.2, length), 50_000) - 1] for _ in range(number)]
    similarities = {}
    for original in range(0, number, 10):
        copy = documents[original].copy()
        copy[generator.integers(0, length, int(generator.integers(0, length // 25)))] = "changed"
        similarities[len(documents)] = _similarity(documents[original].tolist(), copy.tolist())
        documents.append(copy)
    return Planted([" ".join(document) for document in documents], similarities)


def _similarity(one: list[str], other: list[str]) -> float:
    sets = [set(zip(*(words[at:] for at in range(SHINGLE)), strict=False)) for words in (one, other)]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def judged(planted: Planted, stay: list[bool]) -> tuple[float, float]:
    """Recall and precision."""
    similar = [document for document, similarity in planted.similarities.items() if similarity >= 0.8]
    removed = [document for document, stays in enumerate(stay) if not stays]
    right = sum(planted.similarities.get(document, 0.0) >= 0.6 for document in removed)
    return sum(not stay[document] for document in similar) / len(similar), right / max(len(removed), 1)


def ours(texts: list[str]) -> list[bool]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "0"
        write_sketches(path, [sketches_of(batch, words_of(batch)) for batch in batches(texts, BATCH)])
        files, found = SketchFiles([path]), Duplicates.none(len(texts))
        for number in range(KEYS):
            find_duplicates(files, found, number)
    return [bool(stays) for stays in found.stay]


def bare(texts: list[str], tokens: Callable[[str], list[str]]) -> list[bool]:
    index = RMinHashDeduplicator(threshold=0.7, num_perm=128, use_lsh=True)
    return list(index.add_pairs((str(number), tokens(text)) for number, text in enumerate(texts)))


def runs(text: str) -> list[str]:
    words = text.lower().split()
    return list(map(" ".join, zip(*(words[at:] for at in range(SHINGLE)), strict=False)))


def memory_of_ours(number: int) -> float:
    """Bytes at most for ten million documents."""
    few, many, more_keys = (
        _peak(documents, at_once)
        for documents, at_once in ((number, number // 2), (4 * number, number // 2), (4 * number, number))
    )
    each, each_key = (many - few) / (3 * number), (more_keys - many) / (number / 2)
    rest = few - each * number - each_key * number / 2
    return rest + each * LARGE + each_key * KEYS_AT_ONCE


def _peak(documents: int, at_once: int) -> int:
    """Bytes that comparing one key of documents takes, each in a file with as many others."""
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / str(file) for file in range(10)]
        for path in paths:
            each = documents // len(paths)
            keys = np.broadcast_to(generator.integers(0, 2**63, each, dtype=np.uint64), (KEYS, each))
            shingles = np.zeros(each, dtype=np.uint32)
            write_sketches(path, [Sketches(keys, shingles, np.arange(1, each + 1))])
        tracemalloc.start()
        files = SketchFiles(paths)
        find_duplicates(files, Duplicates.none(int(files.starts[-1])), 0, at_once)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def memory_of_rensa(number: int) -> float:
    """Bytes for ten million documents."""
    process = psutil.Process()
    before = process.memory_info().rss
    index = RMinHashDeduplicator(threshold=0.7, num_perm=128, use_lsh=True)
    index.add_pairs((str(document), [str(document)]) for document in range(4 * number))
    return (process.memory_info().rss - before) / (4 * number) * LARGE


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--words", type=int, default=500, help="in each (default: 500)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
