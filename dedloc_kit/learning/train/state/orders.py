"""What the organizer's orders leave in a training state: factors of the rate, rollbacks, the decay that has begun."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dedloc_kit.config.optimizer import OptimizerConfig
from dedloc_kit.records.orders import Decay

RATE, REWOUND = "rewind.rate", "rewind.step"
DECAY_START, DECAY_STEPS = "decay.start", "decay.steps"
NOTHING_ORDERED = {
    RATE: torch.ones(1, dtype=torch.float64),
    REWOUND: torch.zeros(1, dtype=torch.int64),
    DECAY_START: torch.zeros(1, dtype=torch.int64),
    DECAY_STEPS: torch.zeros(1, dtype=torch.int64),
}
"""Before there were any, by name. Tensors, so that witnesses prove them like all others (`sketch.py`)."""


def decay_of(tensors: Mapping[str, Tensor]) -> Decay | None:
    """What a state says of it; raises ValueError if it makes no sense."""
    start, steps = int(tensors[DECAY_START]), int(tensors[DECAY_STEPS])
    return Decay.parse({"start": start, "steps": steps}) if start else None


def begun(settings: OptimizerConfig, steps: int, step: int) -> Decay | None:
    """The decay over so many steps that begins with a global step, if any; it ends with the run's last one at the
    latest."""
    steps = min(steps, settings.total_steps - step + 1)
    return Decay(start=step, steps=steps) if steps > 0 and settings.schedule == "warmup-stable-decay" else None
