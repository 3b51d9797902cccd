"""Pictures of the run to embed and to share. However many pages show them, they are drawn once in a while."""

import base64
import hashlib
from collections.abc import Callable

from fastapi import APIRouter, Request
from starlette.responses import Response

from dedloc_kit.dashboard.answers import State
from dedloc_kit.dashboard.badge import badge
from dedloc_kit.dashboard.caching import Recent, cached_answer
from dedloc_kit.dashboard.card import card
from dedloc_kit.dashboard.description import answering
from dedloc_kit.dashboard.view import RunView
from dedloc_kit.display.curve import CURVE_STYLE, Points, curve

_BADGE_SECONDS, _LOSS_SECONDS, _CARD_SECONDS = 30, 60, 300
"""How old a picture may be, here and in caches."""
SVG = "image/svg+xml"
_STYLE_HASH = base64.b64encode(hashlib.sha256(CURVE_STYLE.encode()).digest()).decode()


def routes(view: RunView, current: Callable[[], State]) -> APIRouter:
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

    return router
