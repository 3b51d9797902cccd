"""The picture that a link to a run has where it is shared (Open Graph). Numbers and the run's name, which is ASCII."""

import io

from PIL import Image, ImageDraw, ImageFont

from dedloc_kit.dashboard.schemas import RunState
from dedloc_kit.display.axis import round_scale
from dedloc_kit.display.curve import Points
from dedloc_kit.display.human import count

CARD_WIDTH, CARD_HEIGHT = 1200, 630
_SCALE = 2  # drawn larger and then made smaller: Pillow draws lines with hard edges
_MARGIN = 72
_CHART = (_MARGIN, 330, CARD_WIDTH - _MARGIN, 520)
_PAPER, _INK, _MUTED, _TRACK, _GREEN = "#f8f6f1", "#1f2420", "#61665d", "#e3decf", "#1b7257"


def card(state: RunState, training: Points) -> bytes:
    """A PNG of 1200 x 630 pixels."""
    image = Image.new("RGB", (CARD_WIDTH * _SCALE, CARD_HEIGHT * _SCALE), _PAPER)
    draw = ImageDraw.Draw(image)

    def text(x: float, y: float, words: str, size: float, colour: str, anchor: str = "ls") -> None:
        draw.text((x * _SCALE, y * _SCALE), words, colour, ImageFont.load_default(size * _SCALE), anchor)

    right, step, total = CARD_WIDTH - _MARGIN, state.step, state.total_steps
    text(_MARGIN, 92, "dedloc", 28, _MUTED)
    text(right, 92, state.status, 28, _GREEN, "rs")
    text(_MARGIN, 190, state.name, min(96, 1700 / len(state.name)), _INK)
    by = count(state.contributor_count, "volunteer")
    text(_MARGIN, 250, f"A model trained together over the Internet by {by}", 34, _MUTED)
    if len(training) > 1:
        draw.line(_line(training), _GREEN, 5 * _SCALE, "curve")
    done = _MARGIN + (right - _MARGIN) * min(1.0, step / total)
    draw.rounded_rectangle([value * _SCALE for value in (_MARGIN, 548, right, 558)], 5 * _SCALE, _TRACK)
    if step:
        draw.rounded_rectangle([value * _SCALE for value in (_MARGIN, 548, max(done, 82), 558)], 5 * _SCALE, _GREEN)
    text(_MARGIN, 600, f"step {step:,} of {total:,}", 28, _INK)
    if state.loss is not None:
        text(right, 600, f"loss {state.loss:.4g}", 28, _INK, "rs")
    picture = io.BytesIO()
    image.resize((CARD_WIDTH, CARD_HEIGHT), Image.Resampling.LANCZOS).quantize(64).save(picture, "PNG", optimize=True)
    return picture.getvalue()


def _line(points: Points) -> list[tuple[float, float]]:
    left, top, right, bottom = (value * _SCALE for value in _CHART)
    low, high, _ = round_scale(min(loss for _, loss in points), max(loss for _, loss in points))
    first, last = points[0][0], points[-1][0]
    return [
        (
            left + (right - left) * (step - first) / max(1, last - first),
            bottom - (bottom - top) * (loss - low) / (high - low),
        )
        for step, loss in points
    ]
