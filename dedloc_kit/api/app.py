"""The addresses of the API."""

import hmac
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from dedloc_kit.api.answering import Answering
from dedloc_kit.api.errors import ApiError, told
from dedloc_kit.api.forms import ChatForm, CompletionForm
from dedloc_kit.api.generating import Generator, Served
from dedloc_kit.api.requests import AnyRequest, ChatRequest, CompletionRequest, parse
from dedloc_kit.machine.addresses import is_address, is_loopback

MAX_BODY = 1024 * 1024
"""Bytes of a request."""


def create_app(served: Served, key: str | None, hosts: Collection[str] = (), *, elsewhere: bool = False) -> FastAPI:
    """The API of one model.

    Without a key it answers only requests whose Host is this machine's own: a page in somebody's browser may let its
    name stand for another address (DNS rebinding), and is then free to read what the server behind that says.

    :param key: what callers must show as `Authorization: Bearer KEY`; None if everybody may ask
    :param hosts: names by which it may be reached without a key
    :param elsewhere: other machines may ask as well, by any address: a page cannot choose what an address stands for
    """
    generator = Generator(served)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        generator.close()

    async def check_caller(request: Request) -> None:
        if key is None and not _reached_by(name := _host(request), hosts, elsewhere):
            message = f"without a key this server does not answer to the name {name:.200}; start it with --allow-host"
            raise ApiError(403, message, code="host_not_allowed")
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if key is not None and not (hmac.compare_digest(shown.encode(), key.encode()) and scheme.lower() == "bearer"):
            message = "this server needs its key, as `Authorization: Bearer KEY`"
            raise ApiError(401, message, code="invalid_api_key")

    def begin(asked: AnyRequest, form: type[ChatForm] | type[CompletionForm]) -> Response:
        named(asked.model)
        return Answering(asked, generator.begin(asked), form(served))

    def named(model: str) -> None:
        if model != served.name:
            message = f"there is no model {model:.200} here; this server has {served.name}"
            raise ApiError(404, message, param="model", code="model_not_found")

    app = FastAPI(
        lifespan=lifespan, dependencies=[Depends(check_caller)], openapi_url=None, docs_url=None, redoc_url=None
    )
    app.add_exception_handler(ApiError, _refused)
    app.add_exception_handler(HTTPException, _unknown)
    app.add_exception_handler(Exception, lambda _, error: told(error).response())
    description = {"id": served.name, "object": "model", "created": int(time.time()), "owned_by": "dedloc_kit"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [description]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        named(name)
        return description

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return begin(parse(ChatRequest, await _body(request)), ChatForm)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return begin(parse(CompletionRequest, await _body(request)), CompletionForm)

    return app


def _host(request: Request) -> str:
    """What stands in the header Host, without the port; empty if that is no host."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _reached_by(name: str, hosts: Collection[str], elsewhere: bool) -> bool:
    return is_loopback(name) or name in hosts or (elsewhere and is_address(name))


async def _body(request: Request) -> bytes:
    """Raises ApiError before too much of it is in memory."""
    # A page in somebody's browser can send other types to a server on their machine without asking it first.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "send JSON, with the header Content-Type: application/json", code="invalid_content_type")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY:
                raise ApiError(413, f"the body is longer than {MAX_BODY} bytes", code="request_too_large")
    except ClientDisconnect:
        raise ApiError(400, "the body has no end") from None
    return bytes(body)


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return ApiError(error.status_code, f"{request.method} {request.url.path:.200}: {error.detail}").response()
