"""How answers are written."""

import json
from typing import Any

from starlette.responses import Response


def json_answer(values: Any, status: int = 200) -> Response:
    """Plain values as JSON; nothing that JSON has no word for, such as infinity."""
    return Response(json.dumps(values, allow_nan=False), status, media_type="application/json")
