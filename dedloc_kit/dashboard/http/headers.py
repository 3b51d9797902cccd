"""The security headers of every answer."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    # Only our own files run, load or are connected to. No inline script and no inline style: plotly would insert
    # style rules of its own and refrains because parts.css has them (see index.html).
    # Hugging Face shows a Space inside a frame of its own page.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self' https://huggingface.co"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    # Ask each time, files answer "unchanged". Not for others: an address in it may be made up by who asks (its Host).
    "Cache-Control": "private, no-cache",
}


class SecureHeaders:
    """Adds the security headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)  # a picture may say what style it has inside
            await send(message)

        await self._app(scope, receive, send_with_headers)
