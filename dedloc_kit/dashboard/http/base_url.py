"""Where the page is, as the one who asks has reached it: the one place that all addresses on it come from."""

import re
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

_HOST = re.compile(rb"[0-9A-Za-z._-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")
_PREFIX = re.compile(rb"(/[0-9A-Za-z._~%@-]{1,100}){0,20}/?")


class BehindProxy:
    """Believes a configured proxy, and nobody else, who asks (X-Forwarded-For), and by which scheme (-Proto), host
    (-Host) and path (-Prefix) the page was reached. A proxy that takes a path off and does not say so is taken to take
    off that of the page's own address, if it has one."""

    def __init__(self, app: ASGIApp, proxies: str, public: str = "") -> None:
        """
        :param proxies: addresses with commas between them
        :param public: the page's address as the organizer gives it; empty if no proxy stands before it
        """
        self._behind = ProxyHeadersMiddleware(app, proxies)  # type: ignore[arg-type]
        self._prefix = urlsplit(public).path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if scope["type"] == "http" and client and client[0] in self._behind.trusted_hosts:
            said = dict(scope["headers"])
            prefix, host = said.get(b"x-forwarded-prefix"), said.get(b"x-forwarded-host", b"")
            if prefix is not None and _PREFIX.fullmatch(prefix):
                scope["prefix"] = prefix.decode().rstrip("/")
            elif b"x-forwarded-proto" in said:  # or it is somebody on this machine, who has come past the proxy
                scope["prefix"] = self._prefix
            if _HOST.fullmatch(host):
                scope["headers"] = [(k, host if k == b"host" else value) for k, value in scope["headers"]]
        await self._behind(scope, receive, send)  # type: ignore[arg-type]


def page_address(request: Request) -> str:
    """The page's address with a slash at its end. Behind a tunnel it is not the one that we know of ourselves."""
    return f"{str(request.base_url).rstrip('/')}{request.scope.get('prefix', '')}/"
