"""The run in JSON, for the page and for programs. Everybody may read it."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from dedloc_kit.dashboard.answers import json_answer
from dedloc_kit.dashboard.view import RunView
from dedloc_kit.records import PeerId
from dedloc_kit.run import RunConfig


def routes(run: RunConfig, view: RunView, current: Callable[[], dict[str, Any]]) -> APIRouter:
    """`current` says how the run stands now, as it is pushed to the page too."""
    router = APIRouter(prefix="/api")

    @router.get("/run")
    def configuration() -> Response:
        values = run.model_dump(mode="json")
        return json_answer({"run_id": run.run_id, "fingerprint": run.fingerprint, "run": values})

    @router.get("/state")
    def state() -> Response:
        return json_answer(current())

    @router.get("/history")
    def history(after: Annotated[int, Query(ge=0, le=2**53)] = 0) -> Response:
        return json_answer(view.history(after))

    @router.get("/standing")
    def standing(peer: Annotated[PeerId, Query()], after: Annotated[int, Query(ge=0, le=2**53)] = 0) -> Response:
        return Response(view.standing(peer, after).model_dump_json(), media_type="application/json")

    return router
