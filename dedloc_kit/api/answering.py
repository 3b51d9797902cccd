"""Sends an answer while it is made, whole or as server-sent events, as long as somebody waits for it."""

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from dedloc_kit.api.errors import ApiError
from dedloc_kit.api.forms import Form, Json, usage
from dedloc_kit.api.generating import Generation
from dedloc_kit.api.growing import Piece
from dedloc_kit.api.requests import AnyRequest


class Answering(Response):
    """The answers to one request; what goes wrong before anything was sent is raised as ApiError."""

    def __init__(self, asked: AnyRequest, generation: Generation, form: Form) -> None:
        super().__init__()
        self._asked, self._generation, self._form = asked, generation, form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watching = asyncio.create_task(_until_gone(receive, self._generation))
        try:
            if self._asked.stream:
                await self._stream(send)
            else:
                pieces = [piece async for piece in self._generation]
                whole = self._form.whole(pieces, self._asked.choices, usage(self._generation))
                await JSONResponse(whole)(scope, receive, send)
        finally:
            watching.cancel()
            self._generation.stop()

    async def _stream(self, send: Send) -> None:
        pieces = aiter(self._generation)
        first = await anext(pieces, None)  # what is wrong with the request shows before it, and has a status of its own
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for part in self._parts(first, pieces):
            data = json.dumps(part, ensure_ascii=False) if part is not None else "[DONE]"
            await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _parts(self, first: Piece | None, rest: AsyncIterator[Piece]) -> AsyncIterator[Json | None]:
        """What is sent; None for the end of a stream that is whole."""
        begun: set[int] = set()
        no_usage = {"usage": None} if self._asked.with_usage() else {}
        piece = first
        try:
            while piece is not None:
                yield self._form.part(piece, piece.answer not in begun) | no_usage
                begun.add(piece.answer)
                piece = await anext(rest, None)
        except ApiError as error:
            yield error.body()
            return
        if no_usage:
            yield self._form.last(usage(self._generation))
        yield None


async def _until_gone(receive: Receive, generation: Generation) -> None:
    """Ends the work for a caller who hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.stop()
