"""The losses of a run as a small picture in SVG, for pages without scripts."""

import math
from collections.abc import Sequence

from dedloc_kit.axis import round_scale
from dedloc_kit.ledger import EvaluationPoint
from dedloc_kit.records import GlobalStep

CURVE_FILE = "curve.svg"
_WIDTH, _HEIGHT = 720, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 704, 16, 284
"""The frame of the plot."""
MOST_POINTS = 500
"""More than these are not seen."""
_TRAINING, _HELD_OUT = "#4c78a8", "#e45756"

Points = list[tuple[int, float]]


def curve(steps: Sequence[GlobalStep], evaluations: Sequence[EvaluationPoint]) -> str:
    """Training and held-out loss over global steps; an empty frame while there is none."""
    training = [(step.step, step.loss) for step in steps if step.loss is not None]
    held_out = [(evaluation.step, evaluation.loss) for evaluation in evaluations]
    every = [*training, *held_out]
    last = max([step for step, _ in every], default=1)
    losses = [loss for _, loss in every] or [0.0, 1.0]
    low, high, tick = round_scale(min(losses), max(losses))

    def x(step: int) -> float:
        return _LEFT + (_RIGHT - _LEFT) * step / max(1, last)

    def y(loss: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (loss - low) / (high - low)

    def line(points: Points, colour: str) -> str:
        thin = points[:: -math.ceil(len(points) / MOST_POINTS) or -1][::-1]  # the newest point is always there
        drawn = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in thin)
        return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.5"/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12" fill="#555">',
        "<title>Training and held-out loss by global step</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for number in range(round((high - low) / tick) + 1):
        loss = low + number * tick
        parts.append(f'<path d="M{_LEFT} {y(loss):.1f}H{_RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:g}</text>')
    for step in sorted({round(last * part / 4) for part in range(5)}):
        parts.append(f'<text x="{x(step):.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_HEIGHT - 4}" text-anchor="middle">global step</text>')
    for number, (name, points, colour) in enumerate(
        (("training loss", training, _TRAINING), ("held-out loss", held_out, _HELD_OUT))
    ):
        parts.append(line(points, colour))
        parts.append(
            f'<text x="{_RIGHT - 8}" y="{_TOP + 14 + 16 * number}" text-anchor="end" fill="{colour}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
