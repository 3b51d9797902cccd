"""HEAD, which monitors and preview bots send, and what is said to a method that an address does not know."""

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dedloc_kit.dashboard.schemas import message


class Heads:
    """Answers HEAD as GET, without the body; a stream ends there."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(part: Message) -> None:
            if part["type"] == "http.response.start":
                await send(part)
                await send({"type": "http.response.body"})

        await self._app({**scope, "method": "GET"}, receive, send_head)


def refused(error: HTTPException) -> Response:
    """The answer to an error; with 405, what is allowed instead."""
    answer = message(error.detail, error.status_code)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "GET")  # older versions of the files' server name nothing
        answer.headers["Allow"] = "GET, HEAD" if allowed == "GET" else allowed
    return answer
