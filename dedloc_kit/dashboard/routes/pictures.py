"""Pictures of the run to embed and to share, and those of its samples.

However many pages show the first, they are drawn once in a while.
"""

import base64
import hashlib
import io
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path, Request
from PIL import Image
from starlette.responses import Response

from dedloc_kit.dashboard.http.caching import Recent, cached_answer
from dedloc_kit.dashboard.http.openapi import answering
from dedloc_kit.dashboard.live.view import RunView
from dedloc_kit.dashboard.render.badge import badge
from dedloc_kit.dashboard.render.card import card
from dedloc_kit.dashboard.schemas import Message, RunState
from dedloc_kit.display.curve import CURVE_STYLE, Points, curve
from dedloc_kit.records.evaluation import Picture, PictureDigest

_BADGE_SECONDS, _LOSS_SECONDS, _CARD_SECONDS = 30, 60, 300
"""How old a picture may be, here and in caches."""
_SAMPLE_SECONDS = 365 * 86_400  # its address names what is in it
SVG = "image/svg+xml"
_STYLE_HASH = base64.b64encode(hashlib.sha256(CURVE_STYLE.encode()).digest()).decode()


def routes(view: RunView, current: Callable[[], RunState]) -> APIRouter:
    router = APIRouter(tags=["pictures"])

    def losses() -> tuple[Points, Points]:
        history = view.history()
        training = [(step.step, step.loss) for step in history.steps if step.loss is not None]
        return training, [(evaluation.step, evaluation.loss) for evaluation in history.evaluations]

    def drawn_badge() -> bytes:
        state = current()
        return badge(state.name, state.status, state.step).encode()

    recent_badge = Recent(drawn_badge, _BADGE_SECONDS)
    recent_loss = Recent(lambda: curve(*losses()).encode(), _LOSS_SECONDS)
    recent_card = Recent(lambda: card(current(), losses()[0]), _CARD_SECONDS)

    @router.get("/badge.svg", summary="A badge with status and global step", responses=answering(SVG, cached=True))
    def badge_picture(request: Request) -> Response:
        return cached_answer(request, recent_badge(), SVG, _BADGE_SECONDS)

    @router.get(
        "/loss.svg", summary="The loss chart, light or dark as the viewer likes", responses=answering(SVG, cached=True)
    )
    def loss_picture(request: Request) -> Response:
        answer = cached_answer(request, recent_loss(), SVG, _LOSS_SECONDS)
        # Opened by itself it is a document: the page's policy would take its colours away.
        answer.headers["Content-Security-Policy"] = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'"
        return answer

    @router.get(
        "/card.png", summary="The picture of a shared link, 1200 x 630", responses=answering("image/png", cached=True)
    )
    def card_picture(request: Request) -> Response:
        return cached_answer(request, recent_card(), "image/png", _CARD_SECONDS)

    @router.get(
        "/api/pictures/{digest}.webp",
        summary="A picture that samples name",
        responses={**answering("image/webp", cached=True), 404: {"model": Message}},
    )
    def sample_picture(request: Request, digest: Annotated[PictureDigest, Path()]) -> Response:
        return cached_answer(request, _webp(view.picture(digest)), "image/webp", _SAMPLE_SECONDS)

    return router


def _webp(picture: Picture) -> bytes:
    file = io.BytesIO()
    size = (picture.side, picture.side)
    # The page shows some several times as large, so that what is left out elsewhere would be seen; some kilobytes each.
    Image.frombytes("RGB", size, picture.pixels).save(file, "WEBP", lossless=True)
    return file.getvalue()
