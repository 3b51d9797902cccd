"""What a mix of volunteers makes of a run that is cut into stages, before it begins: an estimate.

A driver sends each stage its input, and for the backward call that once more with the gradient of its output; it gets
the output and the gradient of the input. Only stages in the middle have all five. What stages get drivers send, so in
each direction all lines together carry five such tensors for each border between two stages.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dedloc_kit.config.run import RunConfig
from dedloc_kit.display.human import count, duration, rate, size
from dedloc_kit.events import Rehearsed, StageCost
from dedloc_kit.machine.memory_model import StageMemory
from dedloc_kit.organizer.prediction import COLLABORATING, DAY, DEVICES, HERE, LAPTOP, ROUND_SECONDS, Volunteers
from dedloc_kit.organizer.round_time import SHARE_OF_LINE, Line, round_time

VALUE_BYTES = {"8bit": 1.0, "float16": 2.0, "none": 4.0}
"""Of a hidden state as it travels; the scales of 8 bits are little beside it."""
RISE = 0.93
"""With which power of the width the time to compute, over the time on the line, rises (`benchmarks/square_cube.py`)."""
_MOST = 500
"""So many volunteers are dealt out one by one; of more, several at once."""


@dataclass(frozen=True)
class PipelinePrediction:
    """What these volunteers reach together.

    :ivar holders: how many of them are at each stage, as they are best dealt out
    :ivar computing: microbatches a second that each stage could compute
    :ivar line: microbatches a second that its volunteers' lines could carry
    :ivar all_lines: microbatches a second that all lines together could carry, those of drivers included
    :ivar rate: microbatches a second that the pipeline passes
    :ivar limit: what would have to be more, in words
    :ivar width: from which width on, with as many layers a stage, computing limits it
    :ivar step: seconds of a global step
    :ivar averaging: of these, those of the slowest stage's round
    :ivar days: until the last step
    :ivar traffic: bytes a day that a volunteer sends, and about as many that it gets, on average
    """

    holders: tuple[int, ...]
    computing: tuple[float, ...]
    line: tuple[float, ...]
    all_lines: float
    rate: float
    limit: str
    width: int
    step: float
    averaging: float
    days: float
    traffic: float


def stage_memory(stage: StageCost, state: str = "float32") -> StageMemory:
    """:param state: `optimizer.state_dtype` of the run"""
    return StageMemory.of(stage.parameters, stage.kept_bytes, state)


def holds(device: str, stage: StageCost) -> bool:
    """Has a device of this kind the memory for that stage? This machine has tried it."""
    return device == HERE or stage_memory(stage).gpu <= DEVICES[device].memory


def kinds_for(stages: Sequence[StageCost]) -> tuple[str, ...]:
    """The kinds of GPUs that hold every stage, those with the least memory first."""
    fitting = [name for name in DEVICES if name != LAPTOP and all(holds(name, stage) for stage in stages)]
    return tuple(sorted(fitting, key=lambda name: (DEVICES[name].memory, name)))


def predict_pipeline(
    run: RunConfig, rehearsed: Rehearsed, volunteers: Sequence[Volunteers], coordinator_line: float
) -> PipelinePrediction:
    """With these volunteers at work; the rehearsal has stages.

    :param coordinator_line: bytes a second of the coordinator, which computes nothing
    """
    assert run.pipeline is not None
    assert rehearsed.cost is not None
    stages, rows = rehearsed.stages, rehearsed.cost.microbatch
    borders = len(stages) - 1
    travelling = VALUE_BYTES[run.pipeline.activations] * stages[0].tokens * stages[0].width
    sizes = [travelling * _tensors(number, borders) for number in range(len(stages))]
    dealt = _dealt(stages, sizes, volunteers)
    computing = tuple(
        sum(each.count * _computed(each, stage) for each in there) for stage, there in zip(stages, dealt, strict=True)
    )
    line = tuple(sum(each.count * _carried(each, at) for each in there) for at, there in zip(sizes, dealt, strict=True))
    passed = [
        sum(each.count * min(_computed(each, stage), _carried(each, at)) for each in there)
        for stage, at, there in zip(stages, sizes, dealt, strict=True)
    ]
    usable = [each for there in dealt for each in there]
    all_lines = sum(each.count * each.line for each in usable) * SHARE_OF_LINE / (5 * borders * travelling)
    carried = min(*line, all_lines)
    most = min(*passed, all_lines)
    holders = tuple(sum(each.count for each in there) for there in dealt)
    width = math.ceil(stages[0].width * (min(computing) / carried) ** (1 / RISE)) if carried else 0
    averaging = max(_averaging(stage, there, coordinator_line) for stage, there in zip(stages, dealt, strict=True))
    step = run.global_batch / (rows * most) + averaging if most else math.inf
    hidden = 5 * borders * travelling * run.global_batch / rows / max(1, sum(holders))
    averaged = sum(max(stage.gradient_bytes, stage.average_bytes) for stage in stages) / len(stages)
    return PipelinePrediction(
        holders=holders,
        computing=computing,
        line=line,
        all_lines=all_lines,
        rate=most,
        limit=_limit(holders, computing, passed, all_lines),
        width=width,
        step=step,
        averaging=averaging,
        days=step * run.optimizer.total_steps / DAY,
        traffic=(hidden + averaged) * DAY / step,
    )


def _limit(holders: Sequence[int], computing: Sequence[float], passed: Sequence[float], all_lines: float) -> str:
    stages = len(holders)
    if bare := [k for k, number in enumerate(holders) if not number]:
        return f"nobody for stage {bare[0]} of {stages}: too few volunteers that hold it"
    slowest = min(range(stages), key=passed.__getitem__)
    if min(passed[slowest], all_lines) < computing[slowest]:
        return "the lines"
    # One volunteer more or less at a stage makes that much of a difference where there are few.
    if passed[slowest] < 0.8 * sum(passed) / stages:
        return f"too few at stage {slowest} of {stages}"
    return "computing"


def _dealt(
    stages: Sequence[StageCost], sizes: Sequence[float], volunteers: Sequence[Volunteers]
) -> list[list[Volunteers]]:
    """Who is at which stage: those that hold few stages first, and of them the fastest, to the slowest stage."""
    together = math.ceil(sum(each.count for each in volunteers) / _MOST)
    pieces = [
        replace(each, count=min(together, each.count - begun))
        for each in volunteers
        for begun in range(0, each.count, together)
    ]
    rates, dealt = [0.0] * len(stages), [list[Volunteers]() for _ in stages]
    fitting = {each.device: [k for k, stage in enumerate(stages) if holds(each.device, stage)] for each in pieces}
    for each in sorted(pieces, key=lambda e: (len(fitting[e.device]), -e.count * _computed(e, stages[0]))):
        if fits := fitting[each.device]:
            k = min(fits, key=rates.__getitem__)
            rates[k] += each.count * min(_computed(each, stages[k]), _carried(each, sizes[k]))
            dealt[k].append(each)
    return dealt


def _computed(each: Volunteers, stage: StageCost) -> float:
    """Microbatches a second of one such volunteer at that stage."""
    kind = DEVICES.get(each.device)
    alone = 1 / stage.seconds if kind is None else kind.peak * kind.share / stage.flops
    return COLLABORATING * each.devices * alone


def _carried(each: Volunteers, size: float) -> float:
    """Microbatches a second that its line carries, of so many bytes each."""
    return SHARE_OF_LINE * each.line / size


def _tensors(stage: int, borders: int) -> int:
    """Hidden states and gradients in the busier direction of a stage, for each microbatch."""
    before, behind = stage > 0, stage < borders
    return max(2 * before + behind, before + behind)


def _averaging(stage: StageCost, there: Sequence[Volunteers], coordinator_line: float) -> float:
    """Seconds of a round of one stage's volunteers with the coordinator, which follows every stage."""
    if not there:
        return 0.0
    lines = [Line(each.count, each.line, each.reachable) for each in there]
    lines.append(Line(1, coordinator_line, reachable=True, gives=False))
    took = round_time(lines, stage.gradient_bytes, stage.average_bytes)
    return took.network + took.vanishing + took.streams + ROUND_SECONDS


def describe_stages(run: RunConfig, rehearsed: Rehearsed) -> list[str]:
    """What each stage takes, and who holds all of them, in lines."""
    assert rehearsed.cost is not None
    stages, rows = rehearsed.stages, rehearsed.cost.microbatch
    lines = []
    for number, stage in enumerate(stages):
        memory = stage_memory(stage, run.optimizer.state_dtype)
        lines.append(
            f"stage {number:<8}{stage.parameters / 1e6:,.1f} million parameters: {size(memory.held)} of weights, "
            f"gradients and optimizer, {size(memory.activations)} of activations; a volunteer's processes "
            f"{size(memory.processor)} at most, or {size(memory.gpu)} of a GPU; {rate(1 / stage.seconds)} "
            f"microbatches/s ({rehearsed.device})"
        )
    kinds = kinds_for(stages)
    named = (
        "every GPU that is known here" if len(kinds) == len(DEVICES) - 1 else ", ".join(map(str.upper, kinds)) or "none"
    )
    return [
        *lines,
        f"microbatch    {count(rows, 'sample')}",
        f"volunteers    {len(stages)} at least, one at each stage, and {2 * len(stages)} so that the rest need not "
        f"wait when one leaves; GPUs that hold any stage: {named}",
    ]


def describe_pipeline(run: RunConfig, predicted: PipelinePrediction) -> list[str]:
    """What a mix reaches together, in lines; the last one is what an organizer asked for."""
    lines = []
    for number, there in enumerate(predicted.holders):
        lines.append(
            f"stage {number:<8}{count(there, 'volunteer')}: {rate(predicted.computing[number])} microbatches/s to "
            f"compute, {rate(predicted.line[number])} on their lines"
        )
    lines.append(f"all lines     {rate(predicted.all_lines)} microbatches/s, those of drivers included")
    if not predicted.rate:
        return [*lines, f"together      nothing: {predicted.limit}"]
    return [
        *lines,
        f"together      {rate(predicted.rate)} microbatches/s, limited by {predicted.limit}; with as many layers in a "
        f"stage computing limits this mix from a width of {predicted.width:,} on",
        f"global step   {predicted.step:,.1f} s, of which {predicted.averaging:,.1f} s to average the slowest stage",
        f"traffic       each volunteer sends and gets about {size(predicted.traffic)} a day",
        f"to finish     {duration(predicted.days * DAY)} for {run.optimizer.total_steps:,} global steps, if so many "
        "are at work all the time",
    ]
