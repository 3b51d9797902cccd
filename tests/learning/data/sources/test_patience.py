"""What a Hub that fails now and then costs a look-up."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dedloc_kit.learning.data.sources import patience


class Flaky(BaseHTTPRequestHandler):
    """Drops the first request and is busy at the second, whatever is asked for."""

    asked: list[str]

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.asked.append(self.command)
        if len(self.asked) == 1:
            self.close_connection = True
            return
        self.send_response(503 if len(self.asked) == 2 else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_POST = do_GET


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(patience, "PAUSES", (0.0, 0.0, 0.0))
    Flaky.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Flaky)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_question_that_is_cut_off_or_finds_the_hub_busy_is_asked_again(url: str, method: str) -> None:
    with patience._client() as client:
        assert client.request(method, url).status_code == 200
    assert Flaky.asked == [method] * 3


def test_what_would_be_done_twice_is_not(url: str) -> None:
    with patience._client() as client, pytest.raises(Exception, match="disconnected"):
        client.request("POST", url)
    assert Flaky.asked == ["POST"]


def test_it_gives_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PAUSES", (0.0, 0.0, 0.0))
    with patience._client() as client, pytest.raises(Exception, match="refused"):
        client.request("GET", "http://127.0.0.1:9/")
