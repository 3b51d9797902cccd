"""The page: one file for all its views, and what it loads."""

from pathlib import Path

from fastapi import APIRouter
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

_STATIC = Path(__file__).parent / "static"


def routes() -> APIRouter:
    router = APIRouter()
    files = GZipMiddleware(StaticFiles(directory=_STATIC), compresslevel=6)
    router.routes.append(Mount("/static", files, name="static"))

    @router.get("/")
    def page() -> FileResponse:
        return FileResponse(_STATIC / "index.html")

    return router
