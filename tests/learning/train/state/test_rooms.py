"""States of stages that lie on the disk."""

import os
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from dedloc_kit.errors import UserError
from dedloc_kit.learning.train.flat import Room, placed, placed_together, shared_zeros, zeros_on_disk
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.state.checkpoint import Checkpoints
from dedloc_kit.learning.train.state.rooms import BYTES_PER_PARAMETER, Rooms, zeros_despite_a_full_disk
from dedloc_kit.learning.train.state.staged import StagedState
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.steps import Receipt
from dedloc_kit.swarm.network.host import _give_back_freed
from tests.peak import Peak
from tests.tiny import tiny_run

STAGES, LAYERS, WIDTH = 8, 4, 512
PARAMETERS = STAGES * LAYERS * (WIDTH + 1) * WIDTH
RUN = tiny_run(pipeline={"stages": STAGES}, averaging={"overlap": False})


def whole(stages: object) -> nn.Module:
    return nn.Sequential(*stages)  # type: ignore[misc]


def staged(room: Room) -> StagedState:
    def stage(number: int) -> TrainingState:
        torch.manual_seed(number)
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        run = RUN.of_stage(number)
        state = TrainingState(model, lambda model: Lamb(model.parameters(), lr=0.1), run, room)
        _give_back_freed()  # as the process does that is started next, which averages it
        return state

    return StagedState(RUN, whole, [stage(number) for number in range(STAGES)])


def test_all_that_a_coordinator_does_with_a_state_takes_less_memory_than_a_third_of_it(tmp_path: Path) -> None:
    room = partial(zeros_on_disk, tmp_path / "stages")
    staged(shared_zeros).model(torch.ones(1, WIDTH))  # libraries take some
    _give_back_freed()
    peak = Peak()
    peak.start()
    run, kept = staged(room), Checkpoints(tmp_path / "checkpoints")
    for state in run._states:
        average = torch.ones(state.layout.size)
        state.apply(average, Receipt(step=1, round="01", time=1.0, seconds=0.0, record=b""))
    kept.save(*run.copy())
    found = kept.newest()
    assert found is not None
    again = staged(room)
    again.load_named(*found)
    for state, before in zip(again._states, again.split(found), strict=True):
        state.go_back(*before, Receipt(step=2, round="02", time=1.0, seconds=0.0, record=b""), 0.5)
    one, other = run.model_copy(), again.model_of(again.copy()[0])
    kept.save(again.parameters_copy(), again.info)
    assert peak.end() < BYTES_PER_PARAMETER * PARAMETERS / 3
    assert torch.equal(one(torch.ones(1, WIDTH)), other(torch.ones(1, WIDTH)))
    assert (again.step, again.rewound) == (2, 2)
    assert not list((tmp_path / "stages").iterdir()), "what lies there has no name"


def test_the_first_stages_are_in_memory_as_long_as_they_fit(tmp_path: Path) -> None:
    rooms = Rooms(tmp_path, 2.5 * BYTES_PER_PARAMETER)
    assert [rooms.of(1) is shared_zeros for _ in range(4)] == [True, True, False, False]
    assert [each is shared_zeros for each in (rooms.of(10**9), rooms.of(0))] == [False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bfloat16])
def test_a_tensor_of_any_type_is_the_same_there(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.randn(101, 101).to(dtype)
    copy = placed(tensor, partial(zeros_on_disk, tmp_path))
    assert torch.equal(copy, tensor)
    assert (copy.dtype, copy.shape) == (tensor.dtype, tensor.shape)


def test_a_disk_without_room_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not fit into"):
        zeros_on_disk(tmp_path, 2**58)


def test_what_is_placed_together_is_in_one_vector_and_begins_where_it_is_computed_fast() -> None:
    tensors = [torch.tensor(3.0), torch.arange(5, dtype=torch.int8), torch.ones(2, 3, dtype=torch.float64)]
    sizes = list[int]()

    def room(size: int) -> torch.Tensor:
        sizes.append(size)
        return torch.zeros(size)

    copies = placed_together(tensors, room)
    assert len(sizes) == 1
    assert all(torch.equal(copy, tensor) for copy, tensor in zip(copies, tensors, strict=True))
    assert not any(copy.data_ptr() % 64 for copy in copies)


def test_as_many_vectors_as_there_are_experts_keep_no_file_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    vectors = [zeros_on_disk(tmp_path, 1000) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) < before + 10
    assert sum(map(len, vectors)) == 50_000


def test_where_the_disk_is_full_it_goes_on_in_memory_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "full").touch()
    assert zeros_despite_a_full_disk(tmp_path / "full", 5).tolist() == [0.0] * 5
    assert "does not fit into" in caplog.text
