"""Small conversations and the runs that learn them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import Source
from tests.text_runs import WORDS, text_run

Turns = list[dict[str, str]]


def turns(*said: str, system: str = "") -> Turns:
    """A conversation that a user begins."""
    first = [{"role": "system", "content": system}] if system else []
    return first + [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(said)]


def conversations(count: int, seed: int = 0) -> list[Turns]:
    """Questions of several words, each answered by its words from back to front; some with a system turn."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        said = []
        for _ in range(int(generator.integers(1, 4))):
            words = generator.choice(WORDS, size=int(generator.integers(1, 5))).tolist()
            said += [" ".join(words), " ".join(reversed(words))]
        made.append(turns(*said, system="back to front" if generator.random() < 0.3 else ""))
    return made


def write_rows(path: Path, rows: list[Any]) -> None:
    """A file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_conversations(folder: Path) -> None:
    """The folder `talk` with the splits `train` and `test`."""
    for split, seed, count in (("train", 0, 80), ("test", 1, 30)):
        write_rows(folder / f"talk/{split}.jsonl", [{"messages": each} for each in conversations(count, seed)])


def chat_run(folder: Path, train: Path | None = None, column: str = "messages", **task: Any) -> RunConfig:
    """A run of the task `chat` on what `write_text` and `write_conversations` wrote, or on other training data."""
    run = text_run(folder, "chat", **{"tokenizer": str(folder / "causal"), "sequence_length": 128, **task})
    data = {
        "train": (Source(dataset=str(train or folder / "talk"), column=column),),
        "evaluation": Source(dataset=str(folder / "talk"), split="test", column="messages"),
    }
    return run.model_copy(update={"data": run.data.model_copy(update=data)})
