"""The organizer's machine has all experts of a run, of which its memory holds few."""

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from dedloc_kit.config.run import RunConfig
from dedloc_kit.experts.bank import Bank
from dedloc_kit.experts.calls import ExpertName, Microbatch, counting
from dedloc_kit.experts.mixture import Mixture
from dedloc_kit.experts.state import MixedState, Take
from dedloc_kit.experts.stored import Stored
from dedloc_kit.learning.train.flat import placed_together, zeros_on_disk
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.state.checkpoint import Checkpoints
from dedloc_kit.learning.train.state.state import SharedOptimizer
from dedloc_kit.swarm.network.host import _give_back_freed
from dedloc_kit.worker import KEPT_MEMORY
from tests.experts.mixed_states import receipt
from tests.peak import Peak
from tests.tiny_mixed import mixed_run

WIDTH, HIDDEN, GRID = 128, 512, (4, 8)
STATE_BYTES = 12 * 3 * WIDTH * HIDDEN * GRID[0] * GRID[1]
"""Of weights and moments."""
GIVEN_BACK = """
import sys
from pathlib import Path
import torch
from dedloc_kit.experts.keeping import Keeping
from tests.experts.test_disk import run_of, state_of
from tests.peak import held

run = run_of(8, 8)
Keeping.of_host(run, lambda step: 0.01) if sys.argv[2] == "host" else state_of(run, Path(sys.argv[1]))
before = held()
several = [torch.ones(2**18) for _ in range(64)]
taken, several = held() - before, []
print(taken, held() - before)
"""
"""What 64 MB take, and when nobody has them any more."""


def run_of(width: int, hidden: int) -> RunConfig:
    experts = {"layers": [0], "grid": list(GRID), "width": width, "hidden": hidden}
    return mixed_run(
        experts=experts, optimizer={"name": "adamw", "learning_rate": 0.01, "warmup_steps": 0, "total_steps": 100}
    )


def state_of(run: RunConfig, folder: Path) -> MixedState:
    assert run.experts is not None

    def optimizer(model: nn.Module) -> SharedOptimizer:
        return build_optimizer(run.optimizer, [{"params": list(model.parameters()), "weight_decay": 0.0}])

    made = MixedState(Mixture(0, run.experts, 0), optimizer, run, experts_room=partial(zeros_on_disk, folder))
    made.hold_all()
    return made


def all_that_an_organizer_does(run: RunConfig, folder: Path) -> None:
    assert run.experts is not None
    inputs, disk, kept = torch.ones(4, run.experts.width), folder / "experts", Checkpoints(folder / "checkpoints")
    state, stored = state_of(run, disk), Stored(disk, run.run_id)

    def fetch(names: Sequence[ExpertName], step: int, take: Take) -> None:
        """Nobody has learned anything meanwhile."""
        for name in names:
            known = stored.get(name)
            assert known is not None
            tensors = dict(zip(known[0], placed_together(known[0].values(), state.bank.experts_room), strict=True))
            state.bank.check(name, tensors)
            take(name, (tensors, step))

    state.have_hosts(fetch, lambda: None, stored)
    with counting(Microbatch(1, 10)):
        answers = state.bank.forward(0, {name.cell: inputs for name in state.bank.names}, keep=True)
    state.bank.backward(0, answers.ticket, dict.fromkeys(answers.outputs, inputs))
    state.apply(torch.ones(state.layout.size), receipt(1))
    state.take(1, 40)
    for name in state.bank.names:  # a host takes it over
        assert state.keeping.followed_by(name, id) is not None
        state.keeping.give(name, id)
        state.keeping.drop(name)
    state.apply(torch.ones(state.layout.size), receipt(2))
    kept.save(*state.copy())
    measured = state.snapshot()[0](inputs)
    found = kept.newest()
    assert found is not None
    again = state_of(run, disk)
    again.load_named(*found)
    assert torch.equal(again.snapshot()[0](inputs), measured)


def test_of_all_that_an_organizer_does_with_experts_nothing_takes_as_much_memory_as_a_third_of_them(
    tmp_path: Path,
) -> None:
    all_that_an_organizer_does(run_of(8, 8), tmp_path / "small")  # libraries take some
    _give_back_freed()
    peak = Peak()
    peak.start()
    all_that_an_organizer_does(run_of(WIDTH, HIDDEN), tmp_path / "large")
    assert peak.end() < STATE_BYTES / 3


def test_an_expert_that_lies_on_the_disk_is_the_one_that_a_host_makes(tmp_path: Path) -> None:
    run = run_of(8, 8)
    made, host = state_of(run, tmp_path).bank, Bank(run)
    name = made.names[-1]
    host.hold([name])
    assert all(torch.equal(each, made.state(name)[0][key]) for key, each in host.state(name)[0].items())


@pytest.mark.child
@pytest.mark.parametrize("role", ["host", "organizer"])
def test_a_worker_that_holds_experts_gives_back_what_it_frees(tmp_path: Path, role: str) -> None:
    made = subprocess.run(
        [sys.executable, "-c", GIVEN_BACK, str(tmp_path), role],
        env={**os.environ, **KEPT_MEMORY, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
        capture_output=True,
        text=True,
    )
    taken, kept = map(int, made.stdout.split())
    assert taken > 2**25
    assert kept < taken / 2, "what was free before may be used again"
