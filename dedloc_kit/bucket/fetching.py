"""One file over HTTPS from a server that nobody vouches for.

It is taken only as long as it may be, and only from the Internet: a server may name other addresses, and this machine
reaches some that the server does not, its router's pages or a cloud's metadata.
"""

import asyncio
import io
import re
import ssl
from collections.abc import Callable, Collection
from functools import cache
from http.client import HTTPMessage, parse_headers
from urllib.parse import SplitResult, urljoin, urlsplit

from requests.utils import DEFAULT_CA_BUNDLE_PATH

from dedloc_kit.machine.addresses import is_public
from dedloc_kit.version import __version__

MAX_REDIRECTS = 5
MAX_HEAD_BYTES = 2**16
HEAD_SECONDS = 20.0
"""From the question until the answer begins, with finding the server."""
SILENCE_SECONDS = 15.0
"""Without a byte of the content."""
_READ_BYTES = 2**18
_MAX_ADDRESSES = 4
_MOVED = {301, 302, 303, 307, 308}
_FOR_NOW = {408, 409, 423, 425, 429}
"""Answers to a request that may succeed when it is made again; those from 500 on are too."""

Room = Callable[[int], memoryview]
"""Where content of so many bytes goes; raises ValueError if it is not to be taken."""


class Unavailable(Exception):
    """The server does not give it now; it may later."""


class Refused(Exception):
    """The server gives something else, or nothing, and would again."""


async def fetch(url: str, room: Room, came: Callable[[int], None], trusted: Collection[str] = ()) -> memoryview:
    """The content of a file, where `room` wants it. Raises Unavailable or Refused.

    :param came: told how many bytes have come since the last time
    :param trusted: beginnings of addresses, such as `http://127.0.0.1:80/`, that this machine's owner has chosen
    """
    try:
        for _ in range(MAX_REDIRECTS + 1):
            writer: asyncio.StreamWriter | None = None
            try:
                async with asyncio.timeout(HEAD_SECONDS):
                    reader, writer = await _connect(urlsplit(url), url.startswith(tuple(trusted)))
                    status, headers = await _ask(urlsplit(url), reader, writer)
                if status not in _MOVED:
                    return await _content(status, headers, reader, room, came)
                url = urljoin(url, headers.get("Location", ""))
            finally:
                if writer is not None:
                    writer.transport.abort()
    except TimeoutError:
        raise Unavailable("does not answer") from None
    except (OSError, EOFError) as error:
        raise Unavailable(f"breaks off ({type(error).__name__})") from None
    except ValueError as error:
        raise Refused(f"sends what cannot be right ({error!s:.100})") from None
    raise Refused("leads from one address to the next")


async def _connect(url: SplitResult, trusted: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if url.scheme != "https" and not trusted:
        raise Refused(f"leads to an address that does not begin with https ({url.scheme:.10})")
    host = url.hostname or ""
    port = url.port or (443 if url.scheme == "https" else 80)
    found = [str(info[4][0]) for info in await asyncio.get_running_loop().getaddrinfo(host, port, proto=6)]
    # What is looked at here is what is connected to: a name may stand for another address a moment later.
    addresses = [address for address in dict.fromkeys(found) if trusted or is_public(address)]
    if not addresses:
        raise Refused("leads to an address that is not on the Internet")
    context = _tls() if url.scheme == "https" else None
    for last, address in enumerate(addresses[:_MAX_ADDRESSES], 1 - len(addresses[:_MAX_ADDRESSES])):
        try:
            return await asyncio.open_connection(
                address, port, ssl=context, server_hostname=host if context else None, limit=MAX_HEAD_BYTES
            )
        except ssl.SSLCertVerificationError as error:
            raise Refused(f"has no valid certificate ({error.verify_message:.60})") from None
        except OSError:
            if last == 0:
                raise
    raise AssertionError


async def _ask(url: SplitResult, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, HTTPMessage]:
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    if not re.fullmatch(r"[\x21-\x7e]+", target + url.netloc):
        raise ValueError("an address with letters that none has")
    lines = (
        f"GET {target} HTTP/1.1",
        f"Host: {url.netloc.rpartition('@')[2]}",
        f"User-Agent: dedloc/{__version__}",
        "Accept-Encoding: identity",
        "Connection: close",
    )
    writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode())
    try:
        head = io.BytesIO(await reader.readuntil(b"\r\n\r\n"))
    except asyncio.LimitOverrunError:
        raise ValueError("endless headers") from None
    first = re.fullmatch(rb"HTTP/1\.[01] (\d{3})(?: .*)?\r\n", head.readline())
    if first is None:
        raise ValueError("no HTTP")
    try:
        return int(first[1]), parse_headers(head)
    except Exception:  # http.client has exceptions of its own for what it does not read
        raise ValueError("no headers") from None


async def _content(
    status: int, headers: HTTPMessage, reader: asyncio.StreamReader, room: Room, came: Callable[[int], None]
) -> memoryview:
    if status in (401, 403, 407):
        raise Refused(f"asks for a login ({status})")
    if status in (404, 410):
        raise Refused(f"does not have what it should ({status})")
    if status in _FOR_NOW or status >= 500:
        raise Unavailable(f"answers with {status}")
    length = headers.get("Content-Length", "")
    if status != 200 or not re.fullmatch(r"\d{1,18}", length) or "Transfer-Encoding" in headers:
        raise Refused(f"answers without saying how long the file is ({status})")
    view, begin = room(int(length)), 0
    while begin < len(view):
        async with asyncio.timeout(SILENCE_SECONDS):
            data = await reader.read(min(_READ_BYTES, len(view) - begin))
        if not data:
            raise EOFError
        view[begin : begin + len(data)] = data
        begin += len(data)
        came(len(data))
    return view


@cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.load_verify_locations(DEFAULT_CA_BUNDLE_PATH)  # a slim container has no certificates of its own
    return context
