"""Connections that take places for nothing end; those that wait for an answer do not."""

import asyncio
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message

from dedloc_kit.api.server import Whole
from dedloc_kit.dashboard.http import connections, limits
from tests.api.serving import Api, serving
from tests.hang import HANG

HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 1000000\r\n\r\n"
)


def connect(api: Api) -> socket.socket:
    place = urlsplit(api.url)
    assert place.hostname is not None
    return socket.create_connection((place.hostname, place.port or 0), timeout=HANG)


def test_a_request_that_is_never_whole_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 1.0)
    with serving() as api:
        for sent in (b"", HEAD[:-2], HEAD + b"{"):
            with connect(api) as connection:
                connection.sendall(sent)
                assert connection.recv(1000) == b""


def test_who_waits_for_an_answer_may_wait_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)
    with serving() as api:
        api.say("river")
        api.model.pause = 1.5
        assert api.complete().json()["choices"][0]["text"] == "river"


def test_who_has_no_key_is_refused_before_a_body_is_read() -> None:
    with serving(key="a-key-of-many-letters") as api, connect(api) as connection:
        connection.sendall(HEAD)
        assert connection.recv(1000).startswith(b"HTTP/1.1 401")


def test_who_does_not_take_an_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALLED_SECONDS", 0.05)

    class Connection:
        def __init__(self) -> None:
            self.gone = asyncio.Event()

        def work(self) -> None: ...
        def wait(self) -> None: ...
        def cut(self) -> None:
            self.gone.set()

    async def ask() -> None:
        connection = Connection()
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": [], "connection": connection}

        async def receive() -> Message:
            return {"type": "http.request", "body": b""}

        async def send(_: Message) -> None:
            await connection.gone.wait()

        await asyncio.wait_for(Whole(PlainTextResponse("an answer"))(scope, receive, send), HANG)
        assert connection.gone.is_set()

    asyncio.run(ask())
