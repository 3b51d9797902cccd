"""The loss of a run as inline SVG: it needs no script, and takes its colours from the page it stands in."""

import itertools
import math
from collections.abc import Sequence

from dedloc_kit.display.axis import round_scale
from dedloc_kit.session.snapshot import LossPoint

_WIDTH, _HEIGHT = 440, 176
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 432, 32, 150
"""The frame of the plot."""


def loss_chart(losses: Sequence[LossPoint]) -> str:
    """The loss over global steps, those with samples of mine in the accent colour; words while there is none.

    Its classes have their colours from `panel.css`.
    """
    losses = [point for point in losses if math.isfinite(point.loss)]
    if not losses:
        return _svg(
            "The loss of the model: no step has been taken yet.",
            f'<path class="grid" d="M{_LEFT} {_BOTTOM}H{_RIGHT}"/>'
            f'<text x="{_WIDTH / 2}" y="{_HEIGHT / 2}" text-anchor="middle">'
            "The curve begins after the next shared step</text>",
        )
    first, last = losses[0].step, losses[-1].step
    low, high, tick = round_scale(min(point.loss for point in losses), max(point.loss for point in losses))

    def x(step: int) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (step - first) / max(1, last - first)

    def y(loss: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (loss - low) / (high - low)

    def line(points: Sequence[LossPoint], whose: str) -> str:
        drawn = " ".join(f"{x(point.step):.1f},{y(point.loss):.1f}" for point in points)
        return f'<polyline class="{whose}" points="{drawn}"/>'

    parts = []
    for number in range(round((high - low) / tick) + 1):
        loss = low + number * tick
        parts.append(f'<path class="grid" d="M{_LEFT} {y(loss):.1f}H{_RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:g}</text>')
    for step, anchor in {first: "start", last: "end" if last > first else "start"}.items():
        parts.append(f'<text x="{x(step)}" y="{_BOTTOM + 18}" text-anchor="{anchor}">step {step:,}</text>')
    parts.append(line(losses, "others"))
    # A line back to its own end has no length, but round ends: a lone step is a dot.
    parts += [line([*stretch, stretch[-1]], "mine") for stretch in _mine(losses)]
    newest = losses[-1]
    whose = "mine" if newest.mine else "others"
    parts.append(f'<circle class="{whose}" cx="{x(newest.step):.1f}" cy="{y(newest.loss):.1f}" r="3.5"/>')
    parts.append(_legend(newest.loss))
    return _svg(_summary(losses), "".join(parts))


def _mine(losses: Sequence[LossPoint]) -> list[list[LossPoint]]:
    """The stretches of the curve that lead to steps with samples of mine, each from the step before it."""
    stretches = []
    for mine, found in itertools.groupby(range(len(losses)), key=lambda index: losses[index].mine > 0):
        indices = list(found)
        if mine:
            stretches.append(list(losses[max(0, indices[0] - 1) : indices[-1] + 1]))
    return stretches


def _legend(latest: float) -> str:
    return (
        f'<text x="0" y="14">Loss {latest:.3g}: lower is better</text>'
        f'<text x="{_RIGHT}" y="14" text-anchor="end"><tspan class="key">━━ </tspan>steps with my samples</text>'
    )


def _summary(losses: Sequence[LossPoint]) -> str:
    """The chart in words, for those who do not see it."""
    first, last = losses[0], losses[-1]
    mine = sum(point.mine > 0 for point in losses)
    if first is last:
        span = f"The loss of the model was {last.loss:.3g} at step {last.step:,}"
    else:
        change = f"from {first.loss:.3g} at step {first.step:,} to {last.loss:.3g} at step {last.step:,}"
        span = f"The loss of the model went {change}"
    return f"{span}; {mine:,} of the {len(losses):,} steps shown hold samples of mine."


def _svg(summary: str, inside: str) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{summary}">'
        f"<title>{summary}</title>{inside}</svg>"
    )
