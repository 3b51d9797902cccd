"""How often one address may ask, and how much it may send.

Guessing the organizer's key is limited where the key is checked: here a neighbour behind the same proxy could use up
what the organizer needs.
"""

import ipaddress
import math
import time
from collections import OrderedDict
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dedloc_kit.dashboard.schemas import message


@dataclass(frozen=True)
class Limit:
    """A token bucket: `burst` requests at once, then `per_second` in the long run."""

    burst: int
    per_second: float


READING = Limit(20_000, 400.0)
"""Five hundred viewers behind one address open the page at once, and then fetch what has changed."""
COSTLY = Limit(60, 1.0)
"""What takes tens of milliseconds of a processor or megabytes of a line: a class can fetch its tables."""
MOST_SENT = 64 * 1024
"""Bytes of a request's body; an order of the organizer takes a few hundred."""
_REMEMBERED = 10_000
"""Addresses; those that have not asked for longest are forgotten, as if they had never asked."""


class RateLimits:
    """Refuses with 429 who asks too often, and with 413 who sends too much.

    Who asks is who connects, or whom a proxy on this machine names in X-Forwarded-For (uvicorn reads it; the variable
    FORWARDED_ALLOW_IPS names proxies elsewhere). All who come through a proxy that names nobody share one bucket.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._buckets: OrderedDict[tuple[str, Limit], tuple[float, float]] = OrderedDict()  # tokens, when

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = _too_much(Headers(scope=scope))
            if refusal is not None:
                await refusal(scope, receive, send)
                return
            seconds = self.wait(_address(scope), limit_of(scope["path"]), time.monotonic())
            if seconds > 0:
                answer = message(f"too many requests; try again in {seconds} s", 429)
                answer.headers["Retry-After"] = str(seconds)
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

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
    return COSTLY if path.startswith("/api/export/") else READING


def _too_much(headers: Headers) -> Response | None:
    """The refusal of a body that would fill the memory: it is read before anybody asks who sends it."""
    if "transfer-encoding" in headers:
        return message("say how long the body is (Content-Length)", 411)
    if int(headers.get("content-length", 0)) > MOST_SENT:  # the server has checked that it is a number
        return message(f"the body is longer than {MOST_SENT} bytes", 413)
    return None


def _address(scope: Scope) -> str:
    """Of IPv6 the network that one household has."""
    host = scope["client"][0] if scope.get("client") else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a proxy may name anything
        return ""
    return str(address) if address.version == 4 else str(ipaddress.ip_network((int(address), 64), strict=False))
