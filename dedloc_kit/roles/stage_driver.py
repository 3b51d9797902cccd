"""The volunteer of a run in stages that holds none: it drives batches of its own data through those of others.

It holds no parameter, takes no step and averages nothing. Which step the stages hold it hears from those who hold them;
what the organizer wants, and that a run is over whose stages have left, from the coordinator.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.coordinator.stage_costs import full_rows
from dedloc_kit.events import AnyEvent, Joined, Left, LocalProgress, State
from dedloc_kit.known_peers import Memory, initial_peers, recall
from dedloc_kit.learning.data.prefetching import Loader
from dedloc_kit.learning.task import Task
from dedloc_kit.learning.tasks.batches import Feed, loader_of
from dedloc_kit.machine.account import CODE
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.records.orders import Decay
from dedloc_kit.records.progress import Progress
from dedloc_kit.roles.data import feed_of, positions_of
from dedloc_kit.roles.supervision import Lost, Organizer, Twin, await_driving_twin, tell_of_bare, tell_reach
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.membership.joining import Entry
from dedloc_kit.swarm.peer import DrivingPeer, connected_to_drive
from dedloc_kit.swarm.pipeline.member import PipelineMember

LOOK_SECONDS = 0.05
AHEAD = 4
"""Batches that are made before they are driven."""
FLUSH_SECONDS = 10.0
"""How long one that leaves waits for what it has begun."""

_log = logging.getLogger(__name__)


class _Following:
    """How far the run is; see `CollaborativeOptimizer` for what each name promises."""

    def __init__(self, tracker: Tracker, organizer: str, last_step: int) -> None:
        self.tracker, self.step, self.last_step = tracker, 0, last_step
        self._organizer = organizer

    def told(self) -> Progress | None:
        """What the coordinator says."""
        return self.tracker.others().get(self._organizer)

    @property
    def decay(self) -> Decay | None:
        told = self.told()
        return None if told is None or told.instructions is None else told.instructions.decay

    def hear(self, step: int | None) -> None:
        """:param step: of all stages; where one has nobody that of the coordinator, for after the last one all leave"""
        if step is None and (told := self.told()) is not None:
            step = told.step
        self.step = max(self.step, step or 0)

    def end_after(self, step: int) -> None:
        self.last_step = step

    def boundary(self) -> None:
        """Nothing is due here."""


def stage_driver(
    invitation: Invitation,
    run: RunConfig,
    peer: PeerConfig,
    emit: Callable[[AnyEvent], None],
    stop: threading.Event,
    stopped: str,
) -> None:
    """As `volunteer`."""
    known, remembered = initial_peers(invitation, peer.folder), recall(peer.folder, run.run_id)
    entry = Entry(*(run, peer, known, invitation.organizer, os.environ.pop(CODE, "")), preferred_port=remembered.port)
    unwanted, lost = list[Exception](), Lost()
    loader: Loader | None = None

    def load(task: Task, _devices: int) -> Loader:
        nonlocal loader
        loader = loader_of(run, task, lost.warn, AHEAD)
        return loader

    with connected_to_drive(run, peer, entry, known, unwanted.append, load) as me:
        tell_reach(me.dht, emit)
        driving = _Driving(invitation, run, peer, me, known, emit, lost, loader)
        driving.do(stop, unwanted)
        emit(Left(step=driving.following.step, session_samples=0))


class _Driving:
    def __init__(
        self,
        invitation: Invitation,
        run: RunConfig,
        peer: PeerConfig,
        me: DrivingPeer,
        known: tuple[str, ...],
        emit: Callable[[AnyEvent], None],
        lost: Lost,
        loader: Loader | None,
    ) -> None:
        assert run.pipeline is not None
        self._lost, self._loader = lost, loader
        self._run, self._peer, self._me, self._emit = run, peer, me, emit
        stages = [me.task.stage(number) for number in range(run.pipeline.count)]
        self._member = PipelineMember(*(run, me.dht, me.signer, me.profile, known, stages, None), pinned=False)
        self.following = _Following(me.tracker, invitation.organizer, peer.last_step(run))
        self._organizer = Organizer(self.following, invitation, peer.last_step(run), emit)
        assert self._member.twin is not None
        self._twin = Twin(self._member.twin, emit)
        self._problem, self._began = "", time.monotonic()

    def do(self, stop: threading.Event, unwanted: list[Exception]) -> None:
        """Until this volunteer is to leave, or the run is over.

        :param unwanted: gets why the organizer wants it here no more
        """
        me, run, member = self._me, self._run, self._member
        feed = feed_of(run, me.task, self._peer, me.signer.peer, self._lost.warn, self._loader)
        memory = Memory(self._peer.folder, run.run_id, me.signer.peer, 0)
        with ExitStack() as stack:
            rows = full_rows(run, me.task)
            batches = stack.enter_context(feed.batches(rows, lambda: self.following.decay is not None, ahead=AHEAD))
            stack.enter_context(member.serving())
            await_driving_twin(member, stop, self._emit)
            stack.enter_context(member.driving(lambda: next(batches), self._peer.folder))
            member.say("online")
            self._emit(self._joined())
            self._emit(State(text="training"))
            while not stop.is_set() and not self._organizer.ends_the_run():
                self._organizer.wait_while_paused(stop)
                if unwanted:
                    raise unwanted[0]
                self._turn()
                self._remember(memory, feed)
                stop.wait(LOOK_SECONDS)
            self._emit(State(text="leaving"))
            self._remember(memory, feed, at_once=True)
            member.stop_driving()
            until = time.monotonic() + FLUSH_SECONDS
            while stop.is_set() and not member.idle and time.monotonic() < until:
                time.sleep(LOOK_SECONDS)
            self._show()

    def _remember(self, memory: Memory, feed: Feed, at_once: bool = False) -> None:
        try:
            memory.update({}, read=positions_of(feed), at_once=at_once)
        except OSError as error:
            _log.warning("what was read cannot be kept (%s)", error.strerror)

    def _turn(self) -> None:
        member = self._member
        self._twin.check()
        member.follow()
        self.following.hear(member.step)
        while not member.gone.empty():
            member.gone.get()  # it averages with nobody
        self._show()
        if member.problem != self._problem:
            self._problem = member.problem
            tell_of_bare(self._problem, self._emit)

    def _show(self) -> None:
        while not self._member.losses.empty():
            self._tell(self._member.losses.get())

    def _tell(self, loss: float) -> None:
        driven, begun = self._member.driven, self._member.begun
        mine = 0 if begun is None else begun.samples
        self._emit(
            LocalProgress(
                step=self.following.step,
                samples=mine,
                swarm_samples=mine,
                global_batch=self._run.global_batch,
                session_samples=0,
                loss=loss if math.isfinite(loss) else None,
                samples_per_second=driven / (time.monotonic() - self._began),
                decay=self.following.decay,
                driven=driven,
            )
        )

    def _joined(self) -> Joined:
        me = self._me
        return Joined(
            run_id=self._run.run_id,
            peer=me.signer.peer,
            session=me.profile.session,
            addresses=me.profile.addresses,
            step=self.following.step,
            device=me.profile.device,
            parameters=0,
        )
