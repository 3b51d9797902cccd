"""The page of a swarm that serves a model, with JSON for programs and what happens as a stream of events."""

import time
from collections.abc import Callable

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

from dedloc_kit.dashboard.http.base_url import page_address
from dedloc_kit.dashboard.http.caching import Answers, Recent
from dedloc_kit.dashboard.http.openapi import SERVING_DESCRIPTION, UNCHANGED
from dedloc_kit.dashboard.http.sockets import Certificate
from dedloc_kit.dashboard.render.sharing import serving_tags
from dedloc_kit.dashboard.routes import metrics, pages
from dedloc_kit.dashboard.routes.join_routes import Entrance
from dedloc_kit.dashboard.serving.metrics import ServingCollector
from dedloc_kit.dashboard.serving.schemas import ServingState
from dedloc_kit.dashboard.serving.view import ServingView
from dedloc_kit.dashboard.web_server import Page
from dedloc_kit.events import AnyEvent
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.serving.config import ServingConfig

_FACTS_SECONDS = 1.0
"""How old the state may be that programs are told."""


class ServingDashboard(Page):
    """The page of one serving swarm, served by a background thread of this process."""

    description = SERVING_DESCRIPTION
    push_seconds = 1.0

    def __init__(
        self,
        serving: ServingConfig,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        public: str | None = None,
        certificate: Certificate | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """See `Page` and `ServingView`."""
        super().__init__(host, port, public, certificate)
        self._view = ServingView(serving, clock)
        self._entrance = Entrance(self._view.state)

    @property
    def wheel(self) -> str | None:
        """The file of the kit that is given away here, with its digest; none if there is no such file."""
        return self._entrance.wheel

    def give_out(self, invitation: Invitation) -> None:
        """From now on this one is given to whoever may join; before the first one all are asked to wait."""
        self._entrance.give_out(invitation)
        self._tell()

    def publish(self, event: AnyEvent) -> None:
        """Show an event of the first server; any thread may call this at any time, also after the end."""
        self._view.hear(event)
        self._tell()

    def _add_routes(self, app: FastAPI) -> None:
        state = Recent(self._state, _FACTS_SECONDS)
        app.include_router(pages.one_page("serving.html", lambda request: serving_tags(state(), page_address(request))))
        app.include_router(self._entrance.routes())
        app.include_router(_api(state))
        app.include_router(metrics.prometheus(ServingCollector(state, lambda: self._viewers.count)))

    def _state(self) -> ServingState:
        state = self._view.state()
        refusal = self._entrance.refusal(state)
        told = {
            "refusal": refusal.reason if refusal is not None else None,
            "organizer": self._entrance.organizer,
            "wheel": self._entrance.wheel,
        }
        return state.model_copy(update=told)


def _api(state: Recent[ServingState]) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["serving"], responses=UNCHANGED)
    kept = Answers(lambda: time.monotonic() // _FACTS_SECONDS)

    @router.get("/serving", response_model=ServingState)
    def serving(request: Request) -> Response:
        """How the model is served, and by whom."""
        return kept.answer(request, state)

    return router
