"""The volunteer of a run in stages: computes one of them for all, and drives batches of its own through all."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from dedloc_kit.blocks.stages import Stage
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Left, Loading, LocalProgress, State, Warned
from dedloc_kit.machine.account import CODE
from dedloc_kit.machine.stage_room import stages_that_fit
from dedloc_kit.machine.survey import machine_at
from dedloc_kit.memory import Memory, initial_peers, recall
from dedloc_kit.minding import Lost, Organizer, Twin, await_twin, introduce, remember, telling_steps
from dedloc_kit.records import Invitation
from dedloc_kit.run import MAX_BATCHES, PeerConfig, RunConfig, seed_of
from dedloc_kit.stage_costs import expected_memory, full_rows
from dedloc_kit.swarm.membership.joining import Entry
from dedloc_kit.swarm.network.node import Node
from dedloc_kit.swarm.peer import SwarmPeer, connected_to_stages
from dedloc_kit.swarm.pipeline.computing import StageComputer
from dedloc_kit.swarm.pipeline.member import PipelineMember
from dedloc_kit.swarm.pipeline.placing import Newcomer
from dedloc_kit.swarm.rounds.optimizer import Caller
from dedloc_kit.tasks import Divisible, StageTask, create_task
from dedloc_kit.tasks.mixtures import Mixtures
from dedloc_kit.training.checkpoint import save
from dedloc_kit.training.devices import Computed

TURN_SECONDS = 0.05
"""For which a call is waited for before something else may be due."""
MINDING_SECONDS = 1.0
FLUSH_SECONDS = 10.0
"""How long a volunteer that leaves helps to fill the batch that its last samples are part of."""

_log = logging.getLogger(__name__)


class _Gradients:
    """Where those of a stage go: to its optimizer."""

    def __init__(self, me: SwarmPeer) -> None:
        self._optimizer, self._replica = me.optimizer, me.replicas[0]

    @property
    def step(self) -> int:
        return self._replica.step

    @property
    def closed(self) -> bool:
        return self._optimizer.closed

    def accumulate(self, loss: float, samples: int) -> bool:
        return not self._optimizer.accumulate([Computed(0, samples, loss, rescaled=False, batch={})])


def stage_volunteer(
    invitation: Invitation,
    run: RunConfig,
    peer: PeerConfig,
    emit: Callable[[AnyEvent], None],
    stop: threading.Event,
    stopped: str,
) -> None:
    """As `volunteer`."""
    pipeline = run.pipeline
    assert pipeline is not None
    if peer.stage is not None and peer.stage >= pipeline.count:
        raise UserError(f"this run has {pipeline.count} stages, from 0 on; choose --stage below {pipeline.count}")
    known = initial_peers(invitation, peer.folder)
    entry = Entry(
        *(run, peer, known, invitation.organizer, os.environ.pop(CODE, "")),
        preferred_port=recall(peer.folder, run.run_id).port,
    )

    def choose(node: Node) -> list[int]:
        whole = create_task(run, peer.task_module)
        assert isinstance(whole, Divisible)
        fits = _fitting(run, peer, whole, emit)
        if peer.stage is not None:
            return [peer.stage]
        emit(State(text="looking for the stage that lacks peers most"))
        shares = [whole.stage(number).share for number in range(pipeline.count)]
        stages = [Stage(share, share) for share in shares]
        return [Newcomer(run, node, entry.signer, peer, stages, fits).choose(stop)]

    def caller(_: int, stage: StageTask) -> Caller:
        def on_loading(received: int, total: int) -> None:
            emit(Loading(received_bytes=received, total_bytes=total))

        return Caller(stop, peer.last_step(run), telling_steps(lambda: me, emit), on_loading)

    with connected_to_stages(run, peer, entry, known, choose, caller, follower=False) as (task, (me,)):
        lost = Lost()
        introduce(me, lost, stopped, emit)
        await_twin(me, stop, emit)
        work = _Work(invitation, run, peer, task, me, known, emit, stop)
        work.do(lost.warn)
        me.optimizer.leave()
        if peer.export is not None:
            save(peer.export, me.optimizer.state.parameters_copy(), me.optimizer.state.info)
        emit(Left(step=me.optimizer.step, session_samples=work.given))


def _fitting(run: RunConfig, peer: PeerConfig, task: Divisible, emit: Callable[[AnyEvent], None]) -> frozenset[int]:
    """The stages that this machine holds, of all or of the one that was asked for; raises UserError if it is none."""
    assert run.pipeline is not None
    emit(State(text="looking which stages this machine holds"))
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
        run: RunConfig,
        peer: PeerConfig,
        task: Divisible,
        me: SwarmPeer,
        known: tuple[str, ...],
        emit: Callable[[AnyEvent], None],
        stop: threading.Event,
    ) -> None:
        self._run, self._peer, self._task, self._me, self._emit, self._stop = run, peer, task, me, emit, stop
        assert run.pipeline is not None
        stages = [task.stage(number) for number in range(run.pipeline.count)]
        self._stage = stages[me.optimizer.run.stage or 0]
        held = StageComputer(self._stage, me.replicas[0].model, _Gradients(me), most=MAX_BATCHES * run.global_batch)
        self._member = PipelineMember(
            *(run, me.dht, me.signer, me.profile, known, stages, held), pinned=peer.stage is not None
        )
        me.optimizer.fills(self._member.wanted)
        self._organizer, self._twin = Organizer(me.optimizer, invitation, peer.last_step(run), emit), Twin(me, emit)
        self._memory = Memory(peer.folder, run.run_id, me.signer.peer, me.port)
        self._mind_at, self._problem = 0.0, ""

    @property
    def given(self) -> int:
        """Samples that have counted in this session, each by the stage's share of the computation."""
        return round(self._stage.share * self._me.optimizer.tally.counted)

    def do(self, warn: Callable[[str], None]) -> None:
        """Until this volunteer is to leave, or the run is over.

        :param warn: told of data that cannot be read
        """
        me, member, emit = self._me, self._member, self._emit
        seed = seed_of(self._run.run_id, me.signer.peer, me.profile.session)
        mixtures = Mixtures(self._run, self._task, self._peer.task_module, lambda: me.optimizer.state.decay is not None)
        rows = full_rows(self._run, self._task)
        with ExitStack() as stack:
            batches = stack.enter_context(mixtures.batches(rows, seed, warn, ahead=4))
            stack.enter_context(member.serving())
            emit(State(text="loading the training state"))
            me.optimizer.load()
            me.optimizer.begin()
            member.say("online")
            emit(me.joined().model_copy(update={"run_id": self._run.run_id}))
            emit(State(text=f"computing stage {self._stage.number + 1} of {self._stage.count}"))
            stack.enter_context(member.driving(lambda: next(batches)))
            while not self._stop.is_set() and not self._organizer.ends_the_run():
                self._organizer.wait_while_paused(self._stop)
                self._turn()
            self._leave()

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
        remember(self._memory, me)
        gone = set[str]()
        while not member.gone.empty():
            gone.add(member.gone.get())
        if gone:
            me.optimizer.tracker.avoid(gone)
            me.optimizer.tracker.suspicion.suspect(gone)
        if member.problem != self._problem:
            self._problem = member.problem
            self._emit(
                Warned(text=f"{self._problem}: nothing can be trained until somebody takes it")
                if self._problem
                else State(text="all stages have somebody again")
            )

    def _leave(self) -> None:
        """Begin nothing more, and see what was begun through, as far as that does not take long."""
        self._emit(State(text="leaving"))
        member, optimizer = self._member, self._me.optimizer
        member.stop_driving()
        member.say("leaving")
        until = time.monotonic() + FLUSH_SECONDS
        while self._stop.is_set() and time.monotonic() < until and (not member.idle or optimizer.tally.samples):
            member.turns.take(TURN_SECONDS)
            optimizer.boundary()
            optimizer.refresh(0)
        if lost := optimizer.tally.samples:
            _log.warning("%d samples were too early for the next step and are given up", lost)

    def _tell(self, loss: float) -> None:
        optimizer, share = self._me.optimizer, self._stage.share
        self._emit(
            LocalProgress(
                step=optimizer.step,
                samples=round(share * optimizer.samples),
                swarm_samples=optimizer.swarm_samples(),
                global_batch=self._run.global_batch,
                session_samples=self.given,
                loss=loss if math.isfinite(loss) else None,
                samples_per_second=share * optimizer.samples_per_second,
                decay=optimizer.state.decay,
            )
        )
