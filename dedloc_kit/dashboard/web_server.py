"""Serves a page that follows what it shows, from a thread: its files, JSON for programs, and a stream of server-sent
events.

Viewers only read. Everything pushed to them is encoded once, whatever their number, and a viewer that does not
keep up is dropped: its browser connects again and starts from a fresh snapshot.
"""

import asyncio
import gc
import json
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from dedloc_kit.dashboard import schemas
from dedloc_kit.dashboard.http.base_url import BehindProxy
from dedloc_kit.dashboard.http.connections import AT_ONCE, Listener, raise_file_limit
from dedloc_kit.dashboard.http.headers import SecureHeaders
from dedloc_kit.dashboard.http.limits import RateLimits, address_of
from dedloc_kit.dashboard.http.methods import Heads, refused
from dedloc_kit.dashboard.http.openapi import answering
from dedloc_kit.dashboard.http.sockets import ANY_ADDRESS, Certificate, listen, own_address, url_of
from dedloc_kit.dashboard.live.stream import EventStream, Viewers
from dedloc_kit.dashboard.schemas import message
from dedloc_kit.errors import UserError
from dedloc_kit.machine.dialling import run_in_loop

_TICK_SECONDS = 1.0
"""How often there is a look for news that no event tells."""

_log = logging.getLogger(__name__)


class Page(ABC):
    """A page, served by a background thread of this process."""

    description: dict[str, Any]
    """What its interface is, for programs."""
    push_seconds = 0.2
    """Pushes are at least so far apart: faster than this nobody can read."""

    def __init__(self, host: str, port: int, public: str | None, certificate: Certificate | None) -> None:
        """Port 0 takes a free one; others reach this machine as `public`: a host or, where a proxy stands before the
        page, a URL. With a certificate the page is served over TLS."""
        self._public = public or (own_address() if host in ANY_ADDRESS else host)
        self._certificate = certificate
        self.url = self._url(port)
        """Where others find the page; with port 0 known once `start` has returned."""
        self._host, self._port = host, port
        self._news = asyncio.Event()
        self._viewers = Viewers(self._news)
        self._pushed: dict[str, Any] = {}
        self._thread: threading.Thread | None = None
        self._server: uvicorn.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()

    @abstractmethod
    def _add_routes(self, app: FastAPI) -> None:
        """All but that of the events."""

    @abstractmethod
    def _state(self) -> BaseModel:
        """What is pushed: how things stand now, small."""

    def start(self) -> None:
        """Serve; raises UserError if the address is not to be had."""
        listener = listen(self._host, self._port)
        self.url = self._url(listener.getsockname()[1])
        raise_file_limit()
        proxies = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")
        # Who is behind a proxy is told here and not by uvicorn, which would not say any more who connected.
        served: Any = SecureHeaders(RateLimits(Heads(self._application())))
        served = BehindProxy(served, proxies, self._public if "://" in self._public else "")
        config = uvicorn.Config(
            listener.telling(served),
            log_config=None,
            access_log=False,
            proxy_headers=False,
            ws="none",
            backlog=AT_ONCE,
            callback_notify=listener.end_late,
            timeout_notify=1,
            loop="asyncio",
            ssl_certfile=self._certificate.chain if self._certificate else None,
            ssl_keyfile=self._certificate.key if self._certificate else None,
        )
        config.timeout_graceful_shutdown = 2  # for a viewer that does not even take the end of its stream
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, args=(listener,), name="dashboard", daemon=True)
        self._thread.start()
        self._ready.wait()
        # What stands now, all modules, will stand to the end. Looking through it for garbage would make an answer wait
        # 0.1 to 0.3 s every now and then.
        gc.collect()
        gc.freeze()

    def _url(self, port: int) -> str:
        return self._public if "://" in self._public else url_of(self._public, port, tls=self._certificate is not None)

    def _tell(self) -> None:
        """Let viewers know soon that something is new; any thread may call this at any time, also after the end."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._news.set)

    def stop(self) -> None:
        """End all streams and stop serving; a second time does nothing."""
        if self._thread is None or self._server is None:
            return
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._viewers.close)
        self._server.should_exit = True
        self._thread.join(timeout=10)
        self._thread = None

    def _serve(self, listener: Listener) -> None:
        assert self._server is not None
        try:
            run_in_loop(self._server.serve(sockets=[listener]))
        finally:
            self._ready.set()
            listener.close()

    def _application(self) -> FastAPI:
        # The generated documentation pages would load scripts from elsewhere.
        app = FastAPI(**self.description, docs_url=None, redoc_url=None, lifespan=self._lifespan)
        app.add_exception_handler(UserError, lambda _request, error: message(str(error), 404))
        app.add_exception_handler(HTTPException, lambda _request, error: refused(error))
        self._add_routes(app)

        @app.get(
            "/api/events",
            tags=["run"],
            summary="What happens, as server-sent events",
            responses={**answering("text/event-stream"), 503: {"model": schemas.Message}},
        )
        async def events(request: Request) -> Response:
            if not self._viewers.has_room(address_of(request.scope)):
                return message("too many viewers at the moment; try again later", 503)
            return EventStream(self._viewers)

        return app

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        pump = asyncio.create_task(self._pump())
        self._ready.set()  # the socket listens already: whoever connects now is served
        yield
        pump.cancel()

    async def _pump(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), _TICK_SECONDS)
            self._news.clear()
            if self._viewers.count:
                try:
                    await self._push()
                except Exception:  # one push that went wrong must not end all later ones
                    _log.exception("the dashboard could not be brought up to date")
                await asyncio.sleep(self.push_seconds)

    async def _push(self) -> dict[str, Any]:
        """Tell all viewers what has changed since the last push; returns the state."""
        state = (await asyncio.to_thread(self._state)).model_dump(mode="json")
        changed = {key: value for key, value in state.items() if self._pushed.get(key, ...) != value}
        self._pushed = state
        if changed:
            self._viewers.push(event("change", changed))
        self._viewers.welcome(event("state", state))
        return state


def event(name: str, values: Any) -> bytes:
    """As viewers are told of it."""
    return f"event: {name}\ndata: {json.dumps(values, allow_nan=False, ensure_ascii=False)}\n\n".encode()
