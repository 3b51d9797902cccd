"""What every role starts with: a device, a model and a place in the swarm."""

import gc
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Protocol

import torch

from dedloc_kit.access.admission import Office
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.events import Joined
from dedloc_kit.experts.state import MixedState
from dedloc_kit.learning.task import ParamGroup, StageTask, Task, create_task
from dedloc_kit.learning.train.computing.device import describe_devices, pick_devices, set_threads, usable_devices
from dedloc_kit.learning.train.flat import FlatLayout, Room, SharedVector, shared_zeros
from dedloc_kit.learning.train.gradients.accumulator import MAX_STALENESS, Accumulator
from dedloc_kit.learning.train.gradients.gradients import Gradients
from dedloc_kit.learning.train.gradients.local_steps import LocalSteps
from dedloc_kit.learning.train.optim.build import build_optimizer, local_optimizer
from dedloc_kit.learning.train.optim.outer import NesterovSGD
from dedloc_kit.learning.train.schedule import learning_rate
from dedloc_kit.learning.train.state.checkpoint import Found
from dedloc_kit.learning.train.state.no_state import NoState
from dedloc_kit.learning.train.state.replica import Replica
from dedloc_kit.learning.train.state.rooms import zeros_despite_a_full_disk
from dedloc_kit.learning.train.state.state import SharedOptimizer, TrainingState
from dedloc_kit.swarm.audits.answering import RecomputeService
from dedloc_kit.swarm.audits.audit import GIVEN_UP_STEPS, KEPT_STEPS
from dedloc_kit.swarm.audits.equivocation import EquivocationService
from dedloc_kit.swarm.audits.kept import Kept
from dedloc_kit.swarm.audits.kept_parameters import KeptParameters
from dedloc_kit.swarm.audits.known_answer import KnownAnswers
from dedloc_kit.swarm.audits.probation import StandingService
from dedloc_kit.swarm.audits.proofs import ProofService
from dedloc_kit.swarm.averaging.averager import Averager
from dedloc_kit.swarm.averaging.pledges.introduced_rounds import IntroducedRounds
from dedloc_kit.swarm.averaging.pledges.pledges import LOTS, Pledges
from dedloc_kit.swarm.averaging.service import AveragingService, Rules, rules_of
from dedloc_kit.swarm.chain.branch import Branch, World
from dedloc_kit.swarm.consensus.resets import ResetOptions
from dedloc_kit.swarm.directory.belief import Belief
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.gathering.service import GatheringService
from dedloc_kit.swarm.incidents import Incidents
from dedloc_kit.swarm.membership.admission import serve
from dedloc_kit.swarm.membership.joining import Entry
from dedloc_kit.swarm.membership.notices import Membership, NoticeFollower, NoticeWriter
from dedloc_kit.swarm.network.gate import Gate
from dedloc_kit.swarm.network.host import Host, Owner
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.node import Node, addresses_of, hosts_of
from dedloc_kit.swarm.network.service import Endpoint, Service
from dedloc_kit.swarm.p2p.adapters import KeySigner, KeyVerifier, Libp2pNetwork
from dedloc_kit.swarm.p2p.local import FolderDisk, SystemClock
from dedloc_kit.swarm.rounds.exchange import Exchange
from dedloc_kit.swarm.rounds.optimizer import Caller, CollaborativeOptimizer, StepListener
from dedloc_kit.swarm.transfer.addressed import ContentService, Find
from dedloc_kit.swarm.transfer.donor import Donor
from dedloc_kit.swarm.transfer.service import NoSource, StateSource, Transfers, TransferService
from dedloc_kit.swarm.trust.standing import read

DRIVER_LOOK_SECONDS = 1.0
"""Between two looks of who only drives at what the others say of their steps."""


Load = Callable[[Task, int], AbstractContextManager[object]]
"""Starts what makes a task's batches, for so many devices; it ends with the connection."""


class Modelled(Protocol):
    """What is trained: a task, or a stage of one."""

    def model(self) -> torch.nn.Module: ...

    def groups(self, model: torch.nn.Module) -> list[ParamGroup]: ...


@dataclass(frozen=True)
class SwarmPeer:
    """A peer that is connected, with the collaborative optimizer that holds its part of the run."""

    task: Task
    replicas: tuple[Replica, ...]
    """The model that a volunteer trains, on each of its devices; a follower has none."""
    profile: Profile
    signer: Signer
    dht: Node
    exchange: Exchange
    optimizer: CollaborativeOptimizer
    parameters: KeptParameters | None
    """Of the last few steps, where checks are on."""

    @property
    def port(self) -> int:
        """The swarm's port of this machine; 0 in client mode."""
        return int(self.profile.addresses[0].split("/")[4]) if self.profile.addresses else 0

    def reachable(self) -> dict[str, tuple[str, ...]]:
        """Addresses of the others who are here and were met there, by peer id."""
        tracker = self.optimizer.tracker
        here = tracker.others()
        return {peer: addresses for peer, addresses in tracker.connections.met().items() if peer in here}

    def hosts(self) -> dict[str, str]:
        """From where this peer sees those who are connected to it, by peer id."""
        return hosts_of(self.dht)

    def beginning(self) -> Found:
        """The state that the run began with; raises UserError if the model that it went on from is not there."""
        run = self.optimizer.run
        trained = _trained(self.task, run)
        model = self.task.first_model() if run.stage is None else trained.model()
        state = self.optimizer.state
        return state.another(model, lambda model: _shared_optimizer(run, trained, model)).copy()

    def joined(self) -> Joined:
        """The event that tells that this peer takes part."""
        return Joined(
            run_id=self.optimizer.run.run_id,
            peer=self.signer.peer,
            session=self.profile.session,
            addresses=self.profile.addresses,
            step=self.optimizer.step,
            device=self.profile.device,
            parameters=self.optimizer.state.layout.size,
        )


@contextmanager
def connected(
    run: RunConfig,
    peer: PeerConfig,
    initial_peers: Sequence[str],
    *,
    organizer: str | None,
    secret: str = "",
    follower: bool,
    may_start_alone: bool = False,
    preferred_port: int = 0,
    stop: threading.Event,
    on_step: StepListener,
    on_loading: Callable[[int, int], None] = lambda _received, _total: None,
    content: Find | None = None,
    load: Load | None = None,
) -> Iterator[SwarmPeer]:
    """Build the model, connect to the swarm and leave it at the end. Call it in a process's main thread.

    Up to three processes are forked: the one that makes batches and the DHT node before torch has done any work, the
    averager before any other thread of ours runs. Raises UserError with what is wrong and what to do.

    :param organizer: peer id of the coordinator, as the invitation says; none if it is this peer
    :param secret: a personal code or a token of the Hub, for the coordinator of a run that is not open
    :param content: where that lies which this peer gives to others by its hash
    :param load: what makes the batches of a peer that trains; it forks
    """
    entry = Entry(
        run,
        peer,
        initial_peers,
        organizer,
        secret,
        may_start_alone=may_start_alone,
        preferred_port=preferred_port,
    )
    with _inside(run, peer, entry, initial_peers, load) as inside:
        caller = Caller(stop, peer.last_step(run), on_step, on_loading)
        with _taking_part(inside, [inside.part(run, follower, caller, content)]) as (me,):
            yield me


@contextmanager
def connected_to_stages(
    run: RunConfig,
    peer: PeerConfig,
    entry: Entry,
    initial_peers: Sequence[str],
    choose: Callable[[Node], Sequence[int]],
    callers: Callable[[int, StageTask], Caller],
    follower: bool,
    room: Callable[[StageTask], Room] = lambda _: shared_zeros,
) -> Iterator[tuple[Task, tuple[SwarmPeer, ...]]]:
    """The same for some stages of a pipeline, each a part of the run; one process of its own averages each.

    :param choose: which stages, in a swarm that this node is in
    :param callers: who is told of a stage's steps, by its number
    :param room: where a stage's state lies
    """
    with _inside(run, peer, entry, initial_peers) as inside:
        chosen = [(number, inside.task.stage(number)) for number in choose(inside.node)]
        parts = [inside.part(run.of_stage(k), follower, callers(k, stage), room=room(stage)) for k, stage in chosen]
        with _taking_part(inside, parts) as peers:
            yield inside.task, tuple(peers)


@dataclass(frozen=True)
class DrivingPeer:
    """A peer that is connected and holds nothing of the model.

    :ivar tracker: of the first stage: it looks, and reports nothing
    """

    task: Task
    profile: Profile
    signer: Signer
    dht: Node
    tracker: Tracker


@contextmanager
def connected_to_drive(
    run: RunConfig,
    peer: PeerConfig,
    entry: Entry,
    initial_peers: Sequence[str],
    give_up: Callable[[Exception], None],
    load: Load | None = None,
) -> Iterator[DrivingPeer]:
    """The same for who only drives: nothing is averaged, and no process is started for that.

    :param give_up: called when the organizer does not want this peer here any more
    :param load: as for `connected`
    """
    with _inside(run, peer, entry, initial_peers, load) as inside:
        profile = inside.profile(follower=True, devices=inside.devices)
        tracker = inside.tracker(run.of_stage(0), profile.session)

        def tell(gate: Gate) -> None:
            tracker.peers.ban(gate.notice)

        follower = NoticeFollower(inside.node, entry.signer, tracker.reject, tell, entry.identity, give_up)
        tracker.look_every(DRIVER_LOOK_SECONDS)
        tracker.start()
        follower.start()
        try:
            yield DrivingPeer(inside.task, profile, entry.signer, inside.node, tracker)
        finally:
            follower.stop()
            tracker.leave()


@dataclass(frozen=True)
class _Inside:
    """A machine whose node is in the swarm."""

    peer: PeerConfig
    entry: Entry
    initial_peers: Sequence[str]
    node: Node
    office: Office | None
    """Of the organizer."""
    task: Task
    devices: Sequence[torch.device]
    incidents: Incidents

    def part(
        self, run: RunConfig, follower: bool, caller: Caller, content: Find | None = None, room: Room = shared_zeros
    ) -> SwarmPeer:
        """What averages the run, or a part of it, with others. It forks."""
        trained = _trained(self.task, run)
        node, signer, peer = self.node, self.entry.signer, self.peer
        rules, state = rules_of(run), self._state(run, trained, room)
        if isinstance(state, NoState):
            source: StateSource = NoSource()
            rules = replace(rules, lent=peer.folder / "lent")
        else:
            source = StateSource(state.for_newcomer, lambda: state.info)
        exchange = exchange_of(node, signer, run, state.layout, source, peer.folder, rules, content, room)
        if isinstance(state, MixedState):
            state.hold_all()
        parameters = None
        if self.office is not None or not follower:  # of a lender nobody asks for any
            parameters = _kept_parameters(state, peer, GIVEN_UP_STEPS if self.office is not None else 2 * KEPT_STEPS)
        # Tried only now that the process that averages has been forked.
        devices = self.devices if follower else usable_devices(self.devices, peer.devices)
        replicas = () if follower else tuple(Replica(state, device) for device in devices)
        accumulator = _accumulator(run, trained, state, replicas)
        profile = replace(self.profile(follower, devices), holds_state=not isinstance(state, NoState))
        tracker = self.tracker(run, profile.session)
        optimizer = CollaborativeOptimizer(state, replicas, accumulator, exchange, tracker, signer, profile, caller)
        return SwarmPeer(self.task, replicas, profile, signer, node, exchange, optimizer, parameters)

    def _state(self, run: RunConfig, trained: Modelled, room: Room) -> TrainingState:
        if not self.peer.holds_state:
            return NoState(_layout_of(trained), run)
        made = trained.model(), partial(_shared_optimizer, run, trained), run, room
        if run.experts is not None and self.office is not None:  # all experts are the organizer's
            return MixedState(*made, partial(zeros_despite_a_full_disk, self.peer.folder / "experts"))
        return TrainingState(*made)

    def profile(self, follower: bool, devices: Sequence[torch.device]) -> Profile:
        return Profile(
            session=self.entry.session or secrets.token_hex(8),
            name=self.peer.name,
            team=self.peer.team,
            device=describe_devices(devices),
            follower=follower,
            client_mode=self.node.reach.client_mode,
            addresses=addresses_of(self.node),
            reached="".join(self.node.reach.words),
            listed=self.peer.listed,
        )

    def tracker(self, run: RunConfig, session: str) -> Tracker:
        signer, gate = self.entry.signer, self.entry.gate
        belief = Belief(signer.peer, gate.organizer, lambda: gate.notice)
        return Tracker(self.node, signer, run, self.initial_peers, self.incidents, belief, session)


@contextmanager
def _inside(
    run: RunConfig, peer: PeerConfig, entry: Entry, initial_peers: Sequence[str], load: Load | None = None
) -> Iterator[_Inside]:
    devices = pick_devices(peer.devices)
    set_threads(peer.threads, devices)
    with ThreadPoolExecutor(max_workers=1) as line:  # it waits for others, the processor imports what the task needs
        looking = line.submit(entry.surroundings)
        task = create_task(run, peer.task_module)
    around, signer = looking.result(), entry.signer
    with ExitStack() as stack:
        if load is not None:
            stack.enter_context(load(task, len(devices)))
        node = entry.start(around)
        stack.callback(node.shutdown)
        office = None
        if entry.gate.organizer == signer.peer:
            office = Office(run, peer.folder, signer.peer)
            node.run_coroutine(partial(serve, run, office, signer))
        yield _Inside(peer, entry, initial_peers, node, office, task, devices, Incidents())


@contextmanager
def _taking_part(inside: _Inside, parts: Sequence[SwarmPeer]) -> Iterator[Sequence[SwarmPeer]]:
    """Follow who may take part, and leave at the end."""
    node, signer, first = inside.node, inside.entry.signer, parts[0].optimizer

    def tell(gate: Gate) -> None:
        for part in parts:
            part.exchange.host.call(Gate.follow, gate.token, gate.notice)
            part.optimizer.tracker.peers.ban(gate.notice)

    def give_up(reason: Exception) -> None:
        for part in parts:
            part.optimizer.give_up(reason)

    membership: Membership
    if inside.office is not None:
        membership = NoticeWriter(node, signer, first.tracker.reject, tell, inside.office, first.tracker.position)
    else:
        membership = NoticeFollower(node, signer, first.tracker.reject, tell, inside.entry.identity, give_up)
    membership.start()
    try:
        yield parts
    finally:
        membership.stop()
        for part in parts:
            part.optimizer.leave()
            if part.parameters is not None:
                part.parameters.close()


def exchange_of(
    node: Node,
    signer: Signer,
    run: RunConfig,
    layout: FlatLayout,
    source: StateSource,
    folder: Path,
    rules: Rules | None = None,
    content: Find | None = None,
    room: Room = shared_zeros,
) -> Exchange:
    """Start the process that averages with others and gives them the state. It holds the services `sharing`, `group`,
    `chain` and `allreduce`, and with checks `proofs`, `recompute`, `standing`, `known-answer` and `equivocation`, and
    `content` where there is any; those of the directory, of reachability and of admission live in the node's process.

    Call it in a process's main thread, before other threads run: it forks.

    :param source: of the state that is handed out
    :param folder: this peer's; where members are checked it holds what they may be asked for
    :param rules: the usual ones if none are given
    :param content: where that lies which others are given by its hash
    :param room: where the vector that is averaged lies
    """
    rules = rules or rules_of(run)
    vector = SharedVector(layout, room)

    @asynccontextmanager
    async def make(owner: Owner) -> AsyncIterator[Sequence[object]]:
        # torch makes its thread pool anew at its first use after a fork, which fails in two threads at once.
        torch.get_num_threads()
        # All modules stand to the end. Looking through them for garbage would hold up a round by 0.2 to 0.4 s.
        gc.freeze()
        p2p = await node.replicate_p2p(process="averager" if run.stage is None else f"averager of stage {run.stage}")
        pledges = None
        if run.trust.checks == "on":
            pledges = Pledges(Kept(folder / "pledged", LOTS), IntroducedRounds(folder / "introduced-rounds"))
        try:
            endpoint = Endpoint(p2p, run.run_id)
            donor = Donor(owner.query, source.layout)
            transfer = TransferService(endpoint, donor)
            gathering = GatheringService(endpoint, run)
            organizer = node.gate.organizer
            disk = FolderDisk(folder / "agreement" / run.run_id)
            network = Libp2pNetwork(endpoint, signer.peer)
            world = World(network, SystemClock(), disk, SystemRandom(), KeySigner(signer), KeyVerifier())
            branch = Branch(run.run_id, organizer, world, ResetOptions(run.global_batch))
            await branch.serve()
            equivocation = None if pledges is None else EquivocationService(endpoint, signer.peer, organizer)
            own = replace(rules, pledges=pledges, equivocation=equivocation)
            averaging = AveragingService(endpoint, signer, run, vector, donor, own, branch)
            # Also of a client: whoever it is connected to can open streams to it as well. A coordinator that was away
            # while only clients went on can get the newest state from nobody else.
            checks: Sequence[Service] = ()
            if pledges is not None and equivocation is not None:

                def take(standing: str) -> None:
                    pledges.stand(read(signer, run.run_id, organizer, signer.peer, standing).confirmed, standing)

                checks = (
                    equivocation,
                    ProofService(endpoint, organizer, pledges.prove, pledges.work_of),
                    RecomputeService(endpoint, organizer),
                    StandingService(endpoint, organizer, take),
                    KnownAnswers(endpoint, organizer, signer.peer),
                )
            giving: Sequence[Service] = ()
            if content is not None:
                giving = (ContentService(content),)
                giving[0].line_free = donor.line_free
            for service in (transfer, gathering, averaging, *checks, *giving):
                await endpoint.add(service)
            yield node.gate, transfer, gathering, averaging, branch, *checks
        finally:
            if pledges is not None:
                pledges.close()
            await p2p.shutdown()
            disk.close()

    host = Host(make, source.newest)
    return Exchange(Averager(vector, host), Transfers(host, run.run_id), rules.weigh, host)


def _kept_parameters(state: TrainingState, peer: PeerConfig, audited: int) -> KeptParameters | None:
    """:param audited: global steps after which somebody may still ask"""
    if state.run.trust.checks == "off":
        return None
    try:
        # A gradient may be so late, and some steps are done by the time that it is asked for.
        parameters = KeptParameters(state, peer.folder / "recent-parameters", MAX_STALENESS + audited)
    except OSError as error:
        raise UserError(f"{peer.folder} cannot be written ({error.strerror}); choose another folder") from None
    parameters.keep()
    state.listen(parameters.keep)
    return parameters


def _trained(task: Task, run: RunConfig) -> Modelled:
    """The task, or the stage of it that this part of the run is."""
    return task if run.stage is None else task.stage(run.stage)


def _layout_of(trained: Modelled) -> FlatLayout:
    """Of a model of which only the shapes are wanted."""
    try:
        with torch.device("meta"):
            model = trained.model()
    except Exception:  # its first weights are computed in a way that needs their values
        model = trained.model()
    return FlatLayout.of(list(model.parameters()))


def _shared_optimizer(run: RunConfig, task: Modelled, model: torch.nn.Module) -> SharedOptimizer:
    """The optimizer of the global steps."""
    if run.averaging.mode == "global-batch":
        return build_optimizer(run.optimizer, task.groups(model))
    return NesterovSGD(model.parameters(), lr=run.averaging.outer_learning_rate, momentum=run.averaging.outer_momentum)


def _accumulator(run: RunConfig, task: Modelled, state: TrainingState, replicas: Sequence[Replica]) -> Accumulator:
    """What a peer gathers between two rounds; a follower gathers nothing."""
    if not replicas or run.averaging.mode == "global-batch":
        return Gradients(replicas)
    model = replicas[0].model
    return LocalSteps(
        replicas,
        local_optimizer(run.optimizer, task.groups(model), model),
        local_batch=run.averaging.local_batch,
        max_norm=run.optimizer.max_grad_norm,
        learning_rate=lambda step: state.rate * learning_rate(run.optimizer, step, state.decay),
    )
