"""Plain TCP connections to peers' addresses: who answers at all, before libp2p is asked to talk to them."""

import asyncio
import socket
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

CONNECT_SECONDS = 3.0
"""A connection that takes longer is no use for training; what a firewall drops never comes."""
SLICE_SECONDS = 0.1
"""What a wait of so long takes more does not count: other threads held this one up, as imports do for seconds on a slow
machine, and who has answered meanwhile is seen only afterwards."""

T = TypeVar("T")


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, in a loop of Python's own whatever the process has been told to use: uvloop accepts connections
    past their socket, and takes what a socket has closed for an error."""
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(work)


def in_own_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in a thread that is gone afterwards: hivemind must not fork while others run, and the caller's
    thread may have an event loop already."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(run_in_loop, work).result()


async def answering(addresses: Sequence[str], seconds: float = CONNECT_SECONDS, grace: float = 1.0) -> list[str]:
    """Those of the addresses at which a TCP connection is accepted, in their order; addresses of no known form are
    skipped.

    Tries all at once and returns as soon as all have been tried, `grace` seconds after the first success, or after
    `seconds`. Asking here first matters: hivemind's start waits 5 s for every silent address, one after the other,
    and libp2p refuses to dial an address again for up to 5 minutes after some failures.
    """
    tries = {asyncio.create_task(_accepts(address)): address for address in dict.fromkeys(addresses)}
    waiting, living, left = set(tries), set[str](), seconds
    while waiting and left > 0:
        began, longest = time.monotonic(), min(left, SLICE_SECONDS)
        done, waiting = await asyncio.wait(waiting, timeout=longest, return_when=asyncio.FIRST_COMPLETED)
        left -= min(longest, time.monotonic() - began)
        found = {tries[task] for task in done if task.result()}
        if found and not living:
            left = min(left, grace)
        living |= found
    for task in waiting:
        task.cancel()
    return [address for address in tries.values() if address in living]


async def first_bytes(host: str, port: int, length: int, seconds: float = CONNECT_SECONDS) -> bytes:
    """What whoever listens there says first, unasked; nothing if it does not say so much."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                return await reader.readexactly(length)
            finally:
                writer.close()
    except (OSError, asyncio.IncompleteReadError):  # TimeoutError is an OSError
        return b""


async def any_host_responds(addresses: Sequence[str]) -> bool:
    """Does at least one of these machines say anything at all, if only that nobody listens there?

    Other machines than this one count more: if the line is down, one can still talk to oneself.
    """
    own = own_address()
    elsewhere = [address for address in addresses if host_and_port(address)[0] != own]
    responses = await asyncio.gather(*(_responds(address) for address in elsewhere or addresses))
    return any(responses)


def host_and_port(address: str) -> tuple[str, int]:
    """Of a multiaddress `/ip4/HOST/tcp/PORT/p2p/ID`; raises ValueError if it has another form."""
    _, _kind, host, transport, port, _p2p, _peer = address.split("/")
    if transport != "tcp":
        raise ValueError(f"{address} is not a TCP address")
    return host, int(port)


async def _accepts(address: str) -> bool:
    try:
        await _connect(address)
    except (OSError, ValueError, OverflowError):  # no such host, port or form
        return False
    return True


async def _connect(address: str) -> None:
    _, writer = await asyncio.open_connection(*host_and_port(address))
    writer.close()


async def _responds(address: str) -> bool:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await _connect(address)
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True


def own_address() -> str | None:
    """The address from which this machine sends to the world, in its own network; none without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation; nothing is sent
        except OSError:
            return None
        return str(probe.getsockname()[0])


def number_of(host: str) -> str | None:
    """The IPv4 address to which a name leads, if it does now."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        return None
