"""What happened in a run that is worth telling those who do not look every day."""

from collections.abc import Iterator
from dataclasses import dataclass

from dedloc_kit.display.human import count
from dedloc_kit.ledger import Ledger

_CROWDS = (10, 100, 1_000)


@dataclass(frozen=True)
class Milestone:
    """`key` names it for good, so that nobody is told twice."""

    key: str
    title: str
    time: float
    """Seconds since 1970."""


def milestones(ledger: Ledger, total_steps: int) -> list[Milestone]:
    """All so far, oldest first."""
    first = ledger.steps(limit=1)
    if not first:
        return []
    last = ledger.steps(after=ledger.last_step() - 1)[-1]
    found = [*_progress(ledger, total_steps), *_crowds(ledger), *_losses(ledger)]
    # Who has been adopted from another ledger may have come before this one's first step.
    within = [Milestone(m.key, m.title, min(max(m.time, first[0].time), last.time)) for m in found]
    return sorted(within, key=lambda milestone: milestone.time)


def _progress(ledger: Ledger, total_steps: int) -> Iterator[Milestone]:
    parts = {part: max(1, -(-total_steps * part // 100)) for part in (0, *range(10, 101, 10))}
    last = ledger.last_step()
    for part, step in parts.items():
        if step > last:
            return
        time = ledger.steps(after=step - 1, limit=1)[0].time
        if part == 0:
            yield Milestone("first-step", "The first global step is done", time)
        elif part == 100:
            yield Milestone("finished", f"The last of {count(total_steps, 'global step')} is done", time)
        else:
            yield Milestone(f"progress-{part}", f"{part} % done: global step {step:,} of {total_steps:,}", time)


def _crowds(ledger: Ledger) -> Iterator[Milestone]:
    joined = sorted(contributor.first_seen for contributor in ledger.contributors())
    for crowd in _CROWDS:
        if len(joined) >= crowd:
            yield Milestone(f"contributors-{crowd}", f"{crowd:,} people have given samples", joined[crowd - 1])


def _losses(ledger: Ledger) -> Iterator[Milestone]:
    """The held-out loss: the training loss of a single step is too noisy."""
    points = ledger.evaluations()
    if not points or points[0].loss <= 0:
        return
    reached = points[0].loss
    for number in range(1, 5):
        reached /= 2
        below = next((point for point in points if point.loss <= reached), None)
        if below is None:
            return
        what = f"The held-out loss has fallen to {below.loss:.3g}, less than 1/{2**number} of what it was at first"
        yield Milestone(f"loss-half-{number}", what, below.time)
