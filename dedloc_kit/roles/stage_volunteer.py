"""The volunteer of a run in stages: computes one of them for all, and drives batches of its own through all."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import torch

from dedloc_kit.blocks.plans.stages import Move, Stage
from dedloc_kit.config.machine import JoinOptions
from dedloc_kit.config.places import with_copies
from dedloc_kit.config.run import MAX_BATCHES, RunConfig
from dedloc_kit.coordinator.stage_costs import expected_memory, full_rows
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Left, LocalProgress, State, Warned, telling_loaded
from dedloc_kit.known_peers import Memory, initial_peers, recall
from dedloc_kit.learning.task import Loss, StageTask, Task, create_task
from dedloc_kit.learning.train.computing.card import Computed
from dedloc_kit.learning.train.state.checkpoint import save
from dedloc_kit.machine.account import CODE
from dedloc_kit.machine.hardware import machine_at
from dedloc_kit.machine.stage_room import stages_that_fit
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.roles.data import feed_of, positions_of
from dedloc_kit.roles.supervision import (
    Lost,
    Organizer,
    Twin,
    await_twin,
    introduce,
    remember,
    tell_of_bare,
    telling_steps,
)
from dedloc_kit.swarm.membership.joining import Entry
from dedloc_kit.swarm.network.node import Node
from dedloc_kit.swarm.peer import SwarmPeer, connected_to_stages
from dedloc_kit.swarm.pipeline.computing import StageComputer
from dedloc_kit.swarm.pipeline.member import PipelineMember
from dedloc_kit.swarm.pipeline.moving import STATE_BYTES, Mover, Moving
from dedloc_kit.swarm.pipeline.placing import Newcomer
from dedloc_kit.swarm.rounds.optimizer import Caller

TURN_SECONDS = 0.05
"""For which a call is waited for before something else may be due."""
MINDING_SECONDS = 1.0
PLANNING_SECONDS = 5.0
"""Between two looks whether this peer should go to another stage, unless one has nobody."""
LAST_STEP_SECONDS = 300.0
"""For which a volunteer that moves waits for the step in which its gradients count; then it stays. At the end of the
run it waits as long for the other stages."""
FLUSH_SECONDS = 10.0
"""How long a volunteer that leaves helps to fill the batch that its last samples are part of."""

_log = logging.getLogger(__name__)


class _Gradients:
    """Where those of a stage go: to its optimizer. The driver is told at once whether they count, so each microbatch
    waits for the device."""

    def __init__(self, me: SwarmPeer) -> None:
        self._optimizer, self._replica = me.optimizer, me.replicas[0]
        self._refuses = False

    def refuse(self, refuses: bool) -> None:
        """Take no more, or again; others of the stage take them."""
        self._refuses = refuses

    @property
    def step(self) -> int:
        return self._replica.step

    @property
    def sketch(self) -> tuple[float, ...]:
        return self._replica.sketch

    @property
    def closed(self) -> bool:
        return self._refuses or self._optimizer.closed

    def accumulate(self, loss: float, samples: int) -> bool:
        gradients = self._replica.gradients
        mean = torch.tensor(loss, device=self._replica.device)
        added = gradients.add(Loss.of(mean, samples), samples, self._replica.step)
        _, finite = gradients.outcome(added)
        self._optimizer.count([Computed(0, samples, loss, samples, finite)])
        return finite

    def forget(self) -> bool:
        return self._optimizer.forget()


def stage_volunteer(
    invitation: Invitation,
    run: RunConfig,
    peer: JoinOptions,
    emit: Callable[[AnyEvent], None],
    stop: threading.Event,
    stopped: str,
    mover: Mover | None,
) -> Mover | None:
    """As `volunteer`."""
    pipeline = run.pipeline
    assert pipeline is not None
    if peer.stage is not None and peer.stage >= pipeline.count:
        raise UserError(f"this run has {pipeline.count} stages, from 0 on; choose --stage below {pipeline.count}")
    whole = create_task(run, peer.task_module)
    fits = _fitting(run, peer, whole, emit) if mover is None else frozenset(mover.fits)
    known = initial_peers(invitation, peer.folder)
    entry = Entry(
        *(run, peer, known, invitation.organizer, os.environ.pop(CODE, "")),
        preferred_port=recall(peer.folder, run.run_id).port,
        session="" if mover is None else mover.session,
    )

    def choose(node: Node) -> list[int]:
        if mover is not None:
            return [mover.stage]
        if peer.stage is not None:
            return [peer.stage]
        emit(State(text="looking for the stage that lacks peers most", then="it is downloaded"))
        shares = [whole.stage(number).share for number in range(pipeline.count)]
        stages = [Stage(share, share) for share in shares]
        return [Newcomer(run, node, entry.signer, peer, stages, fits).choose(stop)]

    def caller(_: int, stage: StageTask) -> Caller:
        return Caller(stop, peer.last_step(run), telling_steps(lambda: me, emit), telling_loaded(emit))

    with connected_to_stages(run, peer, entry, known, choose, caller, follower=False) as (task, (me,)):
        lost = Lost()
        introduce(me, lost, stopped, emit)
        await_twin(me, stop, emit)
        work = _Work(invitation, peer, task, me, known, fits, emit, stop)
        goes = work.do(lost.warn, mover)
        me.optimizer.leave()
        if goes is not None:
            return goes
        if peer.export is not None:
            save(peer.export, me.optimizer.state.parameters_copy(), me.optimizer.state.info)
        emit(Left(step=me.optimizer.step, session_samples=round(work.given)))
        return None


def _fitting(run: RunConfig, peer: JoinOptions, task: Task, emit: Callable[[AnyEvent], None]) -> frozenset[int]:
    """The stages that this machine holds, of all or of the one that was asked for; raises UserError if it is none."""
    assert run.pipeline is not None
    emit(State(text="looking which stages this machine holds", then="the one that lacks peers most is chosen"))
    count = run.pipeline.count
    asked = range(count) if peer.stage is None else (peer.stage,)
    needed = {number: expected_memory(run, task, number) for number in asked}
    fits, told = stages_that_fit(machine_at(peer.folder), needed, count, peer.devices)
    if told:
        emit(Warned(text=told))
    return fits


class _Work:
    def __init__(
        self,
        invitation: Invitation,
        peer: JoinOptions,
        task: Task,
        me: SwarmPeer,
        known: tuple[str, ...],
        fits: frozenset[int],
        emit: Callable[[AnyEvent], None],
        stop: threading.Event,
    ) -> None:
        self._run = run = with_copies(invitation.run_config(), peer.data)
        self._peer, self._task, self._me, self._emit, self._stop = peer, task, me, emit, stop
        self._fits = fits
        assert run.pipeline is not None
        stages = [task.stage(number) for number in range(run.pipeline.count)]
        self._stage, self._gradients = stages[me.optimizer.run.stage or 0], _Gradients(me)
        held = StageComputer(self._stage, me.replicas[0].model, self._gradients, most=MAX_BATCHES * run.global_batch)
        self._member = PipelineMember(
            *(run, me.dht, me.signer, me.profile, known, stages, held), pinned=peer.stage is not None
        )
        me.optimizer.fills(self._member.wanted, self._member.beside)
        self._organizer, self._twin = (
            Organizer(me.optimizer, invitation, peer.last_step(run), emit),
            Twin(me.optimizer.tracker.twin, emit),
        )
        self._memory = Memory(peer.folder, run.run_id, me.signer.peer, me.port)
        self._mind_at, self._plan_at, self._problem = 0.0, 0.0, ""
        size = STATE_BYTES * me.optimizer.state.layout.size / self._stage.share
        self._moving = Moving(
            [Stage(stage.share, size * stage.share) for stage in stages],
            *(me.signer.peer, self._member.offers, self._member.offer, fits, lambda: self._member.absent),
        )

    @property
    def given(self) -> float:
        """Samples that have counted in this session, each by the stage's share of the computation."""
        return self._stage.share * self._me.optimizer.counter.applied

    def do(self, warn: Callable[[str], None], mover: Mover | None) -> Mover | None:
        """Until this volunteer is to leave, or the run is over, or it goes to another stage.

        :param warn: told of data that cannot be read
        :param mover: if it comes from another one
        """
        me, member, emit = self._me, self._member, self._emit
        self._feed = feed = feed_of(self._run, self._task, self._peer, me.signer.peer, warn)
        rows = full_rows(self._run, self._task)
        with ExitStack() as stack:
            batches = stack.enter_context(feed.batches(rows, lambda: me.optimizer.state.decay is not None, ahead=4))
            stack.enter_context(member.serving())
            emit(State(text="loading the model"))
            me.optimizer.load()
            if mover is not None:  # its session goes on: what it gave to other stages is as much of this one
                most = me.optimizer.step * MAX_BATCHES * self._run.global_batch  # or nobody would believe it
                me.optimizer.counter.go_on(min(most, round(mover.given / self._stage.share)))
            me.optimizer.begin()
            member.say("online")
            if mover is None:
                emit(me.joined().model_copy(update={"run_id": self._run.run_id}))
            emit(State(text=f"computing stage {self._stage.number} of {self._stage.count}"))
            stack.enter_context(member.driving(lambda: next(batches), self._peer.folder))
            while not self._ends():
                self._organizer.wait_while_paused(self._stop)
                self._turn()
                if (move := self._planned()) is not None and (goes := self._go(move)) is not None:
                    remember(self._memory, me, positions_of(feed), at_once=True)
                    return goes
            self._leave()
            remember(self._memory, me, positions_of(feed), at_once=True)
            return None

    def _turn(self) -> None:
        self._member.turns.take(TURN_SECONDS)
        self._me.optimizer.boundary()
        self._me.optimizer.refresh(0)
        while not self._member.losses.empty():
            self._tell(self._member.losses.get())
        if time.monotonic() >= self._mind_at:
            self._mind_at = time.monotonic() + MINDING_SECONDS
            self._mind()

    def _mind(self) -> None:
        me, member = self._me, self._member
        self._twin.check()
        member.follow()
        if (mine := me.optimizer.tracker.mine) is not None:
            member.upload = mine.upload
        remember(self._memory, me, positions_of(self._feed))
        gone = set[str]()
        while not member.gone.empty():
            gone.add(member.gone.get())
        if gone:
            me.optimizer.tracker.avoid(gone)
            me.optimizer.tracker.peers.suspect(gone)
        if member.problem != self._problem:
            self._problem, self._plan_at = member.problem, 0.0
            tell_of_bare(self._problem, self._emit)

    def _planned(self) -> Move | None:
        """To another stage, when it is time."""
        if self._peer.stage is not None or time.monotonic() < self._plan_at:
            return None
        self._plan_at = time.monotonic() + (MINDING_SECONDS if self._problem else PLANNING_SECONDS)
        move = self._moving.look()
        self._member.announce(self._moving.intends)
        return move

    def _go(self, move: Move) -> Mover | None:
        """Begin nothing more for this stage, and see what was begun through until it has counted; but a stage that
        nobody holds waits for nothing. None if this peer stays after all."""
        member, optimizer = self._member, self._me.optimizer
        needed = self._moving.needed_at(move.stage)
        why = "has nobody" if needed else "lacks peers"
        here, there, count = self._stage.number, move.stage, self._stage.count
        self._emit(State(text=f"stage {there} of {count} {why}: moving there from stage {here}"))
        until = time.monotonic() + LAST_STEP_SECONDS
        member.move(move)
        member.stop_driving()
        self._gradients.refuse(True)
        while not self._ends() and not self._moving.needed_here() and time.monotonic() < until:
            if needed or (member.idle and not optimizer.counter.samples):
                member.go()
                fits = tuple(sorted(self._fits))
                return Mover(stage=move.stage, session=self._me.profile.session, given=self.given, fits=fits)
            self._turn()
            needed = needed or self._moving.needed_at(move.stage)
        self._gradients.refuse(False)
        member.go_on_driving()
        member.say("online")
        self._emit(State(text=f"staying at stage {here} of {count}"))
        return None

    def _ends(self) -> bool:
        return self._stop.is_set() or self._organizer.ends_the_run()

    def _leave(self) -> None:
        """Begin nothing more, and see what was begun through, as far as that does not take long."""
        self._emit(State(text="leaving"))
        member, optimizer = self._member, self._me.optimizer
        member.stop_driving()
        if self._stop.is_set():  # at the end of the run nobody is to take its place
            member.say("leaving")
        began = time.monotonic()
        while self._is_needed(time.monotonic() - began):
            member.turns.take(TURN_SECONDS)
            optimizer.boundary()
            optimizer.refresh(0)
        if lost := optimizer.counter.samples:
            _log.warning("%d samples were too early for the next step and are given up", lost)

    def _is_needed(self, seconds: float) -> bool:
        """By what it has begun, so long after it began to leave."""
        member, optimizer = self._member, self._me.optimizer
        if self._stop.is_set():
            return seconds < FLUSH_SECONDS and (not member.idle or bool(optimizer.counter.samples))
        step = member.step  # a stage without the last step may lack what this peer drives, and gets it from nobody else
        return seconds < LAST_STEP_SECONDS and step is not None and step < optimizer.step

    def _tell(self, loss: float) -> None:
        optimizer, share = self._me.optimizer, self._stage.share
        self._emit(
            LocalProgress(
                step=optimizer.step,
                samples=round(share * optimizer.samples),
                swarm_samples=optimizer.swarm_samples(),
                averaging=optimizer.averaging,
                global_batch=self._run.global_batch,
                session_samples=round(self.given),
                loss=loss if math.isfinite(loss) else None,
                samples_per_second=share * optimizer.samples_per_second,
                decay=optimizer.state.decay,
            )
        )
