"""A stranger wants the page and its entrance for itself: from one address, over sockets that it holds.

On Linux every address of 127.0.0.0/8 is this machine: the attacker, a viewer and an entrant come from three of them.
"""

import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from dedloc_kit.dashboard.http import connections, limits
from dedloc_kit.dashboard.http.connections import MAX_WAITING
from dedloc_kit.dashboard.http.limits import ENTRANCE, Limit
from dedloc_kit.dashboard.live.stream import MAX_VIEWERS
from dedloc_kit.dashboard.routes import organizer
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.distribution import running_wheel
from dedloc_kit.records.invitation import Invitation
from tests.dashboard.runs import RUN, fill
from tests.hang import HANG

PROXY, ATTACKER, VIEWER, ENTRANT = (f"127.0.0.{number}" for number in range(1, 5))


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    fill(tmp_path / "ledger.sqlite")
    steered = organizer.routes(tmp_path, RUN.fingerprint)
    served = Dashboard(RUN, tmp_path / "ledger.sqlite", organizer=steered)
    served.entrance.give_out(Invitation.of(RUN, ("/ip4/192.0.2.1/tcp/31337/p2p/Qm",)))
    served.start()
    yield served
    served.stop()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def request(path: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: run.example.org", *headers, "", "")).encode()


def send(dashboard: Dashboard, source: str, sent: bytes, buffer: int = 0) -> socket.socket:
    """A connection from this address, with this on it.

    :param buffer: bytes that this side takes before it is asked for them; 0: as usual
    """
    where = urlsplit(dashboard.url)
    opened = socket.socket()
    opened.settimeout(HANG)
    if buffer:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        # In packets as they travel outside: for those of loopback the other side's system would take megabytes.
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    opened.bind((source, 0))
    opened.connect((where.hostname, where.port))
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


def is_over(opened: socket.socket, more: bytes = b"") -> bool:
    """Whether the other side ends the connection within the deadline, even if it is sent more now and then."""
    opened.settimeout(0.1)
    until = time.monotonic() + HANG
    while time.monotonic() < until:
        try:
            opened.sendall(more)
            if not opened.recv(1 << 16):
                return True
        except TimeoutError:
            continue
        except (ConnectionResetError, BrokenPipeError):
            return True
    return False


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + HANG
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


ENTRANCES = ("/api/invitation", "/requirements.txt", f"/wheel/{running_wheel().name}", "/organizer/login")
LARGE = request("/static/plotly-basic.min.js")
ORDER = request("/api/organizer/announce", "Content-Length: 2").replace(b"GET", b"POST")
PAGES = ("/", "/api/state", "/static/app.js")


def test_half_sent_requests_of_one_address_shut_nobody_else_out(dashboard: Dashboard, stack: ExitStack) -> None:
    half = request("/api/state")[:-2]
    held = [stack.enter_context(send(dashboard, ATTACKER, half)) for _ in range(1_000)]
    assert [ask(dashboard, VIEWER, path) for path in PAGES] == [200] * len(PAGES)
    assert [ask(dashboard, ENTRANT, path) for path in ENTRANCES] == [200, 200, 200, 401]
    assert all(is_over(opened) for opened in held[: 1_000 - MAX_WAITING]), "the first made room for the last"
    assert ask(dashboard, ATTACKER, "/api/state") == 200, "who lives behind the same address comes in too"
    for _ in range(ENTRANCE.at_once + 1):
        stack.enter_context(send(dashboard, ATTACKER, ORDER))
    assert ask(dashboard, ATTACKER, "/api/invitation") == 200, "an order without its body takes no place"


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
    head = request("/api/state")[:-2]
    for sent, more in ((b"", b""), (head, b""), (head, b"X-More: 1\r\n"), (ORDER, b"")):
        assert is_over(stack.enter_context(send(dashboard, ATTACKER, sent)), more), (
            "a little now and then does not help"
        )


def test_answers_that_nobody_takes_end_and_leave_room_for_others(
    dashboard: Dashboard, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READING", Limit(20_000, 400.0, 8))
    stalled = [stack.enter_context(send(dashboard, ATTACKER, LARGE, buffer=4096)) for _ in range(8)]
    assert [status(opened) for opened in stalled] == [200] * 8
    wait_until(lambda: ask(dashboard, ATTACKER, "/api/state") == 503)
    assert [ask(dashboard, ATTACKER, path) for path in ENTRANCES] == [200, 200, 200, 401], "it has room of its own"
    assert ask(dashboard, VIEWER, "/api/state") == 200


def test_a_stalled_answer_gives_its_place_back(
    dashboard: Dashboard, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READING", Limit(20_000, 400.0, 8))
    monkeypatch.setattr(limits, "STALLED_SECONDS", 0.5)
    for _ in range(8):
        assert status(stack.enter_context(send(dashboard, ATTACKER, LARGE, buffer=4096))) == 200
    wait_until(lambda: ask(dashboard, ATTACKER, "/api/state") == 200)


def test_who_asks_for_everything_leaves_the_entrance_alone(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READING", Limit(3, 0.1, 800))
    assert [ask(dashboard, ATTACKER, "/api/people") for _ in range(4)] == [200, 200, 200, 429]
    assert ask(dashboard, ATTACKER, "/api/invitation") == ask(dashboard, VIEWER, "/api/people") == 200


def test_only_a_proxy_is_believed_who_is_behind_it(
    dashboard: Dashboard, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine's own address is a proxy's, unless FORWARDED_ALLOW_IPS says otherwise."""
    monkeypatch.setattr(limits, "READING", Limit(2, 0.1, 2))

    def watch(source: str, viewer: int) -> socket.socket:
        named = request("/api/events", f"X-Forwarded-For: 192.0.2.{viewer}")
        return stack.enter_context(send(dashboard, source, named))

    first, second, third = (watch(PROXY, viewer) for viewer in (1, 1, 2))
    assert [status(opened) for opened in (first, second, third)] == [200, 200, 200]
    assert is_over(first), "its place went to the other viewer behind the proxy"
    assert [status(watch(ATTACKER, viewer)) for viewer in (3, 4, 5)] == [503, 503, 429]


def test_what_a_stranger_writes_as_our_address_reaches_nobody_through_a_cache(dashboard: Dashboard) -> None:
    paths = requests.get(f"{dashboard.url}/api/openapi.json", timeout=HANG).json()["paths"]
    asked = [path.format(peer="p0", table="people", kind="csv", digest="0" * 64, name="x", order="x") for path in paths]
    named = set()
    for path in [*asked, "/", "/people/p0", "/static/app.js", "/static", "/api/state/"]:
        if path == "/api/events":
            continue
        one, other = (
            requests.get(dashboard.url + path, headers={"Host": host}, timeout=HANG, allow_redirects=False)
            for host in ("one.example", "other.example")
        )
        assert re.search(r"\b(public|private|no-store)\b", one.headers["cache-control"]), path
        if "public" in one.headers["cache-control"]:
            assert one.content == other.content, path
        if "one.example" in f"{one.headers} {one.text}":
            named.add(path)
    assert {"/", "/people/p0", "/feed.atom", "/requirements.txt", "/people/p0/certificate.svg"} <= named
