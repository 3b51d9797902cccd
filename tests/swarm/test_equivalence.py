"""Many peers do what one machine with the same batch would do."""

from pathlib import Path

import torch

from dedloc_kit.run import RunConfig, seed_of
from dedloc_kit.training.lamb import Lamb
from dedloc_kit.training.schedule import learning_rate
from tests.swarm.harness import Peer, Swarm, difference
from tests.tiny import TinyTask, tiny_run

STEPS = 5


def plain_loop(run: RunConfig, volunteers: list[Peer], coordinator: Peer) -> torch.nn.Module:
    """One process, the same samples, gradients accumulated in the usual way: no code of the swarm."""
    task = TinyTask(run)
    model = task.build_model()
    settings = run.optimizer
    optimizer = Lamb(
        task.parameter_groups(model, settings.weight_decay),
        lr=0.0,
        betas=settings.betas,
        eps=settings.epsilon,
        max_weight_norm=settings.max_weight_norm,
    )
    batches = {
        peer.joined.peer: task.batches(
            peer.config.microbatch, seed_of(run.run_id, peer.joined.peer, peer.joined.session), lambda _: None
        )
        for peer in volunteers
    }
    microbatch = {peer.joined.peer: peer.config.microbatch for peer in volunteers}
    for step, event in enumerate(coordinator.steps[:STEPS]):
        optimizer.zero_grad()
        total = sum(event.contributions.values())
        for peer, samples in event.contributions.items():
            assert samples % microbatch[peer] == 0
            for _ in range(samples // microbatch[peer]):
                batch = next(batches[peer])
                loss = task.loss(model, batch) * (microbatch[peer] / total)
                loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_gradient_norm)
        optimizer.param_groups[0]["lr"] = learning_rate(settings, step)
        optimizer.step()
    return model


def test_three_uneven_peers_make_the_same_five_steps_as_one_plain_loop(tmp_path: Path) -> None:
    run = tiny_run(global_batch=48, averaging={"overlap": False, "compression": "none"})
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator(until_step=STEPS)
        volunteers = [
            swarm.volunteer(f"volunteer-{n}", {"TINY_PAUSE": str(0.05 * n)}, microbatch=n, until_step=STEPS)
            for n in (1, 2, 3)
        ]
        for peer in volunteers:
            peer.wait_for_step(STEPS)
            assert peer.worker.wait(60.0) == 0
        coordinator.wait_for_step(STEPS)
        assert coordinator.worker.stop() == 0

    assert all(event.step.samples >= run.global_batch for event in coordinator.steps)
    assert all(event.step.samples == sum(event.contributions.values()) for event in coordinator.steps)
    assert len({samples for event in coordinator.steps for samples in event.contributions.values()}) > 1, "uneven"
    reference = dict(plain_loop(run, volunteers, coordinator).named_parameters())
    for peer in (coordinator, *volunteers):
        for name, parameter in peer.parameters().items():
            expected = reference[name].detach()
            assert float((parameter - expected).norm() / expected.norm()) < 1e-5, f"{name} of {peer.name}"
        assert difference(peer.parameters(), coordinator.parameters()) == 0.0
