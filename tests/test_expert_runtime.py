"""A run with experts, held by its coordinator, trains as one process does, and loses none of them."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from benchmarks.lib.mixture import PlainLoop
from dedloc_kit.config.run import RunConfig
from dedloc_kit.events import AnyEvent, Evaluated, ExpertsState, Hosted, Left, Warned
from dedloc_kit.expert_runtime import HostNews, Mixing
from dedloc_kit.experts.calls import ExpertName, Experts, Microbatch, current_microbatch
from dedloc_kit.learning.task import Loss, create_task
from dedloc_kit.learning.tasks.batches import seed_for
from dedloc_kit.learning.train.state.checkpoint import Checkpoints
from dedloc_kit.ledger import Ledger
from tests.batches import batches_from
from tests.swarm.harness import Peer, Swarm
from tests.tiny_mixed import TOKENS, mixed_run

STEPS = 5
TASKS, PATIENT = "tests.tiny_mixed", "tests.patient_mixed"


@pytest.mark.real
def test_volunteers_and_a_coordinator_with_all_experts_take_the_steps_of_one_plain_loop(tmp_path: Path) -> None:
    run = mixed_run()
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator(until_step=STEPS, task_module=PATIENT, evaluate_every=1)
        volunteers = [
            swarm.volunteer(
                f"volunteer-{n}",
                {"START_FILE": str(tmp_path / "start")},
                microbatch=n,
                devices="cpu,cpu" if n == 2 else "cpu",
                until_step=STEPS,
                task_module=PATIENT,
            )
            for n in (2, 3)
        ]
        assert all(peer.joined.step == 0 for peer in volunteers)
        (tmp_path / "start").touch()
        for peer in volunteers:
            peer.wait_for(Left)
        coordinator.wait_for_step(STEPS)
        last = coordinator.wait_for(Evaluated, lambda event: event.step == STEPS).loss
        lies = Path(f"/proc/{coordinator.worker.pid}/maps").read_text().count(f"{coordinator.config.folder}/experts/")
        assert coordinator.worker.stop() == 0
    assert lies >= 6, "the experts are on its disk"
    assert any(len(event.contributions) == 2 for event in coordinator.steps)
    alone = coordinator.wait_for(ExpertsState, lambda event: sum(event.layers[0].tokens) > 0)
    assert [(host.organizer, host.kept) for host in alone.hosts] == [(True, 6)]
    assert credit(coordinator) == {}, "the organizer's machine gives nothing"
    first = coordinator.wait_for(Evaluated, lambda event: event.step == 0).loss
    loop = plain_loop(run, volunteers, coordinator)
    assert last < first
    assert abs(last - create_task(run, TASKS).evaluate(loop.model).loss) < 1e-5

    tensors = checkpoint_of(coordinator)
    assert any(key.startswith("experts.0.1.2.optimizer") for key in tensors)
    assert relative(tensors, state_of(loop)) < 1e-5


@pytest.mark.soak
def test_two_trainers_and_two_hosts_take_the_steps_of_one_plain_loop_and_checkpoints_hold_what_hosts_have(
    tmp_path: Path,
) -> None:
    run = mixed_run()
    assert run.experts is not None
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator(until_step=STEPS, task_module=PATIENT, evaluate_every=1)
        volunteers = [
            swarm.volunteer(
                f"volunteer-{n}",
                {"START_FILE": str(tmp_path / "start")},
                microbatch=n,
                until_step=STEPS,
                task_module=PATIENT,
                host_experts=n > 3,
            )
            for n in (2, 3, 4, 6)
        ]
        assert all(peer.joined.step == 0 for peer in volunteers)
        for host in volunteers[2:]:
            host.wait_for(Hosted, lambda event: event.kept == event.copies == 3)
        # What trainers ask of a copy that is a moment behind is not exact; when the organizer lets go all have heard.
        coordinator.wait_for(Hosted, lambda event: not (event.kept or event.copies))
        (tmp_path / "start").touch()
        for peer in volunteers:
            peer.wait_for(Left)
        coordinator.wait_for_step(STEPS)
        last = coordinator.wait_for(Evaluated, lambda event: event.step == STEPS).loss
        assert coordinator.worker.stop() == 0
    hosts = {host.joined.peer for host in volunteers[2:]}

    def held_twice(event: ExpertsState) -> bool:
        return event.held.startswith("each of 6") and {host.peer for host in event.hosts} == hosts

    coordinator.wait_for(ExpertsState, held_twice)
    tokens = TOKENS * run.experts.top_k * sum(event.step.samples for event in coordinator.steps)
    credited = credit(coordinator)
    assert credited.keys() == hosts
    assert 0.5 * tokens < sum(credited.values()) < tokens, "what a host asks itself is not to its credit"
    loop = plain_loop(run, volunteers, coordinator)
    assert abs(last - create_task(run, TASKS).evaluate(loop.model).loss) < 1e-5
    assert relative(checkpoint_of(coordinator), state_of(loop)) < 1e-5
    assert len(list((coordinator.config.folder / "experts").glob("*.safetensors"))) == 6


@pytest.mark.soak
def test_while_the_coordinator_is_away_volunteers_wait_and_it_comes_back_with_trunk_and_experts(tmp_path: Path) -> None:
    with Swarm(mixed_run(), tmp_path) as swarm:
        first = swarm.coordinator(task_module=TASKS)
        volunteer = swarm.volunteer("volunteer", microbatch=4, task_module=TASKS)
        first.wait_for_step(2)
        assert first.worker.stop() == 0
        volunteer.wait_for(Warned, lambda event: "no host of experts answers" in event.text)
        again = swarm.coordinator(task_module=TASKS)
        begun = again.joined.step
        assert begun >= 2
        again.wait_for_step(begun + 2)


class There:
    """Experts that answer, or do not."""

    def __init__(self) -> None:
        self.answers = False

    def alive(self, layer: int) -> Tensor:
        return torch.full((2, 3), self.answers)


def test_a_volunteer_waits_while_no_expert_answers_and_only_what_follows_trials_counts_for_the_next_step() -> None:
    experts, heard, told = There(), list[AnyEvent](), list[Microbatch | None]()
    member: Any = SimpleNamespace(follow=lambda: None)
    mixing = Mixing([0], cast(Experts, experts), member, heard.append)
    assert not mixing.await_experts(lambda: True)

    def over() -> bool:
        experts.answers = True
        return False

    assert mixing.await_experts(over)

    def loss(model: torch.nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        told.append(current_microbatch())
        return Loss.of(torch.zeros(()), 1)

    counted = mixing.counted(loss)
    counted(torch.nn.Identity(), {"x": torch.zeros(4, 2)}, 7)
    mixing.begin()
    counted(torch.nn.Identity(), {"x": torch.zeros(4, 2)}, 7)
    assert told == [None, Microbatch(8, 4)]
    assert not any(isinstance(event, Warned) for event in heard)
    experts.answers = False
    assert mixing.await_experts(over)
    assert "no host of experts answers" in cast(Warned, heard[-2]).text


def test_the_organizer_is_told_once_which_experts_are_lost_and_whom_several_trainers_accuse() -> None:
    accused, lost = dict[str, int](), dict[ExpertName, int]()
    member: Any = SimpleNamespace(accused=lambda: accused)
    state: Any = SimpleNamespace(take_lost=lambda: {name: lost.pop(name) for name in list(lost)})
    news = HostNews(member, state)
    assert not list(news.take(0.0))
    lost |= {ExpertName(0, 1, column): column for column in range(5)}
    [told] = news.take(1.0)
    assert "0.1.0, 0.1.1, 0.1.2 and 2 more" in told
    assert "4 global steps ago or less" in told
    accused["peer"] = 3
    assert not list(news.take(2.0)), "it may be over in a moment"
    [told] = news.take(70.0)
    assert "peer (3 trainers)" in told
    assert not list(news.take(80.0))
    accused.clear()
    news.take(81.0)
    assert [*news.take(82.0), *news.take(150.0)] == ["no two trainers say any more that a host answers wrongly"]


def plain_loop(run: RunConfig, volunteers: list[Peer], coordinator: Peer) -> PlainLoop:
    """One process, the same microbatches."""
    task = create_task(run, TASKS)
    loop = PlainLoop(run, task)
    batches = {
        peer.joined.peer: batches_from(task, peer.microbatch, seed_for(run, peer.joined.peer), print)
        for peer in volunteers
    }
    sizes = {peer.joined.peer: peer.microbatch for peer in volunteers}
    for event in coordinator.steps:
        given = event.contributions.items()
        loop.take([next(batches[peer]) for peer, samples in given for _ in range(samples // sizes[peer])])
    return loop


def credit(coordinator: Peer) -> dict[str, int]:
    """Tokens that came to the credit of hosts."""
    with closing(Ledger(coordinator.config.folder / "ledger.sqlite", read_only=True)) as ledger:
        return {host.peer: host.tokens for host in ledger.hosts(-1)}


def checkpoint_of(coordinator: Peer) -> dict[str, Tensor]:
    """The last one."""
    found = Checkpoints(coordinator.config.folder / "checkpoints").newest()
    assert found is not None
    tensors, info = found
    assert info.step == STEPS
    return tensors


def state_of(loop: PlainLoop) -> dict[str, Tensor]:
    """Trunk and experts, as a checkpoint names them."""
    assert loop.bank is not None
    tensors = {f"model.{name}": each.detach() for name, each in loop.model.named_parameters()}
    for name in loop.bank.names:
        tensors |= {f"experts.{name}.{key}": each for key, each in loop.bank.state(name)[0].items()}
    return tensors


def relative(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest relative difference of a tensor."""
    return max(
        float((found[name] - each).float().norm() / each.float().norm().clamp(min=1e-12))
        for name, each in expected.items()
    )
