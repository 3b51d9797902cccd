"""The experts of a run beside its trunk: the coordinator answers for them, and volunteers ask."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dedloc_kit.config.run import RunConfig
from dedloc_kit.display.human import some
from dedloc_kit.events import AnyEvent, Hosted, State, Warned
from dedloc_kit.experts.calls import Experts, Microbatch, counting
from dedloc_kit.experts.keeping import Keeping
from dedloc_kit.experts.mixture import connect
from dedloc_kit.experts.state import MixedState
from dedloc_kit.experts.stored import Stored
from dedloc_kit.learning.task import Batch, Loss
from dedloc_kit.learning.train.computing.card import LossFunction, samples_in
from dedloc_kit.machine.hardware import machine_at
from dedloc_kit.records.steps import GlobalStep
from dedloc_kit.steering.debounce import Settled
from dedloc_kit.swarm.experts.member import ExpertMember, Held
from dedloc_kit.swarm.peer import SwarmPeer
from dedloc_kit.swarm.remote.tensors import FORMS, Form

FOLLOW_SECONDS = 1.0
"""Between two looks at who may take part."""
LOOK_SECONDS = 0.1
RENEW_SECONDS, PAUSES = 1.0, 9.0
"""The organizer's machine fetches one expert after the other; in between it waits for so long at least, and for so many
times as long as the last one took: a tenth of the time is what its line and theirs give to that."""
STOP_SECONDS = 10.0
"""For a copy that is on its way when everything ends."""
MAX_NAMED = 3
"""Hosts, or experts, in one sentence."""

_log = logging.getLogger(__name__)


def form_of(run: RunConfig) -> Form:
    """In which tokens and their gradients travel: as gradients of parameters do, but with no fewer than 8 bits."""
    return FORMS.get(run.averaging.compression, "8bit")


def room_for_experts(folder: Path) -> int:
    """Bytes of memory that a host gives to experts: half of what is free, for it also trains."""
    return machine_at(folder).free_memory // 2


@contextmanager
def hosting(
    me: SwarmPeer, known: Sequence[str], state: MixedState, folder: Path, emit: Callable[[AnyEvent], None]
) -> Iterator[ExpertMember]:
    """Answer for all experts that no other host has, and have copies of those that others have in a folder.

    :param known: addresses of the peers that this one joined through
    """

    def lines() -> dict[str, float | None]:
        return {peer: progress.upload for peer, progress in me.optimizer.tracker.others().items()}

    member = _member(me, known, Held(state.keeping, known=state.known, lines=lines, changed=_telling(emit)))
    state.have_hosts(member.fetch, member.begin_anew, Stored(folder, state.run_id))
    left = threading.Event()

    def renew() -> None:
        pause = RENEW_SECONDS
        while not left.wait(pause):
            began = time.monotonic()
            try:
                state.renew_one()
            except Exception:  # the next time it may go
                _log.exception("no copy of an expert is renewed")
            pause = max(RENEW_SECONDS, PAUSES * (time.monotonic() - began))

    with member.serving():
        renewing = threading.Thread(target=renew, name="copies of experts", daemon=True)
        renewing.start()
        try:
            yield member
        finally:
            left.set()
            renewing.join(STOP_SECONDS)


class HostNews:
    """What the organizer is to know of the hosts."""

    def __init__(self, member: ExpertMember, state: MixedState) -> None:
        self._member, self._state = member, state
        self._accused = Settled()

    def take(self, now: float) -> Iterator[str]:
        """What is new, each in a sentence.

        :param now: by the clock of this machine, in seconds
        """
        if lost := self._state.take_lost():
            back = f"back as this machine knew them, {max(lost.values())} global steps ago or less"
            yield f"all hosts of these experts are gone: {some(list(map(str, lost)), MAX_NAMED)}; they are {back}"
        found = self._member.accused()
        if self._accused.news(tuple(sorted(found)), now):
            hosts = some([f"{peer} ({count} trainers)" for peer, count in found.items()], MAX_NAMED)
            yield (
                f"trainers say that these hosts answer wrongly, or unlike others: {hosts}; "
                "'dedloc run kick' sends one away"
                if found
                else "no two trainers say any more that a host answers wrongly"
            )


class Mixing:
    """A volunteer's use of experts; of a run that has none it does nothing."""

    def __init__(
        self,
        layers: Sequence[int],
        experts: Experts,
        member: ExpertMember,
        emit: Callable[[AnyEvent], None],
        keeping: Keeping | None = None,
    ) -> None:
        self._layers, self._experts, self._member, self._emit = layers, experts, member, emit
        self._keeping = keeping
        self._counts = False
        self._follow_at = 0.0

    def begin(self) -> None:
        """From now on gradients count; those of trials do not."""
        self._counts = True

    def counted(self, loss: LossFunction) -> LossFunction:
        """The loss of a task, whose gradients count for the step after the one whose parameters the model holds."""

        def counted(model: Any, batch: Batch, step: int) -> Loss:
            if not self._counts:
                return loss(model, batch, step)
            with counting(Microbatch(step + 1, samples_in(batch))):
                return loss(model, batch, step)

        return counted

    def stepped(self, step: GlobalStep) -> None:
        """The swarm has taken a global step: what this machine hosts does, too. After a step back hosts get theirs
        anew."""
        if self._keeping is not None:
            if step.peers:
                self._keeping.stepped(step.step, step.samples)
            else:
                self._keeping.clear()

    @property
    def answered(self) -> int | None:
        """Tokens that experts here have answered for others; none of who hosts none."""
        return None if self._keeping is None else self._member.answered

    def leave(self) -> None:
        """Let others have what this machine hosts."""
        if self._keeping is not None:
            self._member.hand_over()

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

    def counted(self, loss: LossFunction) -> LossFunction:
        return loss

    def stepped(self, step: GlobalStep) -> None:
        pass

    @property
    def answered(self) -> int | None:
        return None

    def leave(self) -> None:
        pass

    def await_experts(self, over: Callable[[], bool]) -> bool:
        return True


@contextmanager
def asking(me: SwarmPeer, known: Sequence[str], room: int, emit: Callable[[AnyEvent], None]) -> Iterator[Mixing]:
    """Let all replicas of a volunteer's model ask the experts of the run.

    :param known: addresses of the peers that this one joined through
    :param room: bytes of memory for experts that it hosts itself; 0 for none
    """
    run = me.optimizer.run
    if run.experts is None:
        yield Unmixed()
        return
    keeping = Keeping.of_host(run, me.optimizer.state.rate_of) if room else None
    member = _member(me, known, None if keeping is None else Held(keeping, room, changed=_telling(emit)))
    with member.serving() as experts:
        connect(me.optimizer.state.model, experts)  # the replicas are copies of it
        me.optimizer.confirms(experts.answered)
        yield Mixing(run.experts.layers, experts, member, emit, keeping)


def _telling(emit: Callable[[AnyEvent], None]) -> Callable[[int, int], None]:
    return lambda kept, copies: emit(Hosted(kept=kept, copies=copies))


def _member(me: SwarmPeer, known: Sequence[str], held: Held | None) -> ExpertMember:
    run = me.optimizer.run
    # Who fails is written to the log by whoever asks.
    return ExpertMember(run, me.dht, me.signer, me.profile, known, held, form_of(run), failed=lambda *_: None)
