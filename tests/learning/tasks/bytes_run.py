"""A run of the language model over bytes."""

from pathlib import Path
from typing import Any

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig

TEXT = "the boat is on the river. the river is wide.\n"


def run_of(folder: Path, **options: Any) -> RunConfig:
    (folder / "train.txt").write_text("".join(f"{number}: {TEXT}\n" for number in range(500)), encoding="utf-8")
    (folder / "test.txt").write_text("the river is on the boat.\n\n" * 20, encoding="utf-8")
    source = {"dataset": str(folder)}
    return parse_run(
        {
            "name": "bytes",
            "global_batch": 8,
            "task": {"name": "bytes", "sequence_length": 32, "n_embd": 32, "n_layer": 1, **options},
            "data": {"train": [source], "evaluation": {**source, "split": "test"}},
            "optimizer": {"learning_rate": 0.05, "warmup_steps": 0, "total_steps": 100},
        }
    )
