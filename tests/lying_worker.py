"""Claims to be a fast server and answers zeros: `python -m tests.lying_worker server`, in place of an honest one."""

import runpy
import sys
from typing import Any

import torch

from dedloc_kit.blocks.plans.plan import MAX_SPEED
from dedloc_kit.swarm.serving.layers import fitting
from dedloc_kit.swarm.serving.server.server import SpanService


async def zeros(service: SpanService, session: Any, step: Any, hidden: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(hidden)


if __name__ == "__main__":
    SpanService._computed = zeros  # type: ignore[method-assign, assignment]
    fitting.measured = lambda *_: fitting.Speeds(MAX_SPEED, MAX_SPEED, MAX_SPEED)
    sys.modules.pop("dedloc_kit.roles.server", None)  # it takes what was changed
    runpy.run_module("dedloc_kit.worker", run_name="__main__", alter_sys=True)
