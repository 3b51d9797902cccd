"""The page: one file for all its views, and what it loads."""

from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from dedloc_kit.dashboard.answers import State
from dedloc_kit.dashboard.sharing import sharing_tags

_STATIC = Path(__file__).parent / "static"


def routes(current: Callable[[], State]) -> APIRouter:
    router = APIRouter()
    files = GZipMiddleware(StaticFiles(directory=_STATIC), compresslevel=6)
    router.routes.append(Mount("/static", files, name="static"))

    page = (_STATIC / "index.html").read_text(encoding="utf-8")

    @router.get("/", include_in_schema=False)
    def overview(request: Request) -> HTMLResponse:
        return HTMLResponse(page.replace("<!-- sharing -->", sharing_tags(current(), str(request.base_url))))

    return router
