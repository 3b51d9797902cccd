"""Where a coordinator has the states of a pipeline's stages, and experts, whatever its memory."""

import ctypes
import logging
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from dedloc_kit.errors import UserError
from dedloc_kit.learning.train.flat import Room, shared_zeros, zeros_on_disk

BYTES_PER_PARAMETER = 16
"""Of who follows a stage: weights, two moments and the vector that is averaged."""

LARGE = 2**18
"""Bytes."""
_MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD of glibc's <malloc.h>."""

_log = logging.getLogger(__name__)


def give_back_large() -> None:
    """From now on what this process frees and was LARGE goes back to the system at once (glibc).

    Workers keep it for the next microbatch (`worker.KEPT_MEMORY`). Where one expert after the other is made, tried and
    copied, small things come to lie in what was kept, and the next one does not fit between them: each of 6 MB left 2
    on an organizer's machine, and at a host three took 280 MB, measured.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, LARGE)


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


def zeros_despite_a_full_disk(folder: Path, size: int) -> Tensor:
    """As `zeros_on_disk`; of a full disk there is a warning, and they are in memory: whoever answers others goes on."""
    try:
        return zeros_on_disk(folder, size)
    except UserError as error:
        _log.warning("%s; until then it is in memory", error)
        return torch.zeros(size)
