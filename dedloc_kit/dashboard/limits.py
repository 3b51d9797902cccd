"""How often one address may ask: what costs little nearly always, what costs much or changes something seldom."""

import ipaddress
import math
import time
from collections import OrderedDict
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from dedloc_kit.dashboard.answers import message


@dataclass(frozen=True)
class Limit:
    """A token bucket: `burst` requests at once, then `per_second` in the long run."""

    burst: int
    per_second: float


READING = Limit(20_000, 400.0)
"""Five hundred viewers behind one address open the page at once, and then fetch what has changed."""
COSTLY = Limit(60, 1.0)
"""What takes tens of milliseconds of a processor or megabytes of a line: a class can fetch its certificates."""
WRITING = Limit(30, 0.5)
"""An organizer at work; not somebody who tries keys."""
_REMEMBERED = 10_000
"""Addresses; those that have not asked for longest are forgotten, as if they had never asked."""


class RateLimits:
    """Refuses with 429 who asks too often.

    Who asks is who connects, or whom a proxy on this machine names in X-Forwarded-For (uvicorn reads it; the variable
    FORWARDED_ALLOW_IPS names proxies elsewhere). All who come through a proxy that names nobody share one bucket.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._buckets: OrderedDict[tuple[str, Limit], tuple[float, float]] = OrderedDict()  # tokens, when

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            seconds = self.wait(_address(scope), limit_of(scope["method"], scope["path"]), time.monotonic())
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


def limit_of(method: str, path: str) -> Limit:
    """Which limit a request falls under."""
    if method not in ("GET", "HEAD", "OPTIONS") or path == "/organizer/login":
        return WRITING
    return COSTLY if path.startswith("/api/export/") or path.endswith("/certificate.pdf") else READING


def _address(scope: Scope) -> str:
    """Of IPv6 the network that one household has."""
    host = scope["client"][0] if scope.get("client") else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a proxy may name anything
        return ""
    return str(address) if address.version == 4 else str(ipaddress.ip_network((int(address), 64), strict=False))
