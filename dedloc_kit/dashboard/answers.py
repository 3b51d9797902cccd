"""How answers are written."""

import hashlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fastapi import Request
from starlette.responses import Response

Value = TypeVar("Value")


def json_answer(values: Any, status: int = 200) -> Response:
    """Plain values as JSON; nothing that JSON has no word for, such as infinity."""
    return Response(json.dumps(values, allow_nan=False), status, media_type="application/json")


def message(text: str, status: int) -> Response:
    """Why there is no other answer, in one sentence."""
    return json_answer({"message": text}, status)


def cached_answer(request: Request, content: bytes, media_type: str, seconds: int) -> Response:
    """What caches, such as those of a page that embeds it, may keep for so long; who has it already gets no body."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    headers = {"ETag": tag, "Cache-Control": f"public, max-age={seconds}"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)


class Recent(Generic[Value]):
    """What is made anew at most every `seconds`, however many ask; any thread may call it."""

    def __init__(self, make: Callable[[], Value], seconds: float) -> None:
        self._make, self._seconds = make, seconds
        self._made: tuple[float, Value] | None = None
        self._lock = threading.Lock()

    def __call__(self) -> Value:
        with self._lock:
            if self._made is None or time.monotonic() - self._made[0] > self._seconds:
                self._made = (time.monotonic(), self._make())
            return self._made[1]
