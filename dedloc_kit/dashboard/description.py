"""What `/api/openapi.json` says of the interface as a whole."""

from typing import Any

from pydantic import BaseModel

from dedloc_kit import __version__


class Message(BaseModel):
    """Why there is no other answer, in one sentence."""

    message: str


DESCRIPTION: dict[str, Any] = {
    "title": "A dedloc_kit run",
    "version": __version__,
    "summary": "How a run stands and who made it, for programs.",
    "description": (
        "Everybody may read; no key is needed. Times are seconds since 1970 by the coordinator's clock. Who asks too "
        "often is answered with 429 and the header Retry-After."
    ),
    "openapi_url": "/api/openapi.json",
    "responses": {429: {"model": Message, "description": "You ask too often; Retry-After says when to come back."}},
}
