"""Serves the API until it is interrupted."""

from types import FrameType

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dedloc_kit.dashboard.http.connections import AT_ONCE, Connection, Listener, raise_file_limit
from dedloc_kit.dashboard.http.headers import SecureHeaders
from dedloc_kit.dashboard.http.limits import in_time
from dedloc_kit.machine.dialling import run_in_loop


class _Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End at a signal. uvicorn's own raises it again at the end, where it would count as a second one."""
        self.should_exit = True


class Server:
    """An application on a socket that listens."""

    def __init__(self, app: FastAPI, listener: Listener) -> None:
        self._listener = listener
        config = uvicorn.Config(
            listener.telling(SecureHeaders(Whole(app))),
            log_config=None,
            access_log=False,
            proxy_headers=False,
            ws="none",
            backlog=AT_ONCE,
            callback_notify=listener.end_late,
            timeout_notify=1,
            timeout_graceful_shutdown=2,
            loop="asyncio",
        )
        self._server = _Server(config)

    def run(self) -> None:
        """Serve until `stop` or, in the main thread, an interrupt."""
        raise_file_limit()
        try:
            run_in_loop(self._server.serve(sockets=[self._listener]))
        finally:
            self._listener.close()

    def stop(self) -> None:
        """From any thread."""
        self._server.should_exit = True


class Whole:
    """Tells a connection when its request is whole: until then it may be ended to make room, or for taking too long.

    Ends it as well if it does not take its answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection: Connection = scope["connection"]

        async def receive_whole() -> Message:
            part = await receive()
            if part["type"] == "http.request" and not part.get("more_body", False):
                connection.work()
            return part

        try:
            await self._app(scope, receive_whole, in_time(send, connection))
        finally:
            connection.wait()
