"""What every role starts with: a device, a model and a place in the swarm."""

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from hivemind import DHT

from dedloc_kit.events import Joined
from dedloc_kit.run import PeerConfig, RunConfig
from dedloc_kit.swarm.node import Identity, addresses_of, open_node
from dedloc_kit.swarm.optimizer import CollaborativeOptimizer, StepListener
from dedloc_kit.swarm.signing import Signer
from dedloc_kit.tasks import Task, create_task
from dedloc_kit.training.device import describe_device, pick_device, set_threads
from dedloc_kit.training.lamb import Lamb
from dedloc_kit.training.schedule import learning_rate


@dataclass(frozen=True)
class SwarmPeer:
    """A peer that is connected, with the collaborative optimizer that holds its part of the run."""

    task: Task
    model: torch.nn.Module
    device: torch.device
    device_name: str
    addresses: tuple[str, ...]
    """Where others reach this peer; empty in client mode."""
    session: str
    signer: Signer
    dht: DHT
    optimizer: CollaborativeOptimizer

    def joined(self) -> Joined:
        """The event that tells that this peer takes part."""
        return Joined(
            run_id=self.optimizer.run.run_id,
            peer=self.signer.peer,
            session=self.session,
            addresses=self.addresses,
            step=self.optimizer.step,
            device=self.device_name,
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
        )


@contextmanager
def connected(
    run: RunConfig,
    peer: PeerConfig,
    initial_peers: Sequence[str],
    *,
    follower: bool,
    may_start_alone: bool = False,
    stop: threading.Event,
    on_step: StepListener,
    warn: Callable[[str], None],
) -> Iterator[SwarmPeer]:
    """Build the model, connect to the swarm and leave it at the end. Call it in a process's main thread.

    hivemind forks two processes: the DHT node before torch has done any work, the averager before any other thread
    of ours runs. Raises UserError with what is wrong and what to do.
    """
    device = pick_device(peer.device)
    set_threads(peer.threads)
    task = create_task(run, peer.task_module)
    identity = Identity(peer.folder / "identity.key")
    dht = open_node(peer, identity, initial_peers, may_start_alone=may_start_alone)
    try:
        model = task.build_model().to(device)
        lamb = Lamb(
            task.parameter_groups(model, run.optimizer.weight_decay),
            lr=learning_rate(run.optimizer, 0),
            betas=run.optimizer.betas,
            eps=run.optimizer.epsilon,
            max_weight_norm=run.optimizer.max_weight_norm,
        )
        signer, session, addresses = Signer(identity), secrets.token_hex(8), addresses_of(dht)
        optimizer = CollaborativeOptimizer(
            model,
            lamb,
            run=run,
            dht=dht,
            signer=signer,
            session=session,
            name=peer.name,
            device=describe_device(device),
            addresses=addresses,
            follower=follower,
            stop=stop,
            on_step=on_step,
            warn=warn,
        )
        try:
            yield SwarmPeer(task, model, device, describe_device(device), addresses, session, signer, dht, optimizer)
        finally:
            optimizer.leave()
    finally:
        dht.shutdown()
