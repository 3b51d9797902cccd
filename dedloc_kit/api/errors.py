"""Refusals in the API's own form: `{"error": {"message", "type", "param", "code"}}`."""

from typing import Any

from starlette.responses import JSONResponse, Response

from dedloc_kit.blocks.plans.routes import NoRoute
from dedloc_kit.errors import UserError

BUSY_SECONDS, GAP_SECONDS = 5, 30
"""What Retry-After says when all places are taken, and when the swarm cannot answer."""


class ApiError(Exception):
    """An answer other than the one that was asked for.

    :ivar param: the parameter that is wrong, as `messages[0].content`
    :ivar retry_after: seconds, where asking again makes sense
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int = 0
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.retry_after = status, param, code, retry_after

    def body(self) -> dict[str, Any]:
        """What is sent, also in the middle of a stream."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 429:
            kind = "rate_limit_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


def told(error: Exception) -> ApiError:
    """What a caller is told of what went wrong while its answer was made."""
    match error:
        case ApiError():
            return error
        case NoRoute(missing=missing):
            layers = ", ".join(map(str, missing))
            message = f"nobody serves the layers {layers} at the moment; a volunteer can with `dedloc serve`"
            return ApiError(503, message, code="layers_missing", retry_after=GAP_SECONDS)
        case UserError():
            return ApiError(503, str(error), code="swarm_unavailable", retry_after=GAP_SECONDS)
        case _:
            return ApiError(500, "something went wrong on this server; its log says what", code="internal_error")
