"""The plan that `dedloc check` makes of a prediction: electricity, traffic, expected loss, and what would be faster."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import SEQUENCE_LENGTH
from dedloc_kit.display.auxiliary_peers import AuxiliaryPeers
from dedloc_kit.display.human import count, size
from dedloc_kit.events import Rehearsed
from dedloc_kit.organizer.prediction import DAY, DEVICES, HERE, Prediction, Volunteers, predict, state_bytes
from dedloc_kit.organizer.round_time import TOLD_BYTES
from dedloc_kit.organizer.scaling_law import MIN_PARAMETERS, SPREAD, expected_loss
from dedloc_kit.records.plan import Plan

MACHINE_WATTS = 60.0
"""Watts of a computer beside its GPUs: an estimate."""
PROCESSOR_WATTS = 45.0
"""Watts of a processor that trains: an estimate."""
HEADERS = 1.02
"""Bytes on the line for each byte of a round: those of TCP and of its acknowledgements (`benchmarks/prediction.py`)."""
DIRECTORY_BYTES = 11_500.0
"""Bytes a second that a peer sends to the directory, by the square root of the members: a fit to 3 to 65 peers
(`benchmarks/scale.py`)."""
DIRECTORY_ANSWERS = 2.0
"""Bytes that a peer that others cannot reach receives of the directory for each byte that it sends there: an estimate
from 3 peers (`benchmarks/prediction.py`)."""
IDLE_SHARE = 0.25
"""Of a device's watts, while it waits: an estimate."""
_MULTIPLES = (2, 3, 4, 6, 8, 12, 16, 32, 64)


@dataclass(frozen=True)
class Traffic:
    """Bytes of one volunteer in a global step."""

    sent: float
    received: float


def plan_of(
    run: RunConfig, rehearsed: Rehearsed, volunteers: Sequence[Volunteers], auxiliary: int, predicted: Prediction
) -> Plan:
    """The plan for a mix of volunteers whose global step was predicted.

    :param auxiliary: number of auxiliary peers
    """
    members = 1 + auxiliary + sum(each.count for each in volunteers)
    traffic = traffic_of(rehearsed, members, predicted.step)
    return Plan(
        run_id=run.run_id,
        volunteers=",".join(map(_spelled, volunteers)),
        volunteer_count=sum(each.count for each in volunteers),
        step_seconds=predicted.step,
        days=predicted.days,
        kilowatt_hours=kilowatt_hours(volunteers, predicted),
        sent_bytes=traffic.sent,
        received_bytes=traffic.received,
        loss=loss_at_end(run, rehearsed.parameters),
    )


def traffic_of(rehearsed: Rehearsed, members: int, step_seconds: float, share: float = 0.0) -> Traffic:
    """What a volunteer sends and receives in a global step of one group, and meanwhile for the directory.

    :param members: of the group
    :param share: of each vector, what this volunteer averages for the others; 0 if others cannot reach it
    """
    others, told = members - 1, TOLD_BYTES * members
    directory = DIRECTORY_BYTES * math.sqrt(members) * step_seconds
    gradients, averages = rehearsed.gradient_bytes, rehearsed.average_bytes
    givers = max(0, others - 1)  # the coordinator gives no gradients
    return Traffic(
        sent=HEADERS * ((1 - share) * gradients + share * others * averages + told) + directory,
        received=HEADERS * ((1 - share) * averages + share * givers * gradients + told) + DIRECTORY_ANSWERS * directory,
    )


def kilowatt_hours(volunteers: Sequence[Volunteers], predicted: Prediction) -> float:
    """The electricity of all volunteers until the last step, by the watts of data sheets."""
    busy = min(1.0, predicted.computing / predicted.step)
    share = busy + IDLE_SHARE * (1 - busy)

    def watts(each: Volunteers) -> float:
        if each.device == HERE:
            return MACHINE_WATTS + each.devices * PROCESSOR_WATTS * share
        return MACHINE_WATTS + each.devices * DEVICES[each.device].watts * share

    return sum(each.count * watts(each) for each in volunteers) * predicted.days * DAY / 3.6e6


def loss_at_end(run: RunConfig, parameters: int) -> tuple[float, float] | None:
    """The training loss to expect after the last step, in nats a token; none where no scaling law holds."""
    if run.task.name != "causal" or run.task.options.get("init_from") is not None or run.experts is not None:
        return None
    return expected_loss(parameters, tokens_of(run))


def tokens_of(run: RunConfig) -> float:
    """Tokens of the whole run, if every sample is full."""
    length = run.task.options.get("sequence_length")
    tokens = length if isinstance(length, int) else SEQUENCE_LENGTH
    return float(tokens) * run.global_batch * run.optimizer.total_steps


def halved(
    run: RunConfig,
    rehearsed: Rehearsed,
    volunteers: Sequence[Volunteers],
    coordinator_line: float,
    auxiliary: Sequence[AuxiliaryPeers] = (),
) -> str:
    """What would halve the time, in a sentence: the smallest change of one kind that does, the cheapest kind first."""
    now = predict(run, rehearsed, volunteers, coordinator_line, auxiliary)
    people = sum(each.count for each in volunteers)

    def more(factor: int) -> tuple[float, str]:
        mix = [replace(each, count=each.count * factor) for each in volunteers]
        text = f"{factor * people} such volunteers in place of {people}"
        return predict(run, rehearsed, mix, coordinator_line, auxiliary).step, text

    def coordinator(factor: int) -> tuple[float, str]:
        line = coordinator_line * factor
        return predict(run, rehearsed, volunteers, line, auxiliary).step, f"a coordinator's line of {_mbit(line)}"

    def lines(factor: int) -> tuple[float, str]:
        mix = [replace(each, line=each.line * factor) for each in volunteers]
        return (
            predict(run, rehearsed, mix, coordinator_line * factor, auxiliary).step,
            f"lines {factor} times as fast for all volunteers and the coordinator",
        )

    kinds: list[Callable[[int], tuple[float, str]]] = [coordinator, more, lines]
    for factor in _MULTIPLES:
        for kind in kinds:
            step, text = kind(factor)
            if step <= now.step / 2:
                return f"{text} would halve the time"
    reason = "rounds take longest" if now.limit != "computing" else "computing takes longest"
    return f"no single change halves the time: {reason}; a larger global batch needs fewer rounds"


def describe_plan(run: RunConfig, rehearsed: Rehearsed, plan: Plan, faster: str) -> list[str]:
    """The plan in lines."""
    steps_a_day = DAY / plan.step_seconds
    lines = [
        f"traffic       each volunteer sends {size(plan.sent_bytes * steps_a_day)} and gets "
        f"{size(plan.received_bytes * steps_a_day)} a day, and gets {size(state_bytes(run, rehearsed.parameters))} "
        "when it joins; more if others can reach it, for it averages for them",
        f"electricity   about {plan.kilowatt_hours:,.0f} kWh of {count(plan.volunteer_count, 'volunteer')} until the "
        "last step, by data sheets",
    ]
    if plan.loss is not None:
        low, high = plan.loss
        lines.append(
            f"final loss    {low:.2f} to {high:.2f} nats a token after {tokens_of(run) / 1e9:,.2f} G tokens, by the "
            f"scaling laws of Hoffmann et al. 2022 and Besiroglu et al. 2024 (English, 32,000 tokens; with "
            f"{SPREAD:.0%} either way for your text)"
        )
    elif run.task.name == "causal" and rehearsed.parameters < MIN_PARAMETERS:
        lines.append("final loss    no scaling law was fitted to so small a model")
    lines.append(f"faster        {faster}")
    return lines


def _spelled(each: Volunteers) -> str:
    devices = f"{each.devices}x" if each.devices > 1 else ""
    return f"{each.count}x{devices}{each.device}@{each.line * 8 / 1e6:g}mbit{'/open' if each.reachable else ''}"


def _mbit(line: float) -> str:
    return f"{line * 8 / 1e6:,.0f} Mbit/s"
