"""The peer that lends its line: it averages for others, gives averages to who missed them, and trains nothing.

It holds nothing of the model, unless it gives the state to newcomers too: then it follows as the coordinator does. What
it carries is not its own word: see `swarm/allreduce/reduction/carried.py`.
"""

import os
import threading
from collections.abc import Callable

from dedloc_kit.config.machine import JoinOptions
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Left, LocalProgress, State, telling_loaded
from dedloc_kit.known_peers import Memory, initial_peers, recall
from dedloc_kit.machine.account import CODE
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.records.steps import Contribution, GlobalStep
from dedloc_kit.roles.supervision import Lost, Organizer, Twin, await_twin, introduce, remember, telling_steps
from dedloc_kit.swarm.peer import SwarmPeer, connected

LOOK_SECONDS = 1.0


def lender(
    invitation: Invitation,
    run: RunConfig,
    peer: JoinOptions,
    emit: Callable[[AnyEvent], None],
    stop: threading.Event,
    stopped: str,
) -> None:
    """As `volunteer`."""
    if run.pipeline is not None:
        raise UserError("this run is cut into stages, whose peers average among themselves: a line alone does not help")
    carried = 0

    def on_step(step: GlobalStep, contributions: dict[str, Contribution]) -> None:
        nonlocal carried
        mine = step.carried.get(me.signer.peer)
        carried += 0 if mine is None else mine.bytes
        tell(step, contributions)

    tell = telling_steps(lambda: me, emit)
    with connected(
        run,
        peer.model_copy(update={"devices": "cpu"}),
        initial_peers(invitation, peer.folder),
        organizer=invitation.organizer,
        secret=os.environ.pop(CODE, ""),
        follower=True,
        preferred_port=recall(peer.folder, run.run_id).port,
        stop=stop,
        on_step=on_step,
        on_loading=telling_loaded(emit),
    ) as me:
        _check_reach(me)
        introduce(me, Lost(), stopped, emit)
        memory = Memory(peer.folder, run.run_id, me.signer.peer, me.port)
        me.optimizer.tracker.belief.remember(recall(peer.folder, run.run_id).taken)
        await_twin(me, stop, emit)
        if peer.give_state:
            emit(State(text="loading the model"))
        me.optimizer.load()
        me.optimizer.begin()
        emit(me.joined())
        organizer, twin = (
            Organizer(me.optimizer, invitation, peer.last_step(run), emit),
            Twin(me.optimizer.tracker.twin, emit),
        )
        while not stop.is_set() and not organizer.ends_the_run():
            me.optimizer.check()
            twin.check()
            emit(_progress(me, run, carried))
            remember(memory, me)
            stop.wait(LOOK_SECONDS)
        emit(State(text="leaving"))
        me.optimizer.leave()
        emit(_progress(me, run, carried))
        emit(Left(step=me.optimizer.step, session_samples=0))


def _check_reach(me: SwarmPeer) -> None:
    """Raises UserError if nobody can reach this machine: others would send it averages, and it would carry none."""
    if me.profile.client_mode:
        raise UserError(
            "others cannot reach this machine, or nobody could tell, and a line helps only those who reach it; open a "
            "port for it (--swarm-port N, and the same one in its router or firewall), say --reachable if that is so, "
            "lend a rented server's line instead, or let this machine train: dedloc join"
        )


def _progress(me: SwarmPeer, run: RunConfig, carried: int) -> LocalProgress:
    return LocalProgress(
        step=me.optimizer.step,
        samples=0,
        swarm_samples=me.optimizer.swarm_samples(),
        averaging=me.optimizer.averaging,
        global_batch=run.global_batch,
        session_samples=0,
        loss=None,
        samples_per_second=0.0,
        decay=me.optimizer.state.decay,
        carried=carried,
    )
