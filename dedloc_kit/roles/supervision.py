"""What a volunteer minds beside its work: the organizer's orders, a second machine with its key, who can be reached."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from dedloc_kit.display.human import for_organizer
from dedloc_kit.errors import UserError
from dedloc_kit.events import Announced, AnyEvent, State, StepDone, Warned
from dedloc_kit.known_peers import DataRead, Memory
from dedloc_kit.learning.data.sources.data_issues import Loss, Losses
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.records.orders import Instructions
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.record import MAX_REASON
from dedloc_kit.records.steps import Contribution, GlobalStep
from dedloc_kit.swarm.directory import twin as twins
from dedloc_kit.swarm.directory.contributions import publish
from dedloc_kit.swarm.network.node import Node
from dedloc_kit.swarm.peer import SwarmPeer
from dedloc_kit.swarm.pipeline.member import PipelineMember
from dedloc_kit.swarm.remote.offers import DHT_SECONDS, LIFE_SECONDS, LOOK_SECONDS, TELL_SECONDS
from dedloc_kit.swarm.rounds.optimizer import StepListener

TWIN = "this machine's identity.key is also at work on another one, and what both give would be lost or counted wrongly"
OWN_KEY = "to train on both, remove identity.key on one of them, which then gets a key of its own"
PAUSED_SECONDS = 0.5
"""Between two looks whether a paused run goes on."""

_log = logging.getLogger(__name__)


class Lost:
    """What of the data cannot be read: warned of here, and counted for the organizer."""

    def __init__(self) -> None:
        self._losses: list[Losses] = []

    def warn(self, text: str) -> None:
        if isinstance(text, Loss) and text.losses not in self._losses:
            self._losses.append(text.losses)
        _log.warning(text)

    def count(self) -> tuple[int, int, int]:
        """As `CollaborativeOptimizer.leaves_out` wants it."""
        return (
            sum(losses.files for losses in self._losses),
            sum(len(losses.unreadable) for losses in self._losses),
            sum(losses.bad_rows for losses in self._losses),
        )


def telling_steps(me: Callable[[], SwarmPeer], emit: Callable[[AnyEvent], None]) -> StepListener:
    """Tells of each global step, and publishes what this peer gave to it."""

    def on_step(step: GlobalStep, contributions: dict[str, Contribution]) -> None:
        peer = me()
        mine = contributions.get(peer.signer.peer)
        if mine is not None:
            publish(peer.dht, peer.signer, mine, peers=len(peer.optimizer.tracker.others()))
        emit(StepDone(step=step, contributions={p: c.samples for p, c in contributions.items() if c.samples}))

    return on_step


def introduce(me: SwarmPeer, lost: Lost, stopped: str, emit: Callable[[AnyEvent], None]) -> None:
    """What the organizer is told of this peer from now on, and what this peer's owner is told of its reach.

    :param stopped: why the training stopped before, if it is started again
    """
    me.optimizer.stopped_before(for_organizer(stopped, MAX_REASON))
    me.optimizer.leaves_out(lost.count)
    tell_reach(me.dht, emit)


def tell_reach(node: Node, emit: Callable[[AnyEvent], None]) -> None:
    """What this peer's owner is told of its reach."""
    if node.reach.text:
        emit(Warned(text=node.reach.text) if node.reach.uncertain else State(text=node.reach.text))


def tell_of_bare(problem: str, emit: Callable[[AnyEvent], None]) -> None:
    """What this peer's owner is told when a stage has lost its last peer, as `problem` says, or found one again."""
    said = f"{problem}: nothing can be trained until somebody takes it"
    emit(Warned(text=said) if problem else State(text="all stages have somebody again"))


class Told(Protocol):
    def others(self) -> dict[str, Progress]:
        """What the others say of themselves, by peer id."""


class Led(Protocol):
    """Who does what the organizer wants; see `CollaborativeOptimizer` for what each name promises."""

    @property
    def tracker(self) -> Told: ...

    @property
    def step(self) -> int: ...

    @property
    def last_step(self) -> int: ...

    def end_after(self, step: int) -> None: ...

    def boundary(self) -> None: ...


class Organizer:
    """What the organizer wants, as the coordinator says it; nobody else is believed."""

    def __init__(self, led: Led, invitation: Invitation, last_step: int, emit: Callable[[AnyEvent], None]) -> None:
        """:param last_step: without an order of the organizer"""
        self._led, self._emit = led, emit
        self._peer, self._last_step = invitation.organizer, last_step
        self._announcement = ""

    def ends_the_run(self) -> bool:
        """Whether this peer has nothing more to do."""
        self._listen()
        return self._led.step >= self._led.last_step

    def wait_while_paused(self, stop: threading.Event) -> None:
        """Compute nothing while the run is paused."""
        if not self._paused():
            return
        self._emit(State(text="the organizer has paused the run; this machine goes on when the run does"))
        while self._paused() and not stop.wait(PAUSED_SECONDS):
            self._led.boundary()
        self._emit(State(text="training"))

    def _paused(self) -> bool:
        instructions = self._listen()
        return instructions is not None and instructions.paused

    def _listen(self) -> Instructions | None:
        """The instructions of the moment; a coordinator that is gone has none, and what it said of the end stays."""
        progress = self._led.tracker.others().get(self._peer)
        if progress is None or progress.instructions is None:
            return None
        said = progress.instructions
        self._led.end_after(self._last_step if said.last_step is None else min(self._last_step, said.last_step))
        if said.announcement != self._announcement:
            self._announcement = said.announcement
            self._emit(Announced(text=said.announcement))
        return said


def await_twin(me: SwarmPeer, stop: threading.Event, emit: Callable[[AnyEvent], None]) -> None:
    """Two with one key spoil each other's rounds: who comes second waits until the other one has left."""

    me.optimizer.tracker.await_twin(stop, lambda: tell_of_waiting(emit))


def await_driving_twin(member: PipelineMember, stop: threading.Event, emit: Callable[[AnyEvent], None]) -> None:
    """The same for who only drives; it has said nothing yet, and says nothing while it waits."""
    twin, doubtful, told = member.twin, time.monotonic() + TELL_SECONDS + LOOK_SECONDS, False
    assert twin is not None
    while not stop.is_set():
        with suppress(TimeoutError):
            member.offers.look(DHT_SECONDS)
        said = twin.there(LIFE_SECONDS)
        lives = said is not None and said.time > twin.since
        if said is None or (not lives and time.monotonic() > doubtful):  # nobody's, or what a killed process left
            twin.forget()
            return
        if lives and not told:
            told = True
            tell_of_waiting(emit)
        stop.wait(LOOK_SECONDS)


def tell_of_waiting(emit: Callable[[AnyEvent], None]) -> None:
    emit(Warned(text=f"{TWIN}: this one waits until the other has left; {OWN_KEY}"))
    emit(State(text="waiting until the other machine with this identity.key has left"))


class Twin:
    """A second machine with this peer's key that came later, or at the same moment."""

    def __init__(self, twin: twins.Twin[Any], emit: Callable[[AnyEvent], None]) -> None:
        self._twin, self._emit, self._told = twin, emit, False

    def check(self) -> None:
        """Tell of it, once; raises UserError if it is this peer that has to give way."""
        if self._twin.second:
            raise UserError(f"{TWIN}: this one gives way and waits until the other has left; {OWN_KEY}")
        if self._twin.certain and not self._told:
            self._told = True
            self._emit(Warned(text=f"{TWIN}: this one goes on and the other waits; {OWN_KEY}"))


def remember(memory: Memory, me: SwarmPeer, read: DataRead | None = None, at_once: bool = False) -> None:
    """Keep who can be reached, so that this peer can join again through any of them, and what it has read.

    :param at_once: to the last sample
    """
    try:
        memory.update(me.reachable(), me.optimizer.tracker.belief.taken, read=read, at_once=at_once)
    except OSError as error:
        _log.warning("the swarm's addresses cannot be kept (%s)", error.strerror)
