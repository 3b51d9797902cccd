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

from dedloc_kit.dashboard.http.base_url import page_address
from dedloc_kit.dashboard.render.sharing import sharing_tags
from dedloc_kit.dashboard.schemas import RunState
from dedloc_kit.records.record import PeerId

_STATIC = Path(__file__).parents[1] / "static"


def one_page(file: str, tags: Callable[[Request], str]) -> APIRouter:
    """What the page loads, and at the root of its address the page in this file, with these tags in its head."""
    router = APIRouter()
    files = GZipMiddleware(StaticFiles(directory=_STATIC), compresslevel=6)
    router.routes.append(Mount("/static", files, name="static"))
    rendered = _renderer(file, tags)

    @router.get("/", include_in_schema=False)
    def page(request: Request) -> HTMLResponse:
        return HTMLResponse(rendered(request))

    return router


def _renderer(file: str, tags: Callable[[Request], str]) -> Callable[[Request], str]:
    page = (_STATIC / file).read_text(encoding="utf-8")
    return lambda request: page.replace("<!-- sharing -->", tags(request))


def routes(current: Callable[[], RunState]) -> APIRouter:
    """Those of a run, whose page has several views."""

    def tags(request: Request) -> str:
        return sharing_tags(current(), page_address(request))

    router, rendered = one_page("index.html", tags), _renderer("index.html", tags)

    @router.get("/people", include_in_schema=False)
    @router.get("/swarm", include_in_schema=False)
    @router.get("/pipeline", include_in_schema=False)
    @router.get("/experts", include_in_schema=False)
    @router.get("/organizer", include_in_schema=False)
    def view(request: Request) -> HTMLResponse:
        return HTMLResponse(rendered(request))

    @router.get("/people/{peer}", include_in_schema=False)
    def person(request: Request, peer: Annotated[PeerId, InPath()]) -> HTMLResponse:
        # Its files are named relative to the page, which may live below a path of a proxy.
        return HTMLResponse(rendered(request).replace('="static/', '="../static/'))

    return router
