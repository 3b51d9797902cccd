"""The parameters of the last few global steps, on the disk: what was computed with them can be computed again."""

import logging
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dedloc_kit.swarm.trust.kept import Kept
from dedloc_kit.training.state import TrainingState

_log = logging.getLogger(__name__)


class KeptParameters:
    """Those of a training state; let it `listen` with `keep`.

    :param folder: of nothing else; raises OSError if it cannot be written
    :param steps: of so many they are kept
    """

    def __init__(self, state: TrainingState, folder: Path, steps: int) -> None:
        self._state, self._kept = state, Kept(folder, steps)
        self._warned = False

    @property
    def size(self) -> int:
        """Of the vector of all parameters."""
        return self._state.layout.size

    def keep(self) -> None:
        """Keep those of now. A full disk costs a warning."""
        try:
            with self._state.lock:
                self._kept.put(str(self._state.step), [self._state.flat.numpy().view(np.uint8).data])
        except OSError as error:
            if not self._warned:
                self._warned = True
                _log.warning("what others have computed cannot be checked here (%s)", error.strerror)

    def read(self, step: int) -> Tensor | None:
        """float32 [size], or none if they are not kept (any more)."""
        found = self._kept.part(str(step), 0)
        return None if found is None else torch.frombuffer(bytearray(found), dtype=torch.float32)

    def close(self) -> None:
        """Throw them away."""
        self._kept.close()
