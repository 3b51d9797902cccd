"""Where the lines of a chart's axis go."""

import math


def round_scale(low: float, high: float) -> tuple[float, float, float]:
    """Round ends of an axis around the values, and the distance of its lines: 1, 2 or 5 times a power of ten."""
    span = max(high - low, abs(high) * 1e-3, 1e-6)
    power = 10.0 ** math.floor(math.log10(span / 4))
    tick = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span / 4)
    bottom = math.floor(low / tick) * tick
    return bottom, max(math.ceil(high / tick) * tick, bottom + tick), tick
