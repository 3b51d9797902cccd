"""The losses of a run as a small picture in SVG, for pages without scripts. It is light or dark as its viewer likes."""

import math
from collections.abc import Sequence

from dedloc_kit.display.axis import round_scale

CURVE_FILE = "curve.svg"
_WIDTH, _HEIGHT = 720, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 704, 16, 284
"""The frame of the plot."""
MAX_POINTS = 500
"""More than these are not seen."""
CURVE_STYLE = """\
svg { color: #61665d } .training { color: #1b7257 } .held-out { color: #b9561b }
.paper { fill: #fffefa } .grid { stroke: #dfdbcf }
text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: currentColor }
polyline { fill: none; stroke: currentColor; stroke-width: 1.75; stroke-linejoin: round; stroke-linecap: round }
@media (prefers-color-scheme: dark) {
  svg { color: #a1a69b } .training { color: #67c9a3 } .held-out { color: #ec9a5c }
  .paper { fill: #1c211d } .grid { stroke: #303630 }
}
"""

Points = Sequence[tuple[int, float]]
"""Global steps with their loss, oldest first."""


def curve(training: Points, held_out: Points) -> str:
    """Training and held-out loss over global steps; an empty frame while there is none."""
    every = [*training, *held_out]
    last = max([step for step, _ in every], default=1)
    losses = [loss for _, loss in every] or [0.0, 1.0]
    low, high, tick = round_scale(min(losses), max(losses))

    def x(step: int) -> float:
        return _LEFT + (_RIGHT - _LEFT) * step / max(1, last)

    def y(loss: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (loss - low) / (high - low)

    def line(points: Points, whose: str) -> str:
        thin = points[:: -math.ceil(len(points) / MAX_POINTS) or -1][::-1]  # the newest point is always there
        drawn = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in thin)
        return f'<polyline class="{whose}" points="{drawn}"/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        "<title>Training and held-out loss by global step</title>",
        f"<style>{CURVE_STYLE}</style>",
        '<rect class="paper" width="100%" height="100%" rx="6"/>',
    ]
    for number in range(round((high - low) / tick) + 1):
        loss = low + number * tick
        parts.append(f'<path class="grid" d="M{_LEFT} {y(loss):.1f}H{_RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:g}</text>')
    for step in sorted({round(last * part / 4) for part in range(5)}):
        parts.append(f'<text x="{x(step):.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{step:,}</text>')
    parts.append(f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_HEIGHT - 4}" text-anchor="middle">global step</text>')
    for number, (name, points, whose) in enumerate(
        (("training loss", training, "training"), ("held-out loss", held_out, "held-out"))
    ):
        parts.append(line(points, whose))
        parts.append(
            f'<text class="{whose}" x="{_RIGHT - 8}" y="{_TOP + 14 + 16 * number}" text-anchor="end">{name}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
