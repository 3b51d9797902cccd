"""The page: one file for all its views, and what it loads."""

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as InPath
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from dedloc_kit.records import PeerId

_STATIC = Path(__file__).parent / "static"


def routes() -> APIRouter:
    router = APIRouter()
    files = GZipMiddleware(StaticFiles(directory=_STATIC), compresslevel=6)
    router.routes.append(Mount("/static", files, name="static"))
    page = (_STATIC / "index.html").read_text(encoding="utf-8")

    @router.get("/", include_in_schema=False)
    @router.get("/people", include_in_schema=False)
    @router.get("/swarm", include_in_schema=False)
    @router.get("/organizer", include_in_schema=False)
    def view() -> HTMLResponse:
        return HTMLResponse(page)

    @router.get("/people/{peer}", include_in_schema=False)
    def person(peer: Annotated[PeerId, InPath()]) -> HTMLResponse:
        # Its files are named relative to the page, which may live below a path of a proxy.
        return HTMLResponse(page.replace('="static/', '="../static/'))

    return router
