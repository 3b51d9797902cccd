"""What every role starts with: a device, a model and a place in the swarm."""

import gc
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from dedloc_kit.access.office import Office
from dedloc_kit.errors import UserError
from dedloc_kit.events import Joined
from dedloc_kit.run import PeerConfig, RunConfig
from dedloc_kit.swarm.audits.answering import RecomputeService
from dedloc_kit.swarm.audits.audit import GIVEN_UP_STEPS, KEPT_STEPS
from dedloc_kit.swarm.audits.equivocation import EquivocationService
from dedloc_kit.swarm.audits.kept import Kept
from dedloc_kit.swarm.audits.kept_parameters import KeptParameters
from dedloc_kit.swarm.audits.known_answer import KnownAnswers
from dedloc_kit.swarm.audits.probation import StandingService
from dedloc_kit.swarm.audits.proofs import ProofService
from dedloc_kit.swarm.averaging.averager import Averager
from dedloc_kit.swarm.averaging.introduced_rounds import IntroducedRounds
from dedloc_kit.swarm.averaging.pledges import LOTS, Pledges
from dedloc_kit.swarm.averaging.row_meeting import Matchmaking, RowService
from dedloc_kit.swarm.averaging.search import GroupService
from dedloc_kit.swarm.averaging.service import AveragingService, Rules, rules_of
from dedloc_kit.swarm.directory.belief import Belief
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.incidents import Incidents
from dedloc_kit.swarm.membership.admission import serve
from dedloc_kit.swarm.membership.joining import Entry
from dedloc_kit.swarm.membership.notices import Membership, NoticeFollower, NoticeWriter
from dedloc_kit.swarm.network.gate import Gate
from dedloc_kit.swarm.network.host import Host, Owner
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.node import Node, addresses_of, hosts_of
from dedloc_kit.swarm.network.service import Endpoint, Service
from dedloc_kit.swarm.rounds.batch import MAX_STALENESS
from dedloc_kit.swarm.rounds.exchange import Exchange
from dedloc_kit.swarm.rounds.optimizer import Caller, CollaborativeOptimizer, StepListener
from dedloc_kit.swarm.transfer.addressed import ContentService, Find
from dedloc_kit.swarm.transfer.donor import Donor
from dedloc_kit.swarm.transfer.service import StateSource, Transfers, TransferService
from dedloc_kit.swarm.trust.standing import read
from dedloc_kit.tasks import Task, create_task, first_model
from dedloc_kit.training.accumulator import Accumulator
from dedloc_kit.training.checkpoint import Found
from dedloc_kit.training.device import describe_devices, pick_devices, set_threads
from dedloc_kit.training.flat import FlatLayout, SharedVector
from dedloc_kit.training.gradients import Gradients
from dedloc_kit.training.local_steps import LocalSteps
from dedloc_kit.training.optimizers.build import build_optimizer, local_optimizer
from dedloc_kit.training.optimizers.outer import NesterovSGD
from dedloc_kit.training.schedule import learning_rate
from dedloc_kit.training.state import Replica, SharedOptimizer, TrainingState


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
        return TrainingState(first_model(self.task), lambda model: _shared_optimizer(run, self.task, model), run).copy()

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
) -> Iterator[SwarmPeer]:
    """Build the model, connect to the swarm and leave it at the end. Call it in a process's main thread.

    hivemind forks two processes: the DHT node before torch has done any work, the averager before any other thread
    of ours runs. Raises UserError with what is wrong and what to do.

    :param organizer: peer id of the coordinator, as the invitation says; none if it is this peer
    :param secret: a personal code or a token of the Hub, for the coordinator of a run that is not open
    :param content: where that lies which this peer gives to others by its hash
    """
    devices = pick_devices(peer.devices, double=run.averaging.mode == "local-steps")
    set_threads(peer.threads, devices)
    entry = Entry(
        run,
        peer,
        initial_peers,
        organizer,
        secret,
        may_start_alone=may_start_alone,
        preferred_port=preferred_port,
    )
    with ThreadPoolExecutor(max_workers=1) as line:  # it waits for others, the processor imports what the task needs
        looking = line.submit(entry.surroundings)
        task = create_task(run, peer.task_module)
    dht, signer, gate = entry.start(looking.result()), entry.signer, entry.gate
    office = None
    if organizer is None:
        office = Office(run, peer.folder, signer.peer)
        dht.run_coroutine(partial(serve, run, office, signer))
    try:
        state = TrainingState(task.build_model(), lambda model: _shared_optimizer(run, task, model), run)
        source = StateSource(state.for_newcomer, lambda: state.info)
        exchange = exchange_of(dht, signer, run, state.layout, source, peer.folder, content=content)
        parameters = _kept_parameters(state, peer, GIVEN_UP_STEPS if organizer is None else 2 * KEPT_STEPS)
        replicas = () if follower else tuple(Replica(state, device) for device in devices)
        accumulator = _accumulator(run, task, state, replicas)
        profile = Profile(
            session=secrets.token_hex(8),
            name=peer.name,
            team=peer.team,
            device=describe_devices(devices),
            follower=follower,
            client_mode=dht.client_mode,
            addresses=addresses_of(dht),
            reached="".join(dht.reach.words),
            listed=peer.listed,
        )
        belief = Belief(signer.peer, gate.organizer, lambda: gate.notice)
        tracker = Tracker(
            dht, signer, run.run_id, run.global_batch, initial_peers, Incidents(), belief, profile.session
        )
        caller = Caller(stop, peer.last_step(run), on_step, on_loading)
        optimizer = CollaborativeOptimizer(state, replicas, accumulator, exchange, tracker, signer, profile, caller)

        def tell(gate: Gate) -> None:
            exchange.host.call(Gate.follow, gate.token, gate.notice)
            tracker.suspicion.refuse(gate.notice)

        membership: Membership
        if office is not None:
            membership = NoticeWriter(dht, signer, tracker.reject, tell, office, tracker.position)
        else:
            membership = NoticeFollower(dht, signer, tracker.reject, tell, entry.identity, optimizer.give_up)
        membership.start()
        try:
            yield SwarmPeer(task, replicas, profile, signer, dht, exchange, optimizer, parameters)
        finally:
            membership.stop()
            optimizer.leave()
            if parameters is not None:
                parameters.close()
    finally:
        dht.shutdown()


def exchange_of(
    node: Node,
    signer: Signer,
    run: RunConfig,
    layout: FlatLayout,
    source: StateSource,
    folder: Path,
    rules: Rules | None = None,
    content: Find | None = None,
) -> Exchange:
    """Start the process that averages with others and gives them the state. It holds the services `sharing`, `group`,
    `rows` and `allreduce`, and with checks `proofs`, `recompute`, `standing`, `known-answer` and `equivocation`, and
    `content` where there is any; those of the directory, of reachability and of admission live in the node's process.

    Call it in a process's main thread, before other threads run: it forks.

    :param source: of the state that is handed out
    :param folder: this peer's; where members are checked it holds what they may be asked for
    :param rules: the usual ones if none are given
    :param content: where that lies which others are given by its hash
    """
    rules = rules or rules_of(run)
    vector = SharedVector(layout)

    @asynccontextmanager
    async def make(owner: Owner) -> AsyncIterator[Sequence[object]]:
        # torch makes its thread pool anew at its first use after a fork, which fails in two threads at once.
        torch.get_num_threads()
        # All modules stand to the end. Looking through them for garbage would hold up a round by 0.2 to 0.4 s.
        gc.freeze()
        p2p = await node.replicate_p2p()
        pledges = None
        if run.trust.checks == "on":
            pledges = Pledges(Kept(folder / "pledged", LOTS), IntroducedRounds(folder / "introduced-rounds"))
        try:
            endpoint = Endpoint(p2p, run.run_id)
            donor = Donor(owner.query, source.layout)
            transfer = TransferService(endpoint, donor)
            groups = GroupService(signer.peer, endpoint, client_mode=bool(node.client_mode))
            rows = RowService(
                signer.peer, endpoint, client_mode=bool(node.client_mode), followed=lambda: groups.followed
            )
            matchmaking = Matchmaking(groups, rows)
            organizer = node.gate.organizer
            equivocation = None if pledges is None else EquivocationService(endpoint, signer.peer, organizer)
            own = replace(rules, pledges=pledges, equivocation=equivocation)
            averaging = AveragingService(endpoint, matchmaking, signer, run, vector, donor, own, organizer)
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
            for service in (transfer, groups, rows, averaging, *checks, *giving):
                await endpoint.add(service)
            yield node.gate, transfer, averaging, *checks
        finally:
            if pledges is not None:
                pledges.close()
            await p2p.shutdown()

    host = Host(make, source.newest)
    return Exchange(Averager(vector, host), Transfers(host, run.run_id), rules.grouping, host)


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


def _shared_optimizer(run: RunConfig, task: Task, model: torch.nn.Module) -> SharedOptimizer:
    """The optimizer of the global steps."""
    if run.averaging.mode == "global-batch":
        return build_optimizer(run.optimizer, task.parameter_groups(model, run.optimizer.weight_decay))
    return NesterovSGD(model.parameters(), lr=run.averaging.outer_learning_rate, momentum=run.averaging.outer_momentum)


def _accumulator(run: RunConfig, task: Task, state: TrainingState, replicas: Sequence[Replica]) -> Accumulator:
    """What a peer gathers between two rounds; a follower gathers nothing."""
    if not replicas or run.averaging.mode == "global-batch":
        return Gradients([list(replica.model.parameters()) for replica in replicas], state.layout)
    model = replicas[0].model
    return LocalSteps(
        replicas,
        state,
        local_optimizer(run.optimizer, task.parameter_groups(model, run.optimizer.weight_decay), model),
        local_batch=run.averaging.local_batch,
        max_norm=run.optimizer.max_gradient_norm,
        learning_rate=lambda step: state.rate * learning_rate(run.optimizer, step, state.decay),
    )
