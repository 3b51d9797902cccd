"""Runs with experts, for tests."""

from typing import Any

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig

WIDTH, HIDDEN = 8, 12


def mixed_run(optimizer: dict[str, Any] | None = None, **experts: Any) -> RunConfig:
    """Two rows and three columns of experts in the layers 0 and 2."""
    settings = {"name": "adamw", "learning_rate": 0.01, "warmup_steps": 0, "total_steps": 100, **(optimizer or {})}
    table = {"layers": [0, 2], "grid": [2, 3], "top_k": 2, "width": WIDTH, "hidden": HIDDEN, **experts}
    return parse_run(
        {
            "name": "mixed",
            "global_batch": 16,
            "task": {"name": "causal"},
            "data": {"train": [{"dataset": "nowhere"}]},
            "optimizer": settings,
            "averaging": {"overlap": False, "compression": "none"},
            "experts": table,
        }
    )
