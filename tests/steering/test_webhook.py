"""The webhook, against a small server on loopback."""

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.steering import webhook
from dedloc_kit.steering.webhook import VARIABLE, Webhook, webhook_address
from tests.hang import HANG

SECRET = "/services/T0/s3cret"


class Chat:
    """Takes messages; answers with the statuses of `answers` first, then with 200."""

    def __init__(self) -> None:
        self.messages, self.answers, self.warnings = Queue[dict[str, Any]](), list[int](), Queue[str]()
        chat = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == SECRET
                message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = chat.answers.pop(0) if chat.answers else 200
                if status == 200:  # Before the answer: once it is out, the next message has a thread of its own.
                    chat.messages.put(message)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}{SECRET}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[Chat]:
    monkeypatch.setattr(webhook, "FIRST_PAUSE", 0.01)
    served = Chat()
    yield served
    served.server.shutdown()
    served.server.server_close()


@pytest.fixture
def posting(chat: Chat) -> Iterator[Webhook]:
    hook = Webhook(chat.address, chat.warnings.put)
    yield hook
    hook.close()
    assert not any(thread.name == "webhook" for thread in threading.enumerate())


def test_a_message_is_what_slack_and_discord_read_and_calls_nobody(chat: Chat, posting: Webhook) -> None:
    posting.send("the loss is <!channel> @everyone" + "x" * 3000)
    message = chat.messages.get(timeout=HANG)
    assert message["text"] == message["content"]
    assert message["text"].startswith("the loss is ‹!channel› ＠everyonex")
    assert len(message["text"]) < 2000
    assert message["allowed_mentions"] == {"parse": []}


def test_while_the_chat_fails_the_message_is_sent_again_and_order_is_kept(chat: Chat, posting: Webhook) -> None:
    chat.answers = [500, 429, 302]
    posting.send("one")
    posting.send("two")
    assert [chat.messages.get(timeout=HANG)["text"] for _ in range(2)] == ["one", "two"]
    assert chat.warnings.empty()


def test_what_cannot_be_posted_is_said_without_the_address(chat: Chat, posting: Webhook) -> None:
    chat.answers = [404] * webhook.TRIES
    posting.send("one")
    warning = chat.warnings.get(timeout=HANG)
    assert "404" in warning
    assert "s3cret" not in warning


def test_a_chat_that_does_not_answer_is_said_without_the_address(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "TRIES", 2)
    hook = Webhook("http://127.0.0.1:9/s3cret", chat.warnings.put)
    hook.send("one")
    assert "s3cret" not in chat.warnings.get(timeout=HANG)
    hook.close()


def test_at_the_end_what_waits_is_tried_once_more(chat: Chat) -> None:
    hook = Webhook(chat.address, chat.warnings.put)
    hook.send("the coordinator stopped")
    hook.close()
    assert chat.messages.get(timeout=HANG)["text"] == "the coordinator stopped"


def test_the_address_comes_from_a_file_or_from_the_environment_which_forgets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "https://chat.example/secret")
    assert webhook_address(None) == "https://chat.example/secret"
    assert VARIABLE not in os.environ
    assert webhook_address(None) is None
    (tmp_path / "hook").write_text("https://chat.example/other\n")
    assert webhook_address(tmp_path / "hook") == "https://chat.example/other"


@pytest.mark.parametrize("text", ["s3cret", "ftp://s3cret", "https://", "http://["])
def test_what_is_no_address_is_refused_without_quoting_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "hook").write_text(text)
    with pytest.raises(UserError, match="https://") as refused:
        webhook_address(tmp_path / "hook")
    assert "s3cret" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="webhook_file"):
        webhook_address(tmp_path / "none")
