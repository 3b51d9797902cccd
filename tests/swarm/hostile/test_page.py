"""A stranger wants the page and its entrance for itself: from one address, over sockets that it holds.

On Linux every address of 127.0.0.0/8 is this machine: the attacker, a viewer and an entrant come from three of them.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dedloc_kit.dashboard import connections, limits
from dedloc_kit.dashboard.connections import MOST_WAITING
from dedloc_kit.dashboard.limits import COSTLY, ENTRANCE, READING, Limit
from dedloc_kit.dashboard.server import Dashboard
from dedloc_kit.dashboard.stream import MAX_VIEWERS
from dedloc_kit.distribution import running_wheel
from dedloc_kit.records import Invitation
from tests.dashboard.runs import RUN, fill

ATTACKER, VIEWER, ENTRANT = "127.0.0.2", "127.0.0.3", "127.0.0.4"
DEADLINE = 60.0


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    fill(tmp_path / "ledger.sqlite")
    served = Dashboard(RUN, tmp_path / "ledger.sqlite")
    served.entrance.invitation = Invitation.of(RUN, ("/ip4/192.0.2.1/tcp/31337/p2p/Qm",))
    served.start()
    yield served
    served.stop()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def request(path: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: run.example.org", *headers, "", "")).encode()


def send(dashboard: Dashboard, source: str, sent: bytes) -> socket.socket:
    """A connection from this address, with this on it."""
    where = urlsplit(dashboard.url)
    assert where.hostname is not None
    assert where.port is not None
    opened = socket.create_connection((where.hostname, where.port), DEADLINE, (source, 0))
    opened.sendall(sent)
    return opened


def status(opened: socket.socket) -> int:
    """Of the answer; 0 if the connection was closed without one."""
    try:
        first = opened.makefile("rb").readline()
    except ConnectionResetError:
        return 0
    return int(first.split()[1]) if first else 0


def ask(dashboard: Dashboard, source: str, path: str) -> int:
    """The status of what somebody at this address gets who asks once, and takes the whole of it."""
    with send(dashboard, source, request(path, "Connection: close")) as opened, opened.makefile("rb") as answer:
        first = answer.readline()
        answer.read()
    return int(first.split()[1]) if first else 0


def is_over(opened: socket.socket) -> bool:
    """Whether the other side ends the connection, after whatever it sends before."""
    try:
        while opened.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


ENTRANCES = ("/api/invitation", "/requirements.txt", f"/wheel/{running_wheel().name}", "/organizer/login")
PAGES = ("/", "/api/state", "/static/app.js")


def test_half_sent_requests_of_one_address_shut_nobody_else_out(dashboard: Dashboard, stack: ExitStack) -> None:
    half = request("/api/state")[:-2]
    held = [stack.enter_context(send(dashboard, ATTACKER, half)) for _ in range(1_000)]
    assert [ask(dashboard, VIEWER, path) for path in PAGES] == [200] * len(PAGES)
    assert [ask(dashboard, ENTRANT, path) for path in ENTRANCES] == [200, 200, 200, 404]
    assert all(is_over(opened) for opened in held[: 1_000 - MOST_WAITING]), "the first made room for the last"
    assert ask(dashboard, ATTACKER, "/api/state") == 200, "who lives behind the same address comes in too"


def test_event_streams_of_one_address_leave_places_for_others(dashboard: Dashboard, stack: ExitStack) -> None:
    streams = [stack.enter_context(send(dashboard, ATTACKER, request("/api/events"))) for _ in range(MAX_VIEWERS)]
    assert [status(stream) for stream in streams] == [200] * MAX_VIEWERS
    assert ask(dashboard, ATTACKER, "/api/events") == 503
    viewer = stack.enter_context(send(dashboard, VIEWER, request("/api/events")))
    assert status(viewer) == 200
    assert is_over(streams[0]), "its place went to the viewer"
    assert ask(dashboard, VIEWER, "/api/state") == ask(dashboard, ENTRANT, "/api/invitation") == 200


def test_a_request_that_is_never_whole_ends(
    dashboard: Dashboard, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 1.0)
    order = request("/api/organizer/pause", "Content-Length: 2").replace(b"GET", b"POST")
    heads = request("/api/state")[:-2]
    slow = [stack.enter_context(send(dashboard, ATTACKER, sent)) for sent in (b"", heads, order)]
    over = threading.Event()

    def dribble() -> None:
        """A header more, now and then, keeps nothing alive."""
        with ExitStack() as quietly:
            quietly.callback(over.set)
            while True:
                slow[1].sendall(b"X-More: 1\r\n")
                time.sleep(0.1)

    with pytest.raises(OSError, match=""):
        dribble()
    assert over.is_set()
    assert is_over(slow[0])
    assert is_over(slow[2])


def test_answers_that_nobody_takes_end_and_others_get_theirs(
    dashboard: Dashboard, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STALLED_SECONDS", 1.0)
