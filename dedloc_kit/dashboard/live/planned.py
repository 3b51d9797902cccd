"""How a run stands against what `dedloc check` predicted of it."""

from dedloc_kit.dashboard import schemas
from dedloc_kit.display.human import count
from dedloc_kit.records.plan import Plan

FIRST_STEPS = 100
"""Before so many global steps the pace says little."""
_ALIKE = 1.1
"""A ratio up to which two durations count as the same."""


def planned(plan: Plan, step: int, seconds_per_step: float | None, volunteers: int) -> schemas.Planned | None:
    """The comparison; none before the run has taken its first steps.

    :param seconds_per_step: of the last global steps
    :param volunteers: at work now
    """
    if step < FIRST_STEPS or seconds_per_step is None:
        return None
    ratio = seconds_per_step / max(plan.step_seconds, 1e-9)
    pace = "as planned"
    if ratio > _ALIKE:
        pace = f"{ratio:.1f} times as long as planned"
    elif ratio < 1 / _ALIKE:
        pace = f"{1 / max(ratio, 1e-9):.1f} times as fast as planned"
    text = (
        f"A step takes {seconds_per_step:,.1f} s, {pace} ({plan.step_seconds:,.1f} s); "
        f"{count(volunteers, 'volunteer')} at work, {plan.volunteer_count:,} planned"
    )
    if plan.loss is not None:
        text += f"; final loss planned {plan.loss[0]:.2f} to {plan.loss[1]:.2f}"
    return schemas.Planned(
        text=text,
        step_seconds=plan.step_seconds,
        days=plan.days,
        volunteers=plan.volunteer_count,
        loss=plan.loss,
    )
