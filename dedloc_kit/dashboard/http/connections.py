"""The connections that are made to the page: none is kept for nothing, and no address keeps the others out."""

import resource
import socket
import time
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from dedloc_kit.dashboard.http.fair_pool import Shares, household

MAX_WAITING = 400
"""Connections on which no whole request has come yet, or no further one: half sent, not encrypted yet, idle."""
REQUEST_SECONDS = 30.0
"""How long one may be so; what it still has to take of an answer, too."""
AT_ONCE = 128
"""Connections that are taken before anything else is done."""
_FILES = 4096
"""That this process may have open, if the system lets it: the usual 1,024 are too few for all budgets together."""


class Connection(socket.socket):
    """One of them; the server that speaks on it need not know that it is watched."""

    def __init__(self, accepted: socket.socket, peer: tuple[str, int], listener: "Listener") -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        self.peer = peer
        self.since = time.monotonic()
        """When it began to wait for a request."""
        self._listener = listener

    def wait(self) -> None:
        """A request may come on it now; if there is no place left for it, the connection of somebody else ends."""
        self.since = time.monotonic()
        first = self._listener.waiting.add(household(self.peer[0]), self) if self.fileno() >= 0 else None
        if first is not None:
            first.cut()

    def work(self) -> None:
        """Its request is whole: now it takes what it asks for, and no place of those who wait."""
        self._listener.waiting.discard(self)

    def cut(self) -> None:
        """End it, whatever goes on there."""
        self._listener.waiting.discard(self)
        with suppress(OSError):  # the other side was faster
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        super().close()
        self._listener.forget(self)


class Listener(socket.socket):
    """A listening socket whose connections have a budget before anything of theirs is read.

    It is shared by address. A proxy's connections are the proxy's: it has read its viewers' requests before it asks.
    """

    def __init__(self, family: int, kind: int, protocol: int) -> None:
        super().__init__(family, kind, protocol)
        self.waiting = Shares[Connection](MAX_WAITING)
        self._open: dict[tuple[str, int], Connection] = {}

    def accept(self) -> tuple[socket.socket, Any]:
        accepted, address = super().accept()
        connection = self._open[address[:2]] = Connection(accepted, address[:2], self)
        connection.wait()
        return connection, address

    def forget(self, connection: Connection) -> None:
        self.waiting.discard(connection)
        if self._open.get(connection.peer) is connection:
            del self._open[connection.peer]

    async def end_late(self) -> None:
        """End those that have waited for too long; to be called every second or so."""
        latest = time.monotonic() - REQUEST_SECONDS
        for connection in self.waiting:
            if connection.since < latest:
                connection.cut()

    def telling(self, app: ASGIApp) -> ASGIApp:
        """The application, told as `scope["connection"]` on which connection a request came.

        To be asked before a proxy's headers put the viewer in the place of the connection's other end.
        """

        async def told(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                connection = self._open.get(tuple(scope["client"] or ()))
                if connection is None:  # it has been closed meanwhile
                    return
                scope["connection"] = connection
            await app(scope, receive, send)

        return told


def raise_file_limit() -> None:
    """Let this process have as many connections as the budgets allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
