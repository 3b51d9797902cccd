"""What `/api/openapi.json` says of the interface as a whole."""

from typing import Any

from dedloc_kit.dashboard.schemas import Message
from dedloc_kit.version import __version__

DESCRIPTION: dict[str, Any] = {
    "title": "A dedloc_kit run",
    "version": __version__,
    "summary": "How a run stands and who made it, for programs.",
    "description": (
        "Everybody may read; no key is needed. Times are seconds since 1970 by the coordinator's clock. Who asks too "
        "often is answered with 429 and the header Retry-After."
    ),
    "openapi_url": "/api/openapi.json",
    "responses": {
        404: {"model": Message, "description": "There is no such thing."},
        429: {"model": Message, "description": "You ask too often; Retry-After says in how many seconds to come back."},
        503: {"model": Message, "description": "There is no room for one more at the moment."},
    },
}
SERVING_DESCRIPTION: dict[str, Any] = DESCRIPTION | {
    "title": "A dedloc_kit swarm that serves a model",
    "summary": "Who serves which layers of a model, and how it is used, for programs.",
}
UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "You have it already (If-None-Match)."}}


def answering(*media_types: str, cached: bool = False) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that does not answer in JSON; `cached` ones have an ETag."""
    return {200: {"content": {media_type: {} for media_type in media_types}}} | (UNCHANGED if cached else {})
