"""A corpus from two small sources, made whole or killed on the way; `python -m` kills itself at a step."""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.organizer.corpus.corpus import prepare_corpus
from dedloc_kit.organizer.corpus.report import Progress
from dedloc_kit.organizer.prepare_source import Sizes
from tests.organizer.corpus.prose import changed, prose

Item = TypeVar("Item")

SIZES = Sizes(file=4000, characters=1500, texts=5)
"""So that there are several parts."""


class Display:
    """Keeps what it is told, and ends the process, as a power cut would, after so many items of a step."""

    def __init__(self, step: str = "", items: int = 0) -> None:
        self.lines: list[str] = []
        self.counts = Counter[str]()
        """Items of each step."""
        self._step, self._items = step, items

    def each(self, name: str, items: Iterable[Item], total: int | None = None) -> Iterator[Item]:
        for item in items:
            if name == self._step and self.counts[name] == self._items:
                os.kill(os.getpid(), signal.SIGKILL)
            self.counts[name] += 1
            yield item

    def line(self, text: str) -> None:
        self.lines.append(text)


def written(path: Path, texts: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def run_in(folder: Path) -> RunConfig:
    """40 documents, 20 with copies of some and a held-out one, and what is no prose, with the held-out text."""
    generator = np.random.default_rng(0)
    first, second, held_out = ([prose(generator, 70) for _ in range(number)] for number in (40, 20, 3))
    near, bad = [changed(words, 1, generator) for words in first[:5]], "1\nToo short."
    one = [" ".join(words) for words in [*first, *near, first[7]]]
    two = [" ".join(words) for words in [first[8], *second, held_out[1]]]
    sources = [{"dataset": written(folder / "one.jsonl", [*one, bad])}, {"dataset": written(folder / "two.jsonl", two)}]
    evaluation = {"dataset": written(folder / "test.jsonl", [" ".join(words) for words in held_out])}
    task = {"name": "causal", "tokenizer": str(folder / "tokenizer"), "vocabulary": 300}
    data = {"train": sources, "evaluation": evaluation}
    return parse_run({"name": "tiny", "global_batch": 8, "task": task, "data": data})


def make(run: RunConfig, folder: Path, display: Display, *languages: str) -> Progress:
    return prepare_corpus(run, folder, languages, display, SIZES)


if __name__ == "__main__":
    make(run_in(Path(sys.argv[1])), Path(sys.argv[2]), Display(sys.argv[3], int(sys.argv[4])))
