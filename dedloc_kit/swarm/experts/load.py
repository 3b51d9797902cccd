"""How many tokens the experts of a host answer."""

import math
import threading
from collections import Counter
from collections.abc import Collection, Mapping

from dedloc_kit.experts.calls import ExpertName

REMEMBERED = 3
"""Global steps."""
_STEPS = 8
"""In which a number doubles as a host's record has it: it is told as a byte, to about one part in twelve."""


class Load:
    """Of one host; from any thread.

    :param me: the host, whose own calls are no gift
    """

    def __init__(self, me: str = "") -> None:
        self._me = me
        self._lock = threading.Lock()
        self._for_others = 0
        self._steps: dict[int, Counter[ExpertName]] = {}

    def add(self, trainer: str, name: ExpertName, tokens: int, step: int) -> None:
        """An expert that has taken this global step has answered."""
        with self._lock:
            self._for_others += tokens if trainer != self._me else 0
            self._steps.setdefault(step, Counter())[name] += tokens
            while len(self._steps) > REMEMBERED:
                del self._steps[min(self._steps)]

    @property
    def for_others(self) -> int:
        """Tokens in all, but for the host's own."""
        with self._lock:
            return self._for_others

    def of_a_step(self) -> Counter[ExpertName]:
        """Tokens by expert for the last global step that is finished; nothing before the first."""
        with self._lock:
            return Counter(self._steps[sorted(self._steps)[-2]]) if len(self._steps) > 1 else Counter()


def told(tokens: Mapping[ExpertName, int], kept: Collection[ExpertName]) -> bytes:
    """As a host's record has it: a byte for each expert that it keeps, in the order of their names."""
    return bytes(min(255, round(_STEPS * math.log2(1 + tokens.get(name, 0)))) for name in sorted(kept))


def read(load: bytes, kept: Collection[ExpertName]) -> dict[ExpertName, int]:
    """About as many tokens; nothing where the record says it of other experts."""
    if len(load) != len(kept):
        return {}
    return {name: round(2 ** (each / _STEPS) - 1) for name, each in zip(sorted(kept), load, strict=True)}
