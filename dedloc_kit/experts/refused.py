"""What experts are not asked to do twice, and not made to do once."""

from typing import Literal

Kind = Literal["unknown", "shape", "not finite", "absurd", "stale", "ahead", "samples", "forgotten", "large"]
"""`unknown`: no expert of that name is here. `shape`: another width, type or number of tokens. `absurd`: a gradient far
larger than usual. `stale` and `ahead`: of a global step that is long past, or far ahead. `samples`: more than a batch
has, or none. `forgotten`: no forward call is kept under this ticket. `large`: there is no room for it."""


class Refused(Exception):
    """A call that costs only itself."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self.kind = kind
