"""Where the coordinator of a pipeline has the states of its stages, whatever its memory."""

import logging
from functools import partial
from pathlib import Path

from dedloc_kit.training.flat import Room, shared_zeros, zeros_on_disk

BYTES_PER_PARAMETER = 16
"""Of who follows a stage: weights, two moments and the vector that is averaged."""

_log = logging.getLogger(__name__)


class Rooms:
    """The first stages are in memory as long as they fit, the others on the disk: what of those is in memory is given
    back whenever something else needs it.

    :param memory: bytes
    """

    def __init__(self, folder: Path, memory: float) -> None:
        self._folder, self._left = folder / "stages", memory

    def of(self, parameters: int) -> Room:
        """For the next stage, of so many parameters."""
        size = BYTES_PER_PARAMETER * parameters
        if size <= self._left:
            self._left -= size
            return shared_zeros
        self._left = 0.0
        _log.warning("%.1f MB of a stage do not fit the memory and lie in %s", size / 1e6, self._folder)
        return partial(zeros_on_disk, self._folder)
