"""The parameters of the last few global steps, on the disk: what was computed with them can be computed again."""

import logging
import threading
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.swarm.audits.kept import Kept
from dedloc_kit.swarm.trust.pledge import pieces

_log = logging.getLogger(__name__)


class KeptParameters:
    """Those of a training state; let it `listen` with `keep`.

    :param folder: of nothing else; raises OSError if it cannot be written
    :param steps: of so many they are kept
    """

    def __init__(self, state: TrainingState, folder: Path, steps: int) -> None:
        self._state, self._kept = state, Kept(folder, steps)
        self._pieces = pieces(state.layout.size)
        self._lock = threading.Lock()  # so that what is read is of one state
        self._warned = False

    @property
    def size(self) -> int:
        """Of the vector of all parameters."""
        return self._state.layout.size

    def keep(self) -> None:
        """Keep those of now. A full disk costs a warning."""
        try:
            with self._lock, self._state.lock:
                values = self._state.flat.numpy()
                parts = (values[begin:end].view(np.uint8).data for begin, end in self._pieces)
                self._kept.put(str(self._state.step), parts)
        except OSError as error:
            if not self._warned:
                self._warned = True
                _log.warning("what others have computed cannot be checked here (%s)", error.strerror)

    def read(self, step: int) -> Tensor | None:
        """float32 [size], or none if they are not kept (any more)."""
        flat = torch.empty(self.size)
        values = flat.numpy().view(np.uint8)
        with self._lock:
            for number, (begin, end) in enumerate(self._pieces):  # so that they are in the memory once
                part = self._kept.part(str(step), number)
                if part is None:
                    return None
                values[4 * begin : 4 * end] = np.frombuffer(part, np.uint8)
        return flat

    def close(self) -> None:
        """Throw them away."""
        self._kept.close()
