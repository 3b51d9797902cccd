"""Which hidden states and gradients cannot be right, and whose calls are refused for a while."""

import math
import statistics
import time

from torch import Tensor

from dedloc_kit.swarm.pipeline.protocol import Kind, Refusal

ABSURD = 1e6
"""No hidden states or gradients of a model that learns are as large as this in the mean."""
UNUSUAL = 1e3
"""By which factor one may be larger than is usual among the drivers."""
REMEMBERED = 256
"""Drivers."""
FORGIVEN, FORGOTTEN = 1, 600.0
"""So many calls that no honest driver makes are forgiven, and after so many seconds all."""
BARRED, MAX_BARRED = 30.0, 1800.0
"""Seconds for which it is refused after the next one, twice as many after each further one, and at most."""
_OFFENCES: tuple[Kind, ...] = ("shape", "values", "absurd", "batch", "nonsense")


class Usual:
    """How large tensors are, by who sends them: nobody alone can make others seem absurd."""

    def __init__(self) -> None:
        self._sizes: dict[str, float] = {}

    def check(self, driver: str, what: str, tensor: Tensor) -> None:
        """Raises Refusal for what is absurdly large.

        :param what: for people
        """
        size = float(tensor.norm()) / math.sqrt(tensor.numel())
        usual = statistics.median_high(self._sizes.values()) if self._sizes else 0.0
        if not size <= ABSURD or (usual and size > UNUSUAL * usual):
            raise Refusal("absurd", f"{what} of {size:.3g} in the mean")
        if size:
            self._sizes.pop(driver, None)
            self._sizes = dict(list(self._sizes.items())[1 - REMEMBERED :]) | {driver: size}


class Barred:
    """Drivers that have done what no honest one does."""

    def __init__(self) -> None:
        self._offences: dict[str, tuple[int, float]] = {}  # how many, and when the last one was

    def check(self, driver: str) -> None:
        """Raises Refusal while this driver gets no answer."""
        count, last = self._offences.get(driver, (0, 0.0))
        seconds = min(MAX_BARRED, BARRED * 2.0 ** (count - FORGIVEN - 1)) if count > FORGIVEN else 0.0
        if time.monotonic() < last + seconds:
            raise Refusal("barred", f"refused for {seconds:.0f} s because of what came before")

    def add(self, driver: str, kind: Kind) -> None:
        """A call of this driver was refused."""
        if kind in _OFFENCES:
            now = time.monotonic()
            self._offences = {d: each for d, each in self._offences.items() if now < each[1] + FORGOTTEN + MAX_BARRED}
            count, last = self._offences.pop(driver, (0, 0.0))
            count = min(count + 1, 20) if now < last + FORGOTTEN else 1
            self._offences = dict(list(self._offences.items())[1 - REMEMBERED :]) | {driver: (count, now)}
