"""Which calls are refused and how that is said, which tensors cannot be right, and whose calls are refused for a
while."""

import math
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from dedloc_kit.records.record import MAX_REASON, Count, Reason, Record
from dedloc_kit.swarm.audits.projections import TOLERANCE
from dedloc_kit.swarm.incidents import Rejections
from dedloc_kit.swarm.network.bounds import TooMuch
from dedloc_kit.swarm.remote.tensors import BadTensor, Form

ABSURD = 1e6
"""No hidden states or gradients of a model that learns are as large as this in the mean."""
UNUSUAL = 1e3
"""By which factor one may be larger than is usual among the callers."""
CODED: Mapping[Form, float] = {"8bit": 0.02, "float16": 0.005, "bfloat16": 0.01, "float32": 1e-5}
"""How far two answers may be apart by their form alone, as a share of their norm. Of 8 bits 0.5 % was measured for each
(a decoder of 4 and 8 layers), and 1.3 % is the worst, where one number in a block is far larger than the rest."""
REMEMBERED = 256
"""Callers."""
FORGIVEN, FORGOTTEN = 1, 600.0
"""So many calls that no honest caller makes are forgiven, and after so many seconds all."""
BARRED, MAX_BARRED = 30.0, 1800.0
"""Seconds for which it is refused after the next one, twice as many after each further one, and at most."""

Kind = Literal[
    "stage",
    "unknown",
    "forgotten",
    "stale",
    "ahead",
    "closed",
    "full",
    "barred",
    "shape",
    "values",
    "absurd",
    "batch",
    "nonsense",
    "failed",
]
"""Why a call is refused. `unknown`: an expert that is not there; `forgotten`: nothing is kept for a backward call (any
more); `stale`: of another step than the peer holds, `ahead`: of one too far ahead; `closed`: this step's
batch takes no more; `full`: there is no room now; `barred`: who calls has sent nonsense again and again."""
_OFFENCES: tuple[Kind, ...] = ("shape", "values", "batch", "nonsense")
"""What no honest caller sends. Absurdly large tensors are none: where a model has diverged all send them."""


class Refusal(ValueError):
    """A peer asks for what it does not get.

    :ivar step: that is held
    """

    def __init__(self, kind: Kind, text: str, step: int = 0) -> None:
        super().__init__(text)
        self.kind: Kind = kind
        self.step = step

    @property
    def told(self) -> "Refused":
        """To whoever called."""
        text = "".join(letter if letter.isprintable() else " " for letter in str(self))
        return Refused(why=self.kind, text=text[:MAX_REASON], step=self.step)


class Refused(Record):
    kind: Literal["refused"] = "refused"
    why: Kind
    text: Reason = ""
    step: Count = 0
    """That is held."""


class Usual:
    """How large tensors are, by who sends them: nobody alone can make others seem absurd."""

    def __init__(self) -> None:
        self._sizes: dict[str, float] = {}

    def check(self, caller: str, what: str, tensor: Tensor) -> None:
        """Raises Refusal for what is absurdly large.

        :param what: for people
        """
        size = float(tensor.norm()) / math.sqrt(tensor.numel())
        usual = statistics.median_high(self._sizes.values()) if self._sizes else 0.0
        if not size <= ABSURD or (usual and size > UNUSUAL * usual):
            raise Refusal("absurd", f"{what} of {size:.3g} in the mean")
        if size:
            self._sizes.pop(caller, None)
            self._sizes = dict(list(self._sizes.items())[1 - REMEMBERED :]) | {caller: size}


class Barred:
    """Callers that have done what no honest one does."""

    def __init__(self) -> None:
        self._offences: dict[str, tuple[int, float]] = {}  # how many, and when the last one was

    def check(self, caller: str) -> None:
        """Raises Refusal while this caller gets no answer."""
        count, last = self._offences.get(caller, (0, 0.0))
        seconds = min(MAX_BARRED, BARRED * 2.0 ** (count - FORGIVEN - 1)) if count > FORGIVEN else 0.0
        if time.monotonic() < last + seconds:
            raise Refusal("barred", f"refused for {seconds:.0f} s because of what came before")

    def add(self, caller: str, kind: Kind) -> None:
        """A call of this caller was refused."""
        if kind in _OFFENCES:
            now = time.monotonic()
            self._offences = {c: each for c, each in self._offences.items() if now < each[1] + FORGOTTEN + MAX_BARRED}
            count, last = self._offences.pop(caller, (0, 0.0))
            count = min(count + 1, 20) if now < last + FORGOTTEN else 1
            self._offences = dict(list(self._offences.items())[1 - REMEMBERED :]) | {caller: (count, now)}


def near(one: Tensor, other: Tensor, given: Tensor | None, form: Form) -> bool:
    """Are these as near as what honest peers with other devices make of the same?

    Measured by what they change: young layers add little to what goes into them, and whoever leaves them out would be
    near, too.

    :param given: what it was made of, where that is added to it
    """
    start = 0.0 if given is None else given.double()
    both = one.double(), other.double()
    change, size = (max(map(_norm, each)) for each in ([made - start for made in both], both))
    return _norm(both[0] - both[1]) <= TOLERANCE * change + CODED[form] * size


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor))


class Judge:
    """Of the calls that a service takes.

    :ivar rejections: what was refused, by kind
    """

    def __init__(self) -> None:
        self.rejections = Rejections()
        self._barred = Barred()

    def check(self, caller: str) -> None:
        """Raises Refusal while this caller gets no answer."""
        self._barred.check(caller)

    @contextmanager
    def counted(self, caller: str) -> Iterator[None]:
        """What is wrong with what a caller sends becomes a Refusal, is counted, and is held against the caller."""
        try:
            try:
                yield
            except EOFError:
                raise
            except TimeoutError:
                self.rejections.add("silent")
                raise
            except TooMuch as error:
                raise Refusal("full", str(error)) from None
            except BadTensor as error:
                raise Refusal(error.kind, str(error)) from None
            except Refusal:
                raise
            except ValueError as error:
                raise Refusal("nonsense", str(error)) from None
        except Refusal as refusal:
            self.add(caller, refusal.kind)
            raise

    def add(self, caller: str, kind: Kind) -> None:
        """Something that a caller asks for is refused."""
        self.rejections.add(kind)
        self._barred.add(caller, kind)
