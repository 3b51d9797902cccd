"""What a driver keeps until it has counted, so that it can be computed again if its stage peer is gone.

In memory up to a limit, beyond that on the disk. That a driver begins no more at the limit would not do: nothing that
it keeps counts before the batch is full, and where all drivers were at their limits nobody would fill it.
"""

import logging
from pathlib import Path
from typing import NamedTuple

from dedloc_kit.swarm.pipeline.protocol import Call, Content
from dedloc_kit.swarm.pipeline.spilled import OnDisk, Spill

MEMORY_BYTES = 2**28

_log = logging.getLogger(__name__)


class Backward(NamedTuple):
    """A backward call that a stage peer has answered."""

    peer: str
    call: Call

    @property
    def place(self) -> tuple[int, int]:
        return self.call.stage, self.call.number


class Kept:
    """Backward calls, by stage and microbatch.

    :param folder: where what memory is too small for goes
    :param most: bytes in memory, with what has come since `fits` was asked on top
    :ivar bytes: that they take
    """

    def __init__(self, folder: Path, most: int = MEMORY_BYTES) -> None:
        self.bytes = 0
        self._most = most
        self._calls: dict[tuple[int, int], Backward] = {}
        self._in_memory: dict[tuple[int, int], Content] = {}
        self._memory = 0  # bytes of these
        self._on_disk: dict[tuple[int, int], OnDisk] = {}
        self._spill, self._told = Spill(folder), False

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def fits(self) -> bool:
        """May more come? What is too much for memory goes to the disk, and waits where that is full."""
        while self._memory > self._most:
            place, content = next(iter(self._in_memory.items()))
            try:
                self._on_disk[place] = self._spill.write(content)
            except OSError as error:
                if not self._told:
                    text = "no more microbatches are begun until there is room for what is kept of them: %s"
                    _log.warning(text, error)
                self._told = True
                return False
            del self._in_memory[place]
            self._memory -= content.size
        self._told = False
        return True

    def add(self, backward: Backward, content: Content) -> None:
        self._remove(backward.place)
        self._calls[backward.place] = backward
        self._in_memory[backward.place] = content
        self._memory += content.size
        self.bytes += content.size

    def of(self, peer: str) -> list[Backward]:
        """What only this peer has, in the order in which it came."""
        return [backward for backward in self._calls.values() if backward.peer == peer]

    def content(self, backward: Backward) -> Content | None:
        """With which it was called; None if it has counted, or another peer has it now. Raises OSError."""
        if self._calls.get(backward.place) is not backward:
            return None
        if (content := self._in_memory.get(backward.place)) is not None:
            return content
        return self._spill.read(self._on_disk[backward.place])

    def drop(self, peer: str, step: int) -> None:
        """This peer holds this step: what it was sent for those before has counted."""
        for place in [place for place, b in self._calls.items() if b.peer == peer and b.call.step < step]:
            self._remove(place)

    def remove(self, backward: Backward) -> None:
        self._remove(backward.place)

    def close(self) -> None:
        self._spill.close()

    def _remove(self, place: tuple[int, int]) -> None:
        if self._calls.pop(place, None) is None:
            return
        if (content := self._in_memory.pop(place, None)) is not None:
            self._memory -= content.size
            self.bytes -= content.size
        else:
            self.bytes -= self._on_disk.pop(place).size
            self._spill.forget()
