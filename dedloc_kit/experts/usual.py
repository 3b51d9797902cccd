"""How large gradients usually are."""

from collections import OrderedDict, deque
from statistics import median_high

ABSURD = 100.0
"""Times what is usual. Norms over the tokens of a call differ by far less among those who do not lie."""
_REMEMBERED, _SENDERS, _ENOUGH = 32, 256, 8


class Usual:
    """What is usual is what most senders send: each has one voice, the median of what it sent last."""

    def __init__(self) -> None:
        self._sizes: OrderedDict[str, deque[float]] = OrderedDict()

    def absurd(self, sender: str, size: float) -> bool:
        """Is this far larger than what was usual until now? Then it is not remembered, or of two senders one would make
        it usual; but who is alone may change."""
        known = sum(map(len, self._sizes.values())) >= _ENOUGH
        absurd = known and size > ABSURD * median_high(median_high(sizes) for sizes in self._sizes.values())
        if size > 0.0 and (not absurd or self._sizes.keys() <= {sender}):  # a gradient of nothing says nothing
            self._sizes.setdefault(sender, deque(maxlen=_REMEMBERED)).append(size)
            self._sizes.move_to_end(sender)
            if len(self._sizes) > _SENDERS:
                self._sizes.popitem(last=False)
        return absurd
