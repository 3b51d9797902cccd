"""Sends messages to a chat's incoming webhook, such as Slack's, Mattermost's or Discord's. Its address is a secret."""

import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import requests

from dedloc_kit.errors import UserError
from dedloc_kit.machine.hidden_characters import check_pasted
from dedloc_kit.machine.text_files import read_text

VARIABLE = "DEDLOC_WEBHOOK"
TRIES, FIRST_PAUSE = 6, 2.0
"""Each pause is twice as long as the one before."""
TIMEOUT = 10.0
MAX_WAITING = 100
_MAX_CHARACTERS = 1500  # Discord refuses messages of more than 2,000
_NO_MENTIONS = str.maketrans({"<": "‹", ">": "›", "@": "＠"})


def webhook_address(file: Path | None) -> str | None:
    """What the file says, or else the environment, from which it is removed: child processes need not know it.

    Raises UserError, which does not quote it, if it is no web address.
    """
    given = os.environ.pop(VARIABLE, None)
    if file is not None:
        try:
            given = read_text(file)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file} cannot be read ({type(error).__name__}); check webhook_file") from None
    if not given:
        return None
    check_pasted(f"the address in {file or VARIABLE}", given.strip())
    try:
        parts = urlsplit(given.strip())
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"{file or VARIABLE} does not hold a webhook's address; it begins with https://")
    return given.strip()


class Webhook:
    """Posts in a thread of its own, so that nobody waits for it, and again while the other side fails."""

    def __init__(self, address: str, warn: Callable[[str], None]) -> None:
        """:param warn: told, without the address, what could not be posted"""
        self._address, self._warn = address, warn
        self._waiting: queue.Queue[str | None] = queue.Queue(MAX_WAITING)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="webhook", daemon=True)
        self._thread.start()

    def send(self, text: str) -> None:
        """Send it soon; returns at once. Nothing in it mentions or calls anybody in the chat."""
        try:
            self._waiting.put_nowait(text.translate(_NO_MENTIONS)[:_MAX_CHARACTERS])
        except queue.Full:
            self._warn("the webhook has not answered for long; a message to it is given up")

    def close(self, seconds: float = TIMEOUT) -> None:
        """Try what waits once more, then end; after so many seconds at the latest."""
        self._closing.set()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(seconds)

    def _work(self) -> None:
        while (text := self._waiting.get()) is not None:
            failure: str | None = None
            for number in range(TRIES):
                failure = self._try(text)
                if failure is None or self._closing.wait(FIRST_PAUSE * 2**number):
                    break
            if failure is not None:
                self._warn(f"an alert could not be posted to the webhook: {failure}")

    def _try(self, text: str) -> str | None:
        """Why it failed, in words that do not hold the address."""
        # `text` is what Slack and Mattermost read, the others Discord.
        message = {"text": text, "content": text, "allowed_mentions": {"parse": []}}
        try:
            # Of the answer nobody reads more than whether it went well.
            answer = requests.post(self._address, json=message, timeout=TIMEOUT, allow_redirects=False, stream=True)
            answer.close()
        except requests.RequestException as error:
            return type(error).__name__
        return None if answer.ok and not answer.is_redirect else f"it answered {answer.status_code}"
