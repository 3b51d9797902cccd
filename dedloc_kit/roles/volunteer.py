"""The volunteer: takes batches, accumulates gradients, and lets the collaborative optimizer do the rest."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

from dedloc_kit.config.machine import JoinOptions
from dedloc_kit.config.places import with_copies
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Left, LocalProgress, State, Warned, telling_loaded
from dedloc_kit.expert_runtime import Mixing, Unmixed, asking, room_for_experts
from dedloc_kit.known_peers import Memory, initial_peers, recall
from dedloc_kit.learning.data.prefetching import Loader
from dedloc_kit.learning.task import Task, create_task
from dedloc_kit.learning.tasks.batches import loader_of
from dedloc_kit.learning.train.computing.cards import Callbacks, Cards
from dedloc_kit.learning.train.computing.compiling import compiler
from dedloc_kit.learning.train.computing.microbatch import largest_microbatch
from dedloc_kit.learning.train.state.checkpoint import save
from dedloc_kit.machine.account import CODE
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.records.steps import Contribution, GlobalStep
from dedloc_kit.roles.auxiliary_peer import lender
from dedloc_kit.roles.data import feed_of, positions_of
from dedloc_kit.roles.stage_driver import stage_driver
from dedloc_kit.roles.stage_volunteer import stage_volunteer
from dedloc_kit.roles.supervision import Lost, Organizer, Twin, await_twin, introduce, remember, telling_steps
from dedloc_kit.swarm.audits.answering import Answering, only_own
from dedloc_kit.swarm.audits.known_answer import Trial, known_question
from dedloc_kit.swarm.audits.recomputing import Recomputer, line_of
from dedloc_kit.swarm.peer import SwarmPeer, connected
from dedloc_kit.swarm.pipeline.moving import Mover

COMPILED = "compiled"
"""The folder, in a peer's, of what torch's compiler has made."""
FLUSH_SECONDS = 10.0
"""How long a volunteer that leaves helps to fill the batch that its last samples are part of."""

_log = logging.getLogger(__name__)


def volunteer(
    invitation: Invitation,
    peer: JoinOptions,
    emit: Callable[[AnyEvent], None],
    stop: threading.Event,
    stopped: str = "",
    mover: Mover | None = None,
) -> Mover | None:
    """Join the run and train until `stop` is set (or the run is finished). Raises UserError if it cannot.

    Returns what it is to be called with in a new process if it goes over to another stage.

    :param stopped: why the training stopped before, if it is started again
    """
    run = with_copies(invitation.run_config(), peer.data)
    emit(State(text="connecting", then="the model is downloaded"))
    if peer.auxiliary:
        lender(invitation, run, peer.model_copy(update={"devices": "cpu"}), emit, stop, stopped)
        return None
    if run.pipeline is not None:
        if peer.compile:
            raise UserError("the stages of a model are not compiled; leave --compile out")
        if peer.drive_only and peer.stage is not None:
            raise UserError("who only drives holds no stage; leave --stage or --drive-only out")
        if not peer.drive_only:
            return stage_volunteer(invitation, run, peer, emit, stop, stopped, mover)
        stage_driver(invitation, run, peer, emit, stop, stopped)
        return None
    if peer.stage is not None or peer.drive_only:
        raise UserError(
            f"this run is not cut into stages; leave {'--drive-only' if peer.drive_only else '--stage'} out"
        )

    if peer.host_experts and run.experts is None:
        raise UserError("this run has no experts to host; leave --host-experts out")
    lost = Lost()
    mixing: Mixing = Unmixed()

    def on_step(step: GlobalStep, contributions: dict[str, Contribution]) -> None:
        mixing.stepped(step)  # first, for others wait for it
        tell_step(step, contributions)

    tell_step = telling_steps(lambda: me, emit)

    loader: Loader | None = None

    def load(task: Task, devices: int) -> Loader:
        nonlocal loader
        loader = loader_of(run, task, lost.warn, 4 * devices)
        return loader

    on_loading = telling_loaded(emit)
    known = initial_peers(invitation, peer.folder)
    with connected(
        run,
        peer,
        known,
        organizer=invitation.organizer,
        secret=os.environ.pop(CODE, ""),  # before any process is started that would inherit it
        follower=False,
        preferred_port=recall(peer.folder, run.run_id).port,
        stop=stop,
        on_step=on_step,
        on_loading=on_loading,
        load=load,
    ) as me:
        introduce(me, lost, stopped, emit)
        memory = Memory(peer.folder, run.run_id, me.signer.peer, me.port)
        me.optimizer.tracker.belief.remember(recall(peer.folder, run.run_id).taken)
        await_twin(me, stop, emit)
        count = len(me.replicas)
        size = peer.microbatch or run.microbatch
        feed = feed_of(run, me.task, peer, me.signer.peer, lost.warn, loader)
        largest = size or largest_microbatch(run, count)
        # A task may keep something from one microbatch to the next.
        tasks = [me.task, *(create_task(run, peer.task_module) for _ in me.replicas[1:])]
        with ExitStack() as stack:
            falls = lambda: me.optimizer.state.decay is not None  # noqa: E731
            batches = stack.enter_context(feed.batches(largest, falls, ahead=4 * count))
            room = room_for_experts(peer.folder) if peer.host_experts else 0
            mixing = stack.enter_context(asking(me, known, room, emit))
            cards = Cards(
                me.replicas,
                [mixing.counted(task.loss) for task in tasks],
                batches,
                Callbacks(me.optimizer.refresh, me.optimizer.leave_out_replica, line_of),
                in_step=not run.averaging.overlap or run.averaging.mode == "local-steps",
                prepare=me.task.prepare,
                compile=compiler(peer.folder / COMPILED) if peer.compile else None,
            )
            stack.callback(cards.close)
            recomputer, trial = _recomputing(run, peer, me, cards)
            mixing.await_experts(stop.is_set)
            emit(State(text="loading the model"))
            with ThreadPoolExecutor(max_workers=1) as line:  # it is busy with the state, the processor with a trial
                loading = line.submit(me.optimizer.load)
                if not size:
                    _try_microbatch(cards, emit)
                if peer.compile:
                    _compile(cards, emit)
                if trial is not None:
                    trial.prepare()
            loading.result()
            if trial is not None and not stop.is_set():
                _pass(trial, cards, me.optimizer.step, emit, stop)
            me.optimizer.begin()
            mixing.begin()
            emit(me.joined())
            emit(State(text="training"))
            answer = _answering(peer, me, recomputer)
            organizer, twin = (
                Organizer(me.optimizer, invitation, peer.last_step(run), emit),
                Twin(me.optimizer.tracker.twin, emit),
            )

            def over() -> bool:
                me.optimizer.boundary()
                return stop.is_set() or organizer.ends_the_run()

            while not stop.is_set() and not organizer.ends_the_run():
                organizer.wait_while_paused(stop)
                if not mixing.await_experts(over):
                    continue
                twin.check()
                answer()
                _train_on(cards, me, mixing, emit)
                remember(memory, me, positions_of(feed))
            emit(State(text="leaving"))
            until = time.monotonic() + FLUSH_SECONDS
            while stop.is_set() and me.optimizer.counter.samples:
                left = me.optimizer.seconds_left
                if time.monotonic() + left > until:
                    samples = me.optimizer.counter.samples
                    _log.warning("%d samples were too early for the next step and are given up", samples)
                    break
                if left:
                    _train_on(cards, me, mixing, emit)
                else:  # what is computed during a round would be for the step after
                    me.optimizer.await_round(until)
            remember(memory, me, positions_of(feed), at_once=True)
            mixing.leave()
        me.optimizer.leave()
        if peer.export is not None:
            save(peer.export, me.optimizer.state.parameters_copy(), me.optimizer.state.info)
        emit(Left(step=me.optimizer.step, session_samples=me.optimizer.counter.applied))
        return None


def _recomputing(
    run: RunConfig, peer: JoinOptions, me: SwarmPeer, cards: Cards
) -> tuple[Recomputer, Trial] | tuple[None, None]:
    """Who computes for the organizer's questions, and the trial before anything counts; nobody where checks are off."""
    if me.parameters is None:
        return None, None
    recomputer = Recomputer(run, peer.task_module, me.parameters, cards.recompute)
    organizer = me.optimizer.tracker.belief.organizer
    question = partial(known_question, run, organizer, me.parameters.size)
    return recomputer, Trial(me.exchange.host, question, recomputer, me.parameters)


def _answering(peer: JoinOptions, me: SwarmPeer, recomputer: Recomputer | None) -> Callable[[], None]:
    """What is to be done between two microbatches about the organizer's questions."""
    if recomputer is None:
        return lambda: None
    own = only_own(me.signer.peer, recomputer.answer)
    return Answering(me.exchange.host, recomputer.answer if peer.checks else own).turn


def _pass(trial: Trial, cards: Cards, step: int, emit: Callable[[AnyEvent], None], stop: threading.Event) -> None:
    """Raises UserError if a device of this machine computes wrongly."""
    emit(State(text="trying whether this machine computes rightly"))
    if failed := trial.failed(step, cards.each(), stop):
        raise UserError(
            f"this machine computes wrongly ({', '.join(failed)}): twice it found another gradient than the right one "
            "for a microbatch whose answer is known, and has given nothing to the run; train on another device "
            "(--devices cpu instead of a GPU), or undo overclocking, check the memory and update the driver"
        )


def _try_microbatch(cards: Cards, emit: Callable[[AnyEvent], None]) -> None:
    emit(State(text="trying how many samples this machine takes at once"))
    found = cards.find_sizes()
    emit(State(text=f"this machine takes {' + '.join(map(str, found))} sample{'' if found == [1] else 's'} at once"))


def _compile(cards: Cards, emit: Callable[[AnyEvent], None]) -> None:
    emit(State(text="compiling the model for this machine; that takes a minute or more"))
    faster = [f"{times:.2f} times as fast" for times in cards.compile() if times > 1]
    if faster:
        emit(State(text=f"the compiled model is {' and '.join(faster)}"))


def _train_on(cards: Cards, me: SwarmPeer, mixing: Mixing, emit: Callable[[AnyEvent], None]) -> None:
    """A microbatch, or one on each device: forward, backward, accumulate, and whatever the swarm has due."""
    if me.optimizer.ahead:
        me.optimizer.boundary()
        return
    computed = cards.compute()
    for each in me.optimizer.count(computed):
        if not each.rescaled:
            emit(Warned(text=f"a microbatch was skipped: its loss ({each.loss}) or gradient is not a finite number"))
    me.optimizer.boundary()
    if not computed:
        return
    loss = sum(each.samples * each.loss for each in computed) / sum(each.samples for each in computed)
    emit(
        LocalProgress(
            step=me.optimizer.step,
            samples=me.optimizer.samples,
            swarm_samples=me.optimizer.swarm_samples(),
            averaging=me.optimizer.averaging,
            global_batch=me.optimizer.run.global_batch,
            session_samples=me.optimizer.counter.applied,
            loss=loss if math.isfinite(loss) else None,
            samples_per_second=me.optimizer.samples_per_second,
            decay=me.optimizer.state.decay,
            answered=mixing.answered,
        )
    )
