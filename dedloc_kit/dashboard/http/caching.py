"""Answers are made once, however many ask for them at once."""

import gzip
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

MAX_ANSWERS = 64
"""Whoever asks for ever new parts of a list must not fill the memory."""
SMALL_BYTES = 1_000
"""Compressing less gains nothing."""

Value = TypeVar("Value")


@dataclass
class _Kept:
    lock: threading.Lock = field(default_factory=threading.Lock)
    version: Hashable = None
    body: bytes = b""
    gzipped: bytes = b""
    etag: str = ""


class Answers:
    """Keeps the latest answers, compressed too, for as long as there is nothing newer to say.

    :param version: something else than before as soon as there may be news
    """

    def __init__(self, version: Callable[[], Hashable]) -> None:
        self._version = version
        self._lock = threading.Lock()
        self._answers: OrderedDict[Hashable, _Kept] = OrderedDict()

    def answer(self, request: Request, make: Callable[[], BaseModel]) -> Response:
        """What `make` returns, as JSON; the same for every request with the same path and query."""
        kept = self._kept((request.url.path, request.url.query))
        with kept.lock:  # whoever asks at the same time waits for the first one's answer
            version = self._version()
            if kept.version != version:
                kept.body = make().model_dump_json().encode()
                kept.gzipped = gzip.compress(kept.body, 6, mtime=0) if len(kept.body) > SMALL_BYTES else b""
                kept.etag = f'W/"{hashlib.blake2b(kept.body, digest_size=12).hexdigest()}"'
                kept.version = version
            body, gzipped, etag = kept.body, kept.gzipped, kept.etag
        headers = {"ETag": etag, "Vary": "Accept-Encoding"}
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if gzipped and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(gzipped, headers={**headers, "Content-Encoding": "gzip"}, media_type="application/json")
        return Response(body, headers=headers, media_type="application/json")

    def _kept(self, key: Hashable) -> _Kept:
        with self._lock:
            kept = self._answers.setdefault(key, _Kept())
            self._answers.move_to_end(key)
            if len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
            return kept


class Recent(Generic[Value]):
    """What is made anew at most every `seconds`, whatever has happened since; any thread may call it."""

    def __init__(self, make: Callable[[], Value], seconds: float) -> None:
        self._make, self._seconds = make, seconds
        self._made: tuple[float, Value] | None = None
        self._lock = threading.Lock()

    def __call__(self) -> Value:
        with self._lock:
            if self._made is None or time.monotonic() - self._made[0] > self._seconds:
                self._made = (time.monotonic(), self._make())
            return self._made[1]


def cached_answer(request: Request, content: bytes, media_type: str, seconds: int, *, shared: bool = True) -> Response:
    """What may be kept for so long; who has it gets no body.

    :param shared: by others too, such as the cache before a page that embeds it. Not if the page's own address stands
        in it, as the asker wrote it (the header Host): others would get what somebody else made up
    """
    tag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": f"{'public' if shared else 'private'}, max-age={seconds}"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)
