"""A stage is taken only where the memory is that it needs."""

from dataclasses import replace

import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.machine.hardware import Gpu, Machine
from dedloc_kit.machine.memory_model import StageMemory
from dedloc_kit.machine.stage_room import stages_that_fit

GB = 10**9
MACHINE = Machine(cores=2, memory=16 * GB, free_memory=12 * GB, free_disk=GB, gpus=())
T4 = Gpu("Tesla T4", 15 * GB, 14 * GB)


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"):
        monkeypatch.delenv(name, raising=False)


def stage(gigabytes: float, gpu: float = 0.0) -> StageMemory:
    """:param gigabytes: that it needs of the machine, wherever it is computed"""
    needed = int(gigabytes * GB)
    return StageMemory(held=0, activations=0, processor=needed, gpu=int(gpu * GB), beside_gpu=needed)


def fitting(machine: Machine, *stages: StageMemory, devices: str = "auto") -> tuple[set[int], str]:
    fit, told = stages_that_fit(machine, dict(enumerate(stages)), len(stages), devices)
    return set(fit), told


def test_of_all_stages_those_remain_that_are_held_by_what_is_free() -> None:
    assert fitting(MACHINE, stage(20), stage(14), stage(11), stage(3)) == ({2, 3}, "")


def test_where_others_use_the_memory_a_stage_is_taken_all_the_same_and_this_is_said() -> None:
    fit, told = fitting(replace(MACHINE, free_memory=2 * GB), stage(20), stage(14), stage(11))
    assert fit == {1, 2}
    assert "need 11.0 GB of memory and 2.0 GB are free" in told
    assert "close other programs" in told


def test_a_machine_that_holds_no_stage_is_told_what_it_lacks() -> None:
    with pytest.raises(UserError) as refused:
        fitting(MACHINE, stage(40), stage(20), stage(30))
    text = str(refused.value)
    assert text.startswith(
        "no stage of this run fits this machine; the smallest one, stage 1 of 3 takes 20.0 GB of memory"
    )
    assert "this machine has 16.0 GB, 4.0 GB too few; join with one that has 25 GB or more" in text
    assert "`dedloc join --drive-only`" in text
    assert "\n" not in text


def test_the_stage_that_was_asked_for_is_refused_by_its_number() -> None:
    with pytest.raises(UserError, match=r"^stage 2 of 4 takes 20.0 GB of memory .* 4.0 GB too few.*--drive-only"):
        stages_that_fit(MACHINE, {2: stage(20)}, 4, "auto")


def test_a_gpu_has_to_hold_it_with_what_is_free_there() -> None:
    with_gpu = replace(MACHINE, gpus=(T4,))
    assert fitting(with_gpu, stage(3, gpu=13.9), stage(3, gpu=14.1)) == ({0}, "")
    with pytest.raises(UserError, match=r"takes 14.1 GB of the GPU's memory and 14.0 GB of 15.0 GB are free, 0.1 GB"):
        fitting(with_gpu, stage(3, gpu=14.1))
    assert fitting(with_gpu, stage(3, gpu=14.1), devices="cpu") == ({0}, "")
    with pytest.raises(UserError, match=r"takes 20.0 GB of memory and this machine has 16.0 GB"):
        fitting(with_gpu, stage(20, gpu=1.0))


def test_beside_a_gpu_the_machine_holds_what_is_averaged_and_not_the_activations() -> None:
    small, large = StageMemory.of(10**8, 0), StageMemory.of(10**8, 10**9)
    assert large.processor == small.processor + 10**9
    assert large.gpu == small.gpu + 10**9
    assert large.beside_gpu == small.beside_gpu
