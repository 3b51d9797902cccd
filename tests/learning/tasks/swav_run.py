"""A run of SwAV on small pictures."""

from pathlib import Path
from typing import Any

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig

TINY: dict[str, Any] = {
    "image_size": 16,
    "global_crops": {"count": 2, "size": 16, "scale": [0.5, 1.0]},
    "local_crops": {"count": 2, "size": 8, "scale": [0.2, 0.5]},
    "augmentation": {"blur_probability": 0.0, "hue": 0.1},
    "epsilon": 0.05,
    "queue_length": 32,
    "evaluation_samples": 64,
    "model": {
        "layer_type": "basic",
        "depths": [1, 1],
        "hidden_sizes": [8, 16],
        "embedding_size": 8,
        "stem": "small",
        "projection": [16, 8],
        "num_prototypes": 12,
    },
}


def run_of(folder: Path, seed: int = 0, **options: Any) -> RunConfig:
    source = {"dataset": str(folder), "column": "image"}
    return parse_run(
        {
            "name": "swav",
            "global_batch": 32,
            "seed": seed,
            "task": {"name": "swav", **TINY, **options},
            "data": {"train": [source], "evaluation": {**source, "split": "test"}},
            "optimizer": {"name": "lars", "learning_rate": 4.0, "warmup_steps": 5, "total_steps": 60},
        }
    )
