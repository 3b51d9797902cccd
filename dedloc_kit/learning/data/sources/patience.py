"""A line that breaks costs a new attempt, and a request to the Hub that finds it busy costs that request.

Looking a dataset up takes some ten requests, and huggingface_hub repeats few of them: of a Hub that fails one in five
hardly any look-up would ever succeed, however often it began anew.
"""

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from dedloc_kit.fetching import SILENCE_SECONDS, bound_silence
from dedloc_kit.machine.account import leave_no_token

Warn = Callable[[str], None]
Value = TypeVar("Value")

RETRY_PAUSES = (1.0, 4.0, 15.0, 30.0)
"""Seconds before each new attempt after a network error; reading on in between starts the count again."""
MAX_PAUSE = 300.0
"""Seconds for which a busy server may ask."""

PAUSES = (0.5, 1.0, 2.0)
"""Seconds before a request is made again."""
_SAFE = {"GET", "HEAD"}
"""Requests that may be made twice."""
_BUSY = {500, 502, 503, 504}
_setting, _set = threading.Lock(), threading.Event()
_TRANSIENT_STATUS = {408, 429, *_BUSY}


def be_patient() -> None:
    """Let this process ask the Hub again, from now on, and without what cannot be a token."""
    from huggingface_hub import set_client_factory

    leave_no_token()
    with _setting:  # once, for it closes the client that other threads may be reading by
        if not _set.is_set():
            set_client_factory(_client)
            _set.set()


def _client() -> Any:
    from huggingface_hub.utils._http import default_client_factory

    client: Any = default_client_factory()
    bound_silence(client)
    ask = client.send
    # huggingface_hub has its own choice of library.
    broken: type[Exception] = sys.modules[type(client).__module__.partition(".")[0]].TransportError

    def ask_patiently(request: Any, **how: Any) -> Any:
        began = time.monotonic()
        # huggingface_hub itself asks again for a part of a file.
        for pause in PAUSES if request.method in _SAFE and "range" not in request.headers else ():
            try:
                answer = ask(request, **how)
            except broken:
                if time.monotonic() - began >= SILENCE_SECONDS:
                    raise
            else:
                if answer.status_code not in _BUSY:
                    return answer
                answer.close()
            time.sleep(pause)
        return ask(request, **how)

    client.send = ask_patiently
    return client


class Retries:
    """Counts failures in a row and waits longer after each."""

    def __init__(self, what: str, warn: Warn) -> None:
        self.what = what
        self.warn = warn
        self.failures = 0

    def worked(self) -> None:
        """The next failure is the first in a row."""
        self.failures = 0

    def wait_or_raise(self, error: Exception) -> None:
        """Announce the error and wait; raises it if trying again would not help or has been done enough: of a server
        that is there and sends nothing huggingface_hub has asked six times already."""
        most = 1 if type(error).__name__ == "ReadTimeout" else len(RETRY_PAUSES)
        if not is_transient(error) or self.failures >= most:
            raise error
        pause = max(RETRY_PAUSES[self.failures], min(_asked_for(error), MAX_PAUSE))
        self.failures += 1
        self.warn(
            f"{self.what}: {one_line(error)}; trying again in {pause:g} s ({self.failures} of {len(RETRY_PAUSES)})"
        )
        time.sleep(pause)


def _asked_for(error: Exception) -> float:
    """Seconds that a busy server wants to be left alone."""
    told = str(getattr(getattr(error, "response", None), "headers", {}).get("Retry-After", ""))
    return float(told) if told.isdecimal() else 0.0


def retried(what: str, warn: Warn, ask: Callable[[], Value]) -> Value:
    """What `ask` returns, once the line lets it; raises its error as `Retries`."""
    retries = Retries(what, warn)
    while True:
        try:
            return ask()
        except Exception as error:
            retries.wait_or_raise(error)


def one_line(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0][:200]}" if said else type(error).__name__


_LINE_ERRORS = (
    ("httpx", "RequestError"),
    ("httpx2", "RequestError"),
    ("aiohttp", "ClientError"),
    ("requests", "ConnectionError"),
    ("requests", "Timeout"),
)
"""How the libraries through which `datasets` and huggingface_hub read tell of a broken line. Which these are differs
from version to version; one that was not imported cannot have raised it."""


def is_transient(error: Exception) -> bool:
    """Whether an error is one of the line, so that the same may work later."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status in _TRANSIENT_STATUS
    if isinstance(error, RuntimeError) and "client has been closed" in str(error):  # by another thread's broken line
        return True
    libraries = [getattr(sys.modules[name], kind) for name, kind in _LINE_ERRORS if name in sys.modules]
    return isinstance(error, (ConnectionError, TimeoutError, *libraries))
