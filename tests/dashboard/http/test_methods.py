import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import requests

from dedloc_kit.dashboard.routes import organizer
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.records.invitation import INVITATION_FILE
from tests.dashboard.runs import RUN, fill
from tests.hang import HANG

HEADS = (
    *("/", "/people", "/swarm", "/organizer", "/people/p0", "/static/app.js", "/static/style/base.css", "/feed.atom"),
    *("/badge.svg", "/card.png", "/api/run", "/api/state", "/api/openapi.json", "/metrics", "/api/export/steps.csv"),
    *("/api/invitation", "/api/organizer", "/nothing"),
)


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("run")
    (folder / INVITATION_FILE).touch()
    fill(folder / "ledger.sqlite")
    served = Dashboard(RUN, folder / "ledger.sqlite", organizer=organizer.routes(folder, RUN.fingerprint))
    served.start()
    yield served
    served.stop()


@pytest.mark.parametrize("path", HEADS)
def test_who_asks_for_the_head_gets_that_of_the_answer_and_no_body(dashboard: Dashboard, path: str) -> None:
    whole = requests.get(dashboard.url + path, timeout=HANG)
    head = requests.head(dashboard.url + path, timeout=HANG)
    assert head.status_code == whole.status_code
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert head.headers["content-security-policy"] == whole.headers["content-security-policy"]
    assert head.content == b""


def test_a_connection_can_be_used_again_after_a_head_also_of_the_stream_of_events(dashboard: Dashboard) -> None:
    where = urlsplit(dashboard.url)
    with socket.create_connection((where.hostname or "", where.port or 0), HANG) as connection:
        connection.settimeout(HANG)
        connection.sendall(b"HEAD /api/run HTTP/1.1\r\nHost: here\r\n\r\n")
        assert received(connection).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"HEAD /api/events HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        said = received(connection)
        assert said.startswith(b"HTTP/1.1 200 ")
        assert b"text/event-stream" in said
        rest = b"".join(iter(lambda: connection.recv(4096), b""))
        assert b"event:" not in rest


def received(connection: socket.socket) -> bytes:
    said = b""
    while not said.endswith(b"\r\n\r\n"):
        part = connection.recv(1)
        assert part, said
        said += part
    return said


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/", "GET, HEAD"),
        ("DELETE", "/api/run", "GET, HEAD"),
        ("PUT", "/static/app.js", "GET, HEAD"),
        ("GET", "/api/organizer/announce", "POST"),
        ("HEAD", "/api/organizer/pause", "POST"),
    ],
)
def test_an_unknown_method_is_told_which_ones_there_are(
    dashboard: Dashboard, method: str, path: str, allowed: str
) -> None:
    answer = requests.request(method, dashboard.url + path, timeout=HANG)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allowed
