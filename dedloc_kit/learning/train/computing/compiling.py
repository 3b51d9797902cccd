"""A card that compiles the repeated blocks of its model (`torch.compile`), and does without if anything fails."""

import logging
import os
import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dedloc_kit.learning.train.computing.card import Batch, Card, Computed
from dedloc_kit.learning.train.computing.checkpointing import Compile
from dedloc_kit.learning.train.computing.microbatch import Clock, untouched

_RECOMPILATIONS = 64
"""For each kind of blocks, size and device; torch's own 8 are few for a host with 8 GPUs."""
_OFF, _OFF_IN_HALF = 1e-3, 0.03
"""Of a gradient's norm: how far compiled code may be off. It rounds to 16 bits in other places; audits accept 5.4 %
(`swarm/audits/projections.py`)."""

_log = logging.getLogger(__name__)


def compiler(folder: Path) -> Compile:
    """torch's compiler, which keeps what it makes in a folder of this user's own. Call it before anything is compiled.

    It starts no processes to compile in parallel: each would take some hundred MB.
    """
    # Whatever is there: torch itself writes a folder of /tmp there, in which others could put code.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    # Imported here, for they take as long as the rest of torch.
    import torch._dynamo.config as tracing
    import torch._inductor.config as generating

    tracing.recompile_limit = max(_RECOMPILATIONS, tracing.recompile_limit)
    generating.fallback_random = True  # the same dropout as without
    return partial(torch.compile, fullgraph=True)  # an error in place of a block in pieces


class CompiledCard(Card):
    """Computes what it trains on with compiled blocks, and what it measures without: sizes that are tried, and the
    microbatches of others, would each be compiled anew.

    :param compile: as `compiler`; without it nothing is compiled
    """

    def __init__(self, *args: Any, compile: Compile | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._compile = None if compile is None else cache(compile)
        self._compiled = False

    def compile(self, batches: Sequence[Batch], clock: Clock = time.perf_counter) -> float:
        """Compile for microbatches like these, and try it. Waits for the device, for minutes even.

        Returns how many times as fast it is; or 1, after a warning, if it fails, gives another gradient or is slower:
        then nothing is compiled. Parameters, buffers and random states stay as they are.
        """
        if self._compile is None:
            return 1.0
        if not self.checkpointing.blocks:
            return self._give_up("it repeats no layers")
        found: list[tuple[float, Tensor]] = []
        try:
            for compiled in (False, True):
                self._switch(compiled)
                self._try(batches, clock)  # loads or makes code
                found.append(self._try(batches, clock))
        except Exception as error:  # a compiler raises anything
            return self._give_up(error)
        (seconds, right), (seconds_compiled, gradient) = found
        off = float((gradient - right).norm() / right.norm())
        if not off <= (_OFF if self._half is None else _OFF_IN_HALF):
            return self._give_up(f"its gradient is off by {off:.1%}")
        if seconds_compiled >= seconds:
            return self._give_up(f"a microbatch takes {seconds_compiled / seconds:.2f} times as long")
        return seconds / seconds_compiled

    def submit(self, batch: Batch) -> bool:
        if not self._compiled:
            return super().submit(batch)
        try:
            if super().submit(batch):
                return True
            self._give_up("out of memory")
        except Exception as error:
            self._give_up(error)
        return super().submit(batch)

    def measure(self, batch: Batch) -> Computed | None:
        compiled = self._compiled
        self._switch(False)
        try:
            return super().measure(batch)
        finally:
            self._switch(compiled)

    def _try(self, batches: Sequence[Batch], clock: Clock) -> tuple[float, Tensor]:
        """How long these take, and the gradient of the last one, on the CPU."""
        with untouched(self):
            began = clock()
            for batch in batches:
                while (computed := super().measure(batch)) is not None and computed.rescaled:
                    pass
                if computed is None:
                    raise RuntimeError("out of memory")
            return clock() - began, self.replica.gradients.vector.to("cpu", copy=True)

    def _switch(self, compiled: bool) -> None:
        if compiled != self._compiled:
            self.checkpointing.compile(self._compile if compiled else None)
            self._compiled = compiled

    def _give_up(self, reason: object) -> float:
        self._switch(False)
        self.clear()
        lines = str(reason).strip().splitlines() or [type(reason).__name__]
        _log.warning("the model is not compiled on %s; training goes on without (%.200s)", self.device, lines[0])
        return 1.0
