"""How often one address may ask, how much it may send, and how many of its requests may be answered at a time.

Guessing the organizer's key is limited where the key is checked: here a neighbour behind the same proxy could use up
what the organizer needs.
"""

import asyncio
import math
import time
from collections import OrderedDict
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dedloc_kit.dashboard.http.connections import Connection
from dedloc_kit.dashboard.http.fair_pool import Shares, household
from dedloc_kit.dashboard.schemas import message


@dataclass(frozen=True)
class Limit:
    """A token bucket for each address, `burst` requests at once, then `per_second` in the long run; and how many
    requests of all addresses together are answered `at_once`, event streams and slow lines included."""

    burst: int
    per_second: float
    at_once: int


READING = Limit(20_000, 400.0, 800)
"""Five hundred viewers behind one address open the page at once, and then fetch what has changed."""
COSTLY = Limit(60, 1.0, 16)
"""What takes tens of milliseconds of a processor or megabytes of a line: a class can fetch its certificates. An export
that is on its way also keeps a file on the disk."""
ENTRANCE = Limit(2_000, 20.0, 100)
"""What volunteers and the organizer need; viewers, whatever their number, leave all of it. A class of 400 joins at
once: the requirements, the wheel, the invitation, each again after a mistake."""
MAX_SENT = 64 * 1024
"""Bytes of a request's body; an order of the organizer takes a few hundred."""
STALLED_SECONDS = 30.0
"""How long a part of an answer may wait until the other side takes it."""
PART = 64 * 1024
"""Bytes of an answer that are handed on together: a slow line takes them in this time, and no more of them waits in
the memory."""
_REMEMBERED = 10_000
"""Addresses; those that have not asked for longest are forgotten, as if they had never asked."""


class RateLimits:
    """Refuses with 429 who asks too often, with 413 who sends too much, and with 503 if there is no room.

    Who asks is who connects, or whom a proxy on this machine names in X-Forwarded-For (the variable
    FORWARDED_ALLOW_IPS names proxies elsewhere). All who come through a proxy that names nobody share one bucket.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._buckets: OrderedDict[tuple[str, Limit], tuple[float, float]] = OrderedDict()  # tokens, when
        self._answered: dict[Limit, Shares[Connection]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, limit, address = Headers(scope=scope), limit_of(scope["path"]), address_of(scope)
        answered = self._answered.setdefault(limit, Shares(limit.at_once))
        refusal = _too_much(headers) or self._too_often(address, limit) or _no_room(answered, address)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        connection: Connection = scope["connection"]

        whole = False  # until then it waits, and takes no place here

        def begin() -> None:
            nonlocal whole
            whole = True
            connection.work()
            first = answered.add(address, connection)
            if first is not None:
                first.cut()

        async def receive_whole() -> Message:
            part = await receive()
            if not whole and not part.get("more_body", False):
                begin()
            return part

        if headers.get("content-length", "0") == "0" or scope["method"] in ("GET", "HEAD"):  # whose body nobody reads
            begin()
        try:
            await self._app(scope, receive_whole, in_time(send, connection))
        finally:
            answered.discard(connection)
            connection.wait()

    def _too_often(self, address: str, limit: Limit) -> Response | None:
        seconds = self.wait(address, limit, time.monotonic())
        return None if seconds == 0 else _later(f"too many requests; try again in {seconds} s", 429, seconds)

    def wait(self, address: str, limit: Limit, now: float) -> int:
        """Take one token; if there is none, in how many seconds there will be one."""
        tokens, then = self._buckets.pop((address, limit), (float(limit.burst), now))
        tokens = min(limit.burst, tokens + (now - then) * limit.per_second)
        self._buckets[address, limit] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        return 0 if tokens >= 1 else math.ceil((1 - tokens) / limit.per_second)


def limit_of(path: str) -> Limit:
    """Which limit a request falls under."""
    if path.startswith("/api/export/"):
        return COSTLY
    entrance = ("/api/invitation", "/requirements.txt", "/wheel/", "/organizer/login", "/api/organizer")
    return ENTRANCE if path.startswith(entrance) else READING


def address_of(scope: Scope) -> str:
    """Whose share a request counts for."""
    return household(scope["client"][0] if scope.get("client") else "")


def _too_much(headers: Headers) -> Response | None:
    """The refusal of a body that would fill the memory: it is read before anybody asks who sends it."""
    if "transfer-encoding" in headers:
        return message("say how long the body is (Content-Length)", 411)
    if int(headers.get("content-length", 0)) > MAX_SENT:  # the server has checked that it is a number
        return message(f"the body is longer than {MAX_SENT} bytes", 413)
    return None


def _no_room(answered: Shares[Connection], address: str) -> Response | None:
    if answered.has_room(address):
        return None
    return _later("too many requests are answered at the moment; try again later", 503, 10)


def _later(text: str, status: int, seconds: int) -> Response:
    answer = message(text, status)
    answer.headers["Retry-After"] = str(seconds)
    return answer


def in_time(send: Send, connection: Connection) -> Send:
    """Sends in parts, and ends the connection if one of them is not taken."""

    async def send_in_time(message: Message) -> None:
        parts = [message]
        if message["type"] == "http.response.body":
            body, more = message.get("body", b""), message.get("more_body", False)
            starts = range(0, max(1, len(body)), PART)
            parts = [{**message, "body": body[s : s + PART], "more_body": more or s < starts[-1]} for s in starts]
        for part in parts:
            try:
                async with asyncio.timeout(STALLED_SECONDS):
                    await send(part)
            except TimeoutError:
                connection.cut()

    return send_in_time
