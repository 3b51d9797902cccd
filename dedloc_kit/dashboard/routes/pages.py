"""The page: one file for all its views, and what it loads."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi import Path as InPath
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from dedloc_kit.dashboard.http.place import page_address
from dedloc_kit.dashboard.render.sharing import sharing_tags
from dedloc_kit.dashboard.schemas import RunState
from dedloc_kit.records import PeerId

_STATIC = Path(__file__).parents[1] / "static"


def routes(current: Callable[[], RunState]) -> APIRouter:
    router = APIRouter()
    files = GZipMiddleware(StaticFiles(directory=_STATIC), compresslevel=6)
    router.routes.append(Mount("/static", files, name="static"))
    page = (_STATIC / "index.html").read_text(encoding="utf-8")

    def rendered(request: Request) -> str:
        return page.replace("<!-- sharing -->", sharing_tags(current(), page_address(request)))

    @router.get("/", include_in_schema=False)
    @router.get("/people", include_in_schema=False)
    @router.get("/swarm", include_in_schema=False)
    @router.get("/organizer", include_in_schema=False)
    def view(request: Request) -> HTMLResponse:
        return HTMLResponse(rendered(request))

    @router.get("/people/{peer}", include_in_schema=False)
    def person(request: Request, peer: Annotated[PeerId, InPath()]) -> HTMLResponse:
        # Its files are named relative to the page, which may live below a path of a proxy.
        return HTMLResponse(rendered(request).replace('="static/', '="../static/'))

    return router
