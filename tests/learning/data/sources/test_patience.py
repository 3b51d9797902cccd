"""What a Hub that fails now and then costs a look-up."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import get_session

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


def asking() -> Any:
    """What huggingface_hub asks with."""
    patience.be_patient()
    return get_session()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_question_that_is_cut_off_or_finds_the_hub_busy_is_asked_again(url: str, method: str) -> None:
    assert asking().request(method, url).status_code == 200
    assert Flaky.asked == [method] * 3


def test_a_part_of_a_file_is_asked_for_again_by_huggingface_hub_alone(url: str) -> None:
    with pytest.raises(Exception, match="disconnected"):
        asking().get(url, headers={"Range": "bytes=0-9"})
    assert Flaky.asked == ["GET"]


def test_who_is_busy_is_left_alone_as_long_as_it_asks_and_who_stalls_is_asked_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class ReadTimeout(TimeoutError):
        pass

    class Busy(Exception):
        response = SimpleNamespace(status_code=429, headers={"Retry-After": "3600"})

    monkeypatch.setattr(patience, "RETRY_PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(patience, "MAX_PAUSE", 0.01)
    for error, pause, tries in ((Busy(), 0.01, 4), (ReadTimeout("silent"), 0, 2), (ValueError("broken"), 0, 1)):
        asked, told = list[int](), list[str]()

        def ask(error: Exception = error, asked: list[int] = asked) -> None:
            asked.append(1)
            raise error

        with pytest.raises(type(error)):
            patience.retried("a file", told.append, ask)
        assert len(asked) == tries
        assert [f"trying again in {pause:g} s" in line for line in told] == [True] * (tries - 1)


def test_what_would_be_done_twice_is_not(url: str) -> None:
    with pytest.raises(Exception, match="disconnected"):
        asking().request("POST", url)
    assert Flaky.asked == ["POST"]


def test_it_gives_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PAUSES", (0.0, 0.0, 0.0))
    with pytest.raises(Exception, match="refused"):
        asking().request("GET", "http://127.0.0.1:9/")
