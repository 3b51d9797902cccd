"""Which stages of a pipeline this machine has the memory for."""

from collections.abc import Mapping

from dedloc_kit.errors import UserError
from dedloc_kit.machine.hardware import Gpu, Machine, chosen, free_memory, gigabytes, more_memory
from dedloc_kit.machine.memory_model import StageMemory

ONLY_DRIVE = "to give data and a line alone, join with `dedloc join --drive-only` or `join(..., drive_only=True)`"


def stages_that_fit(
    machine: Machine, stages: Mapping[int, StageMemory], count: int, devices: str
) -> tuple[frozenset[int], str]:
    """Those of these stages that the machine holds, by their numbers, and what its owner may want to know.

    If it holds some with what is free now, these alone. Raises UserError if it holds none, with what is lacking.

    :param count: of all stages
    :param devices: as in PeerConfig
    """
    gpus = chosen(machine.gpus, devices)
    gpu = gpus[0] if gpus else None  # a stage is on one device
    needed = {k: each.beside_gpu if gpu else each.processor for k, each in stages.items()}
    fit = {k for k, each in stages.items() if needed[k] <= machine.memory and (gpu is None or each.gpu <= gpu.free)}
    if not fit:
        smallest = min(stages, key=lambda k: (stages[k].processor, k))
        which = "" if len(stages) == 1 else "no stage of this run fits this machine; the smallest one, "
        raise UserError(f"{which}stage {smallest} of {count} takes {_lacks(machine, gpu, stages[smallest])}")
    if at_once := {k for k in fit if needed[k] <= machine.free_memory}:
        return frozenset(at_once), ""
    return frozenset(fit), (
        f"a stage of this run may need {gigabytes(min(needed[k] for k in fit))} of memory and "
        f"{gigabytes(machine.free_memory)} are free; if this machine gets slow or training stops, {free_memory()}"
    )


def _lacks(machine: Machine, gpu: Gpu | None, stage: StageMemory) -> str:
    if gpu is not None and stage.gpu > gpu.free:
        return (
            f"{gigabytes(stage.gpu)} of the GPU's memory and {gigabytes(gpu.free)} of {gigabytes(gpu.memory)} "
            f"are free, {gigabytes(stage.gpu - gpu.free)} too few; end what else uses the GPU, or train with the "
            f"device 'cpu'; {ONLY_DRIVE}"
        )
    needed = stage.beside_gpu if gpu else stage.processor
    return (
        f"{gigabytes(needed)} of memory and this machine has {gigabytes(machine.memory)}, "
        f"{gigabytes(needed - machine.memory)} too few; {more_memory(needed)}; {ONLY_DRIVE}"
    )
