"""What a driver keeps until it has counted, so that it can be computed again if its stage peer is gone."""

from typing import NamedTuple

from dedloc_kit.swarm.pipeline.protocol import Call, Content


class Backward(NamedTuple):
    """A backward call that a stage peer has answered."""

    peer: str
    call: Call
    content: Content


class Kept:
    """Backward calls, by stage and microbatch.

    :ivar bytes: that they take
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._calls: dict[tuple[int, int], Backward] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, backward: Backward) -> None:
        place = backward.call.stage, backward.call.number
        self._remove(place)
        self._calls[place] = backward
        self.bytes += backward.content.size

    def of(self, peer: str) -> list[Backward]:
        """What only this peer has, in the order in which it came."""
        return [backward for backward in self._calls.values() if backward.peer == peer]

    def drop(self, peer: str, step: int) -> None:
        """This peer holds this step: what it was sent for those before has counted."""
        for place in [place for place, b in self._calls.items() if b.peer == peer and b.call.step < step]:
            self._remove(place)

    def remove(self, backward: Backward) -> None:
        self._remove((backward.call.stage, backward.call.number))

    def _remove(self, place: tuple[int, int]) -> None:
        if (before := self._calls.pop(place, None)) is not None:
            self.bytes -= before.content.size
