"""Which donors a download asks, and when again; over plain TCP on loopback instead of libp2p."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress

import pytest

from dedloc_kit.swarm.network.service import Stream, encode
from dedloc_kit.swarm.transfer import download, protocol
from dedloc_kit.swarm.transfer.download import Downloader
from dedloc_kit.swarm.transfer.protocol import Download, Header, Request, upload

BLOCK = 2**16
CONTENT = bytes(range(256)) * (60 * BLOCK // 256)


class Anything:
    """Expects the content, whatever it is."""

    request = Request(what="state")

    def accept(self, header: Header) -> None:
        pass

    def check(self, header: Header, content: memoryview) -> None:
        pass


class Donors:
    """Each has the content; `failures` says how often no connection to one comes about."""

    def __init__(self, names: str, failures: dict[str, int]) -> None:
        self.names, self._failures = list(names), Counter(failures)
        self.given: Counter[str] = Counter()
        self._ports: dict[str, int] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Donors":
        for name in self.names:
            server = await asyncio.start_server(self._server(name), "127.0.0.1", 0)
            self._ports[name] = server.sockets[0].getsockname()[1]
            self._stack.callback(server.close)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def _server(self, name: str):  # type: ignore[no-untyped-def]
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            stream = Stream(reader, writer)
            line_free = asyncio.Event()
            line_free.set()
            with suppress(OSError, EOFError):
                while True:
                    request = await stream.receive_question(Request)
                    await stream.send(encode(Header(answer="here", version="1", total=len(CONTENT))))
                    await asyncio.sleep(0.1)  # a slow line: there is time to ask the others again
                    block = memoryview(CONTENT)[request.begin : request.end]
                    await upload(stream, block, line_free, lambda: None)
                    self.given[name] += len(block)
            stream.close()

        return serve

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[Stream]:
        if self._failures[name]:
            self._failures[name] -= 1
            raise OSError("dial backoff")
        reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[name])
        with closing(writer):
            yield Stream(reader, writer)


async def fetched(donors: Donors) -> bytes | None:
    content = bytearray(len(CONTENT))
    downloader = Downloader(Download(Anything(), memoryview(content)), donors.names, donors.open)
    return bytes(content) if await downloader.complete() else None


def test_a_donor_whose_first_connection_fails_is_asked_again_while_another_delivers(
    monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    monkeypatch.setattr(download, "RETRY_SECONDS", 0.3)
    monkeypatch.setattr(protocol, "BLOCK_BYTES", BLOCK)

    async def attempt() -> tuple[bytes | None, Counter[str]]:
        async with Donors("ab", failures={"b": 2}) as donors, asyncio.timeout(60):
            return await fetched(donors), donors.given

    content, given = asyncio.run(attempt())
    assert content == CONTENT
    assert given["b"] > 0
    assert warned == ["b does not deliver: dial backoff"]


def test_nobody_is_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PAUSE_SECONDS", (0.01, 0.02))

    async def attempt() -> tuple[bytes | None, Counter[str]]:
        async with Donors("ab", failures={"a": 10**6, "b": 10**6}) as donors, asyncio.timeout(60):
            return await fetched(donors), donors.given

    assert asyncio.run(attempt()) == (None, Counter())
