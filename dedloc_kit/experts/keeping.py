"""Of the experts that a peer holds it keeps some: it takes their steps. Whoever follows one holds the same bits."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dedloc_kit.config.run import RunConfig
from dedloc_kit.experts.bank import Bank, names_of
from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.experts.expert import Sum
from dedloc_kit.experts.refused import Refused
from dedloc_kit.learning.train.computing.device import out_of_memory
from dedloc_kit.learning.train.flat import placed
from dedloc_kit.learning.train.state.rooms import give_back_large
from dedloc_kit.learning.train.state.sketch import TOLERANCE

_log = logging.getLogger(__name__)

REMEMBERED = 64
"""Global steps of which it is known how many samples they had; nobody who keeps an expert is further ahead."""
MAX_RATE = 10.0
"""Times what the run's file says a keeper may have for a learning rate, as the organizer may when the run goes back."""


@dataclass(frozen=True, eq=False)
class Stepped:
    """An expert has taken a global step.

    :ivar message: what `Code` gave for the mean that it was taken with
    """

    name: ExpertName
    step: int
    rate: float
    message: Any


@dataclass(frozen=True, eq=False)
class Given:
    """Whoever hears this keeps the expert from now on.

    :ivar sums: what it was told, by the global step that it is for
    """

    name: ExpertName
    sums: dict[int, Sum]


@dataclass(frozen=True, eq=False)
class Gone:
    """Here the expert is not kept any more."""

    name: ExpertName


News = Stepped | Given | Gone
Tell = Callable[[News], object]
Code = Callable[[Tensor], tuple[Any, Tensor]]
"""A mean as it travels, and what is read from that."""
State = tuple[dict[str, Tensor], int]


def _near(one: Tensor, other: Tensor) -> bool:
    """Are they the same but for rounding? With and without vector instructions 1,000 steps of AdamW with the same means
    led to tensors that were 2e-7 of their norm apart, measured, or less."""
    apart, size = (float(torch.linalg.vector_norm(each)) for each in (one.float() - other.float(), one.float()))
    return apart <= TOLERANCE * size


class Keeping:
    """Those experts of a bank are kept that are not followed. From any thread.

    :param rate: the learning rate of a global step
    :param parted: told how an expert was that is here no longer, if anybody wants to know
    :ivar names: all experts of the run, in their order
    """

    def __init__(
        self,
        bank: Bank,
        run: RunConfig,
        rate: Callable[[int], float],
        parted: Callable[[ExpertName, State], object] | None = None,
    ) -> None:
        assert run.experts is not None
        self.bank, self._run, self._rate, self._parted = bank, run, rate, parted
        self.names = names_of(run.experts)
        self._code: Code = lambda mean: (None, mean)
        self._lock = threading.RLock()
        self._followed: set[ExpertName] = set()
        self._followers: dict[ExpertName, list[Tell]] = {}
        self._lost: dict[ExpertName, Tensor] = {}
        """What coding has lost of the means so far, which goes into the next one."""
        self._samples: dict[int, int] = {}

    @classmethod
    def of_host(cls, run: RunConfig, rate: Callable[[int], float]) -> "Keeping":
        """Of a volunteer, which has none yet. An expert that comes is received, tried and made: what that takes besides
        goes back to the system, though the next microbatch might use it."""
        give_back_large()
        return cls(Bank(run, remembers=True), run, rate)

    @property
    def kept(self) -> set[ExpertName]:
        with self._lock:
            return set(self.bank.names) - self._followed

    @property
    def followed(self) -> set[ExpertName]:
        with self._lock:
            return set(self._followed)

    @property
    def held(self) -> tuple[set[ExpertName], set[ExpertName]]:
        """What is kept and what is followed, at the same moment."""
        with self._lock:
            return self.kept, self.followed

    def tell_in(self, code: Code) -> None:
        """How followers are told of means; before anybody follows."""
        self._code = code

    @property
    def step(self) -> int:
        """The newest global step that this was told of."""
        return max(self._samples, default=0)

    def stepped(self, step: int, samples: int) -> None:
        """The swarm has taken a global step. Those that nobody has told of are taken, too, each as if it had a global
        batch.

        :param samples: of all trainers in that step
        """
        with self._lock:
            self._samples[step] = samples
            for old in sorted(self._samples)[:-REMEMBERED]:
                del self._samples[old]
        self._catch_up(self.kept)

    def _catch_up(self, names: set[ExpertName]) -> None:
        newest = self.step
        for step in range(min(self.bank.steps(names), default=newest) + 1, newest + 1):
            samples, rate = max(1, self._samples.get(step, self._run.global_batch)), self._rate(step)
            for name in sorted(names):
                with self._lock:  # not longer: others want to know what is here
                    if name in self.kept:
                        self._take(name, step, samples, rate)

    def _take(self, name: ExpertName, step: int, samples: int, rate: float) -> None:
        """Where there is no memory for it nothing changes: the expert takes this step before the next one."""
        followers, messages, lost = self._followers.get(name, ()), list[Any](), dict[ExpertName, Tensor]()

        def said(mean: Tensor) -> Tensor:
            if not followers:
                return mean
            if name in self._lost:
                mean = mean + self._lost[name]
            message, read = self._code(mean)
            messages.append(message)
            if not torch.equal(mean, read):
                lost[name] = placed(mean - read, self.bank.experts_room)
            return read

        try:
            taken = self.bank.take_one(name, step, samples, rate, said)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            self.bank.refused["memory"] += 1
            _log.warning("no memory for global step %d of the expert %s: it is taken later", step, name)
            return
        if taken and messages:
            self._lost.pop(name, None)
            self._lost |= lost
            for tell in followers:
                tell(Stepped(name, step, rate, messages[0]))

    # Whoever keeps

    def followed_by(self, name: ExpertName, tell: Tell) -> State | None:
        """Let somebody hear of what becomes of an expert after this state; none if it is not kept here."""
        with self._lock:
            if name not in self.kept:
                return None
            self._followers.setdefault(name, []).append(tell)
            return self.bank.state(name)

    def left_by(self, tell: Tell) -> None:
        """They hear no more."""
        with self._lock:
            for followers in self._followers.values():
                if tell in followers:
                    followers.remove(tell)

    def give(self, name: ExpertName, to: Tell) -> None:
        """Let a follower keep an expert. A copy stays, which is to follow it: trainers do not hear of it at once."""
        with self._lock:
            if to not in self._followers.get(name, ()):
                return
            self._followers[name].remove(to)
            to(Given(name, self.bank.take_sums(name)))
            self._followed.add(name)
            self._end(name)

    def drop(self, name: ExpertName) -> None:
        """Have an expert no longer."""
        with self._lock:
            self._end(name)
            if name in self.bank.names:
                if self._parted is not None:
                    self._parted(name, self.bank.state(name))
                self.bank.drop(name)
                self._followed.discard(name)

    def _end(self, name: ExpertName) -> None:
        for tell in self._followers.pop(name, ()):
            tell(Gone(name))
        self._lost.pop(name, None)

    def add(self, name: ExpertName, sums: dict[int, Sum], sender: str = "") -> None:
        """A follower was told this, as trainers ask it, too. Where the expert has gone since, nobody is told any more;
        what cannot be right is told nobody either.

        :param sender: that follower
        """
        with suppress(Refused):
            self.bank.add_sums(name, sums, sender)

    def clear(self) -> None:
        """Have none any more."""
        for name in self.bank.names:
            self.drop(name)

    # Whoever follows

    def hold(self, name: ExpertName, state: State) -> None:
        """Begin to follow an expert from this state on; raises ValueError if it cannot be one."""
        self._check_step(state[1])
        with self._lock:
            self._followed.add(name)
            try:
                self.bank.load(name, *state)
            except Exception:
                if name not in self.bank.names:
                    self._followed.discard(name)
                raise

    def follow(self, name: ExpertName, step: int, mean: Tensor, rate: float) -> None:
        """Take the step that the keeper has taken; raises ValueError if it is not the next one, or cannot be right."""
        self._check_step(step)
        if rate > MAX_RATE * self._run.optimizer.learning_rate:
            raise ValueError(f"a learning rate of {rate:g}")
        with self._lock:
            if name in self._followed:
                self.bank.follow(name, step, mean, rate)

    def _check_step(self, step: int) -> None:
        """Raise ValueError for one that the swarm is far from."""
        if self._samples and step > self.step + REMEMBERED:
            raise ValueError(f"global step {step}, after {self.step}")

    def renew(self, name: ExpertName, theirs: State) -> bool:
        """Take over an expert that is followed as its keeper has it after the same step; returns whether that was done,
        for it may have gone on meanwhile.

        Raises ValueError, and takes nothing over, if they differ by more than rounding. By less a keeper gains nothing
        that it could not have by the means that it tells of its steps.
        """
        tensors, step = theirs
        with self._lock, suppress(Refused):
            mine, _ = self.bank.pin(name, step).state()
            if not all(_near(own, tensors[key]) for key, own in mine.items()):
                raise ValueError(f"it has another {name} after global step {step} than its own steps lead to")
            if name in self._followed and self.bank.steps([name]) == [step]:
                self.bank.load(name, tensors, step)
                return True
        return False

    def told(self, name: ExpertName) -> dict[int, Sum]:
        """What an expert that is followed was told here since this was asked last, for its keeper."""
        with self._lock, suppress(Refused):
            return self.bank.take_sums(name) if name in self._followed else {}
        return {}

    def keep(self, name: ExpertName, sums: dict[int, Sum] | None = None, sender: str = "") -> None:
        """Keep what was followed: its keeper has given it, or is gone.

        :param sums: what it was told where it was kept
        :param sender: that keeper
        """
        with self._lock:
            if name in self._followed:
                self._followed.discard(name)
                if sums is not None:
                    with suppress(Refused):
                        self.bank.add_sums(name, sums, sender)
                self._catch_up({name})
