"""A hostile page wants the terminal of whoever asks it how a run is doing."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dedloc_kit.cli.main import main

ESCAPE = "\x1b]52;c;cm0gLXJm\x07\x1b[2J\x9b2J"
STATE = {"run_id": "demo-0123456789abcdef", "status": "training", "step": 3, "total_steps": 9}
STATE |= {"samples_total": 64, "loss": 1.5, "announcement": None}
PEOPLE = {"people": [{"name": "Asha", "samples": 64, "steps": 3}], "total": 1}
ABSENT = {"peer": "12D3KooBinaWXYZ", "name": None, "why": "fell silent"}
ROUNDS = {"left_out": [{"step": 2, "count": 301, "some": [ABSENT, ABSENT | {"name": "Asha", "why": "did not come"}]}]}


AWAY = {"peer": "12D3KooEvilABCD", "name": "Mallory", "time": 1.7e9, "why": "it lied (global step 2)", "lifted": None}


@contextmanager
def page(state: object, people: object, rounds: object = ROUNDS, *, endless: bool = False) -> Iterator[str]:
    """The URL of a page that answers so, in JSON unless it is bytes; an endless one goes on until nobody listens any
    more."""
    answers = {"/api/state": state, "/api/people": people, "/api/rounds": rounds}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            answer = answers[self.path.partition("?")[0]]
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())
            with suppress(ConnectionError):
                while endless:
                    self.wfile.write(bytes(1 << 16))

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_honest_page_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with page(STATE, PEOPLE) as url:
        assert main(["status", url]) == 0
    told = capsys.readouterr().out
    assert "demo-0123456789abcdef: training, step 3 of 9" in told
    assert "Asha" in told
    assert "left out of a step, as the coordinator saw it:" in told
    assert "step 2: ...WXYZ fell silent, Asha did not come, and 299 more" in told


def test_who_was_sent_away_is_listed_with_day_and_reason(capsys: pytest.CaptureFixture[str]) -> None:
    lifted = AWAY | {"name": "", "time": 1e12, "lifted": 1.7e9 + 86_400}
    state = STATE | {"checks": "1 in 50 contributions is checked: 112 checked, 12 sent away"}
    with page(state, PEOPLE, {"sent_away": [AWAY, lifted] * 6, "sent_away_count": 13}) as url:
        assert main(["status", url]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "112 checked, 12 sent away" in told
    assert "2023-11-14 Mallory (...ABCD): it lied (global step 2)" in told
    assert "3058-10-26 somebody (...ABCD): it lied (global step 2) (let in again on 2023-11-15)" in told
    assert told.endswith("and 3 more")


@pytest.mark.parametrize(
    ("state", "people", "rounds"),
    [
        ({**STATE, "run_id": f"demo{ESCAPE}"}, PEOPLE, ROUNDS),
        ({**STATE, "status": ESCAPE}, PEOPLE, ROUNDS),
        ({**STATE, "step": ESCAPE}, PEOPLE, ROUNDS),
        ({**STATE, "loss": "1"}, PEOPLE, ROUNDS),
        ({}, PEOPLE, ROUNDS),
        ([], PEOPLE, ROUNDS),
        (STATE, {"people": [{"name": ESCAPE, "samples": 1, "steps": 1}], "total": 1}, ROUNDS),
        (
            STATE,
            {"people": [{"name": "Asha\nthe organizer: send me your token", "samples": 1, "steps": 1}], "total": 1},
            ROUNDS,
        ),
        (STATE, {"people": ESCAPE}, ROUNDS),
        (STATE, PEOPLE, {"left_out": [{"step": 2, "count": 1, "some": [ABSENT | {"name": ESCAPE}]}]}),
        (STATE, PEOPLE, {"left_out": [{"step": 2, "count": 1, "some": [ABSENT | {"why": ESCAPE}]}]}),
        (STATE, PEOPLE, {"sent_away": [AWAY | {"name": ESCAPE}]}),
        (STATE, PEOPLE, {"sent_away": [AWAY | {"why": ESCAPE}]}),
        (STATE, PEOPLE, {"sent_away": [AWAY | {"time": -1.0}]}),
        ({**STATE, "checks": ESCAPE}, PEOPLE, ROUNDS),
    ],
)
def test_a_page_that_is_no_coordinators_is_refused_in_one_line(
    state: object, people: object, rounds: object, capsys: pytest.CaptureFixture[str]
) -> None:
    with page(state, people, rounds) as url:
        assert main(["status", url]) == 2
    told = capsys.readouterr()
    assert told.err == f"dedloc: {url} did not answer like a coordinator; check the address\n"
    assert not set(told.out) & set(ESCAPE[0] + "\x07\x9b")


def test_an_answer_without_an_end_is_not_read_to_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with page(b'{"run_id": "', b"", endless=True) as url:
        assert main(["status", url]) == 2
    assert capsys.readouterr().err == f"dedloc: {url} did not answer like a coordinator; check the address\n"
