"""Serves the dashboard from a thread: the page, JSON for programs, and a stream of server-sent events.

Viewers only read. Everything pushed to them is encoded once, whatever their number, and a viewer that does not
keep up is dropped: its browser connects again and starts from a fresh snapshot.
"""

import asyncio
import errno
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, HTTPException, Query, Request
from starlette.datastructures import MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dedloc_kit.dashboard.stream import MAX_VIEWERS, EventStream, Viewers
from dedloc_kit.dashboard.view import RunView
from dedloc_kit.distribution import running_wheel
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent
from dedloc_kit.records import Invitation, PeerId, Refusal
from dedloc_kit.run import RunConfig

_STATIC = Path(__file__).parent / "static"
_TICK_SECONDS = 1.0
"""How often the ledger is looked at when no event says that something is new."""
_PUSH_SECONDS = 0.2
"""Pushes are at least so far apart: faster than this nobody can read."""

_ANY_ADDRESS = ("0.0.0.0", "::")

_log = logging.getLogger(__name__)

_SECURITY = {
    # Only our own files run, load or are connected to. No inline script and no inline style: plotly would insert
    # style rules of its own and refrains because style.css has them (see index.html).
    # Hugging Face shows a Space inside a frame of its own page.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self' https://huggingface.co"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class Dashboard:
    """The page of one run, served by a background thread of this process."""

    def __init__(
        self,
        run: RunConfig,
        ledger: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        public_host: str | None = None,
        most_volunteers: int | None = None,
    ) -> None:
        """`ledger` need not exist yet; port 0 takes a free one; others reach this machine as `public_host`.

        With `most_volunteers` newcomers are asked to come later; whoever has a peer's address can join all the same.
        """
        self._public_host = public_host or (_own_address() if host in _ANY_ADDRESS else host)
        self.url = _url(self._public_host, port)
        """Where others find the page; with port 0 known once `start` has returned."""
        self.invitation: Invitation | None = None
        """Set by the launcher once the coordinator has joined, and renewed as volunteers come; volunteers fetch it
        from here."""
        self._run = run
        self._host, self._port, self._most_volunteers = host, port, most_volunteers
        self._view = RunView(run, ledger)
        self._news = asyncio.Event()
        self._viewers = Viewers(self._news)
        self._pushed: dict[str, Any] = {}
        self._pushed_step, self._pushed_evaluation = 0, -1
        self._thread: threading.Thread | None = None
        self._server: uvicorn.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()

    def start(self) -> None:
        """Serve; raises UserError if the address is not to be had."""
        listener = _listen(self._host, self._port)
        self.url = _url(self._public_host, listener.getsockname()[1])
        config = uvicorn.Config(
            self._application(), log_config=None, access_log=False, limit_concurrency=2 * MAX_VIEWERS, loop="asyncio"
        )
        config.timeout_graceful_shutdown = 2  # for a viewer that does not even take the end of its stream
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, args=(listener,), name="dashboard", daemon=True)
        self._thread.start()
        self._ready.wait()

    def publish(self, event: AnyEvent) -> None:
        """Show an event of the coordinator; any thread may call this at any time, also after the end."""
        self._view.take(event)
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
        self._view.close()

    def _serve(self, listener: socket.socket) -> None:
        assert self._server is not None
        try:
            asyncio.run(self._server.serve(sockets=[listener]))
        finally:
            self._ready.set()
            listener.close()

    def _application(self) -> FastAPI:
        # The generated documentation pages would load scripts from elsewhere.
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=self._lifespan)
        app.add_middleware(SecureHeaders)
        app.add_exception_handler(UserError, lambda _request, error: _json({"message": str(error)}, 404))
        app.mount("/static", GZipMiddleware(StaticFiles(directory=_STATIC), compresslevel=6), name="static")

        @app.get("/")
        def page() -> FileResponse:
            return FileResponse(_STATIC / "index.html")

        @app.get("/api/run")
        def run() -> Response:
            values = self._run.model_dump(mode="json")
            return _json({"run_id": self._run.run_id, "fingerprint": self._run.fingerprint, "run": values})

        @app.get("/api/invitation")
        def invitation(peer: Annotated[PeerId, Query()] = "") -> Response:
            refusal = self._refusal(self._view.state(), peer)
            if refusal is not None:
                return _json(refusal.model_dump(), 410 if refusal.reason == "over" else 503)
            assert self.invitation is not None
            return Response(self.invitation.model_dump_json(), media_type="application/json")

        @app.get("/requirements.txt")
        def requirements(request: Request) -> Response:
            # As the one who asks reached us: behind a tunnel that is not the address that we know of ourselves.
            return PlainTextResponse(f"dedloc_kit @ {request.base_url}wheel/{running_wheel().name}\n")

        @app.get("/wheel/{name}")
        def wheel(name: str) -> Response:
            if name != running_wheel().name:
                raise HTTPException(404)
            return Response(running_wheel().content, media_type="application/octet-stream")

        @app.get("/api/state")
        def state() -> Response:
            return _json(self._state())

        @app.get("/api/history")
        def history(after: Annotated[int, Query(ge=0, le=2**53)] = 0) -> Response:
            return _json(self._view.history(after))

        @app.get("/api/standing")
        def standing(peer: Annotated[PeerId, Query()], after: Annotated[int, Query(ge=0, le=2**53)] = 0) -> Response:
            return Response(self._view.standing(peer, after).model_dump_json(), media_type="application/json")

        @app.get("/api/events")
        async def events() -> Response:
            if self._viewers.full:
                return _json({"message": "too many viewers at the moment; try again later"}, 503)
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
                await asyncio.sleep(_PUSH_SECONDS)

    async def _push(self) -> None:
        """Tell all viewers what has changed since the last push."""
        state = await asyncio.to_thread(self._state)
        changed = {key: value for key, value in state.items() if self._pushed.get(key, ...) != value}
        self._pushed = state
        if changed:
            self._viewers.push(_event("change", changed))
        self._viewers.welcome(_event("state", state))
        # A page that finds a gap before `after`, or itself ahead of `last_step`, fetches the whole history.
        after = min(self._pushed_step, state["step"])
        history = await asyncio.to_thread(self._view.history, after, self._pushed_evaluation)
        if history["steps"] or history["evaluations"] or history["last_step"] < self._pushed_step:
            self._viewers.push(_event("history", history))
        self._pushed_step = history["last_step"]
        evaluated = (point["step"] for point in history["evaluations"])
        self._pushed_evaluation = max([min(self._pushed_evaluation, self._pushed_step), *evaluated])

    def _state(self) -> dict[str, Any]:
        state = self._view.state()
        refusal = self._refusal(state)
        return {**state, "refusal": refusal.reason if refusal is not None else None}

    def _refusal(self, state: dict[str, Any], peer: str = "") -> Refusal | None:
        """Why a volunteer with this peer id cannot join now; its own ghost after a crash is no reason."""
        if state["status"] == "finished":
            return Refusal(reason="over")
        if self.invitation is None:
            return Refusal(reason="starting")
        full = self._most_volunteers is not None and self._view.volunteers(without=peer) >= self._most_volunteers
        return Refusal(reason="full") if full else None


class SecureHeaders:
    """Adds the security headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_SECURITY)
                headers.setdefault("Cache-Control", "no-cache")  # ask each time, files answer "unchanged"
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UserError(f"'{host}' is no address to listen on ({error.strerror}); use 127.0.0.1 or 0.0.0.0") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # take the port of a server that just ended
        listener.bind(address)
        listener.listen(128)
        return listener
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} is in use; choose another with --port, such as --port {port + 1}") from None
        raise UserError(
            f"cannot listen on {host} port {port} ({error.strerror}); choose a port above 1023 and one of this "
            "machine's addresses, or 0.0.0.0"
        ) from None


def _own_address() -> str:
    """The address of this machine in its network: the one from which it would send to the world."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation; nothing is sent
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _json(values: Any, status: int = 200) -> Response:
    return Response(json.dumps(values, allow_nan=False), status, media_type="application/json")


def _event(name: str, values: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(values, allow_nan=False)}\n\n".encode()
