"""What the swarm is measured against: one process, the same samples, no code of the swarm."""

import torch

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.task import create_task
from dedloc_kit.learning.tasks.batches import seed_for
from dedloc_kit.learning.train.computing.card import samples_in
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.schedule import learning_rate
from tests.batches import batches_from
from tests.swarm.harness import Peer


def plain_loop(run: RunConfig, tasks: str, volunteers: list[Peer], coordinator: Peer) -> dict[str, torch.Tensor]:
    """The parameters after the coordinator's global steps; gradients are accumulated in the usual way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # beside other tests more would mostly wait for each other
    try:
        return _trained(run, tasks, volunteers, coordinator)
    finally:
        torch.set_num_threads(threads)


def _trained(run: RunConfig, tasks: str, volunteers: list[Peer], coordinator: Peer) -> dict[str, torch.Tensor]:
    task = create_task(run, tasks)
    model = task.model()
    settings = run.optimizer
    optimizer = build_optimizer(settings, task.groups(model))
    batches = {
        peer.joined.peer: batches_from(task, peer.microbatch, seed_for(run, peer.joined.peer), lambda _: None)
        for peer in volunteers
    }
    for step, event in enumerate(coordinator.steps):
        optimizer.zero_grad()
        labels = 0.0
        for peer, samples in event.contributions.items():
            taken = 0
            while taken < samples:
                batch = next(batches[peer])
                taken += samples_in(batch)
                loss = task.loss(model, task.prepare(batch), step)
                loss.total.backward()
                labels += float(loss.weight)
            assert taken == samples
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.div_(labels)
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step)
        optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}
