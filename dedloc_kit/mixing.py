"""The experts of a run beside its trunk: the coordinator answers for them, and volunteers ask."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from dedloc_kit.events import AnyEvent, State, Warned
from dedloc_kit.experts.bank import Bank
from dedloc_kit.experts.calls import Experts, Microbatch, counting
from dedloc_kit.experts.mixture import connect
from dedloc_kit.run import RunConfig
from dedloc_kit.swarm.experts.member import ExpertMember
from dedloc_kit.swarm.peer import SwarmPeer
from dedloc_kit.swarm.remote.tensors import FORMS, Form
from dedloc_kit.tasks import Batch
from dedloc_kit.training.devices import Loss
from dedloc_kit.training.microbatch import samples_in

FOLLOW_SECONDS = 1.0
"""Between two looks at who may take part."""
LOOK_SECONDS = 0.1


def form_of(run: RunConfig) -> Form:
    """In which tokens and their gradients travel: as gradients of parameters do, but with no fewer than 8 bits."""
    return FORMS.get(run.averaging.compression, "8bit")


@contextmanager
def hosting(me: SwarmPeer, known: Sequence[str], bank: Bank) -> Iterator[ExpertMember]:
    """Answer for the experts of a bank.

    :param known: addresses of the peers that this one joined through
    """
    member = _member(me, known, bank)
    with member.serving():
        yield member


class Mixing:
    """A volunteer's use of experts; of a run that has none it does nothing."""

    def __init__(
        self, layers: Sequence[int], experts: Experts, member: ExpertMember, emit: Callable[[AnyEvent], None]
    ) -> None:
        self._layers, self._experts, self._member, self._emit = layers, experts, member, emit
        self._counts = False
        self._follow_at = 0.0

    def begin(self) -> None:
        """From now on gradients count; those of trials do not."""
        self._counts = True

    def counted(self, loss: Loss) -> Loss:
        """The loss of a task, whose gradients count for the step after the one whose parameters the model holds."""

        def counted(model: Any, batch: Batch, step: int) -> Tensor:
            if not self._counts:
                return loss(model, batch, step)
            with counting(Microbatch(step + 1, samples_in(batch))):
                return loss(model, batch, step)

        return counted

    def await_experts(self, over: Callable[[], bool]) -> bool:
        """Compute nothing while a layer has no expert that answers: the trunk would learn to do without.

        :param over: asked meanwhile whether there is nothing to wait for any more
        :return: do they answer?
        """
        if time.monotonic() >= self._follow_at:
            self._follow()
        if self._there():
            return True
        if self._counts:
            self._emit(Warned(text="no host of experts answers: this machine goes on when one does"))
        else:
            self._emit(State(text="looking for the hosts of the experts"))
        while not self._there():
            if over():
                return False
            time.sleep(LOOK_SECONDS)
            self._follow()
        if self._counts:
            self._emit(State(text="training"))
        return True

    def _follow(self) -> None:
        self._follow_at = time.monotonic() + FOLLOW_SECONDS
        self._member.follow()

    def _there(self) -> bool:
        return all(bool(self._experts.alive(layer).any()) for layer in self._layers)


class Unmixed(Mixing):
    """A run without experts."""

    def __init__(self) -> None:
        pass

    def begin(self) -> None:
        pass

    def counted(self, loss: Loss) -> Loss:
        return loss

    def await_experts(self, over: Callable[[], bool]) -> bool:
        return True


@contextmanager
def asking(me: SwarmPeer, known: Sequence[str], emit: Callable[[AnyEvent], None]) -> Iterator[Mixing]:
    """Let all replicas of a volunteer's model ask the experts of the run.

    :param known: addresses of the peers that this one joined through
    """
    run = me.optimizer.run
    if run.experts is None:
        yield Unmixed()
        return
    member = _member(me, known, None)
    with member.serving() as experts:
        connect(me.optimizer.state.model, experts)  # the replicas are copies of it
        yield Mixing(run.experts.layers, experts, member, emit)


def _member(me: SwarmPeer, known: Sequence[str], bank: Bank | None) -> ExpertMember:
    run = me.optimizer.run
    # Who fails is written to the log by whoever asks.
    return ExpertMember(run, me.dht, me.signer, me.profile, known, bank, form_of(run), failed=lambda *_: None)
