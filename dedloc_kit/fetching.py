"""Downloads of files from the Hub: what has come is told, and none stays silent for long.

Files come from the Hub's chunk store (the package hf_xet) where that is there, and by plain HTTP otherwise. hf_xet has
no bound on silence that a caller can set: what stands still is aborted here, and goes on by plain HTTP.
"""

import io
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from dedloc_kit.machine.account import leave_no_token

SILENCE_SECONDS = 60.0
"""A connection on which nothing moves for so long is given up."""
TELL_SECONDS = 10.0
"""Between two lines about a download; a shorter one has none."""
Tell = Callable[[str, float | None], None]
"""A line, and how much of the download has come, 0 to 1; None if nobody can tell."""

_log = logging.getLogger(__name__)
_tell: list[Tell] = []


def tell_downloads(tell: Tell) -> None:
    """Let this process tell of its downloads so; else they stand in the log."""
    _tell[:] = [tell]


def bound_silence(client: Any) -> None:
    """Let no request of this HTTP client of huggingface_hub wait for ever, whatever the call says."""
    hooks = client.event_hooks
    if _bound not in hooks["request"]:
        client.event_hooks = {**hooks, "request": [*hooks["request"], _bound]}


def _bound(request: Any) -> None:
    limits = request.extensions.get("timeout") or dict.fromkeys(("connect", "read", "write", "pool"))
    request.extensions["timeout"] = {key: SILENCE_SECONDS if value is None else value for key, value in limits.items()}


def _to_log(line: str, _: float | None) -> None:
    _log.info(line)


@contextmanager
def by_plain_http() -> Iterator[None]:
    """Read no file from the Hub's chunk store meanwhile: where another library downloads, nothing can be aborted."""
    from huggingface_hub import constants

    before, constants.HF_HUB_DISABLE_XET = constants.HF_HUB_DISABLE_XET, True
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_XET = before


def fetched(
    what: str,
    download: Callable[[type[Any]], str],
    *,
    silence: float = SILENCE_SECONDS,
    every: float = TELL_SECONDS,
    tell: Tell | None = None,
) -> Path:
    """Where files of the Hub are on this machine; errors as `download`.

    :param what: for people, such as `OWNER/NAME`
    :param download: `hf_hub_download` or `snapshot_download`, with this `tqdm_class`
    :param tell: otherwise as this process tells of its downloads
    """
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    leave_no_token()
    bound_silence(get_session())
    if _abort() is None:
        _leave_chunk_store()  # of this version nothing can be aborted
    with _Watch(what, silence, every, tell or (_tell[0] if _tell else _to_log)) as watch:
        try:
            return Path(download(watch.bar))
        except (RuntimeError, KeyboardInterrupt) as error:  # of hf_xet, aborted or not
            if isinstance(error, KeyboardInterrupt) and not (watch.silent and str(error)):
                raise  # of a person; hf_xet's own says more
            if not watch.silent:
                _log.warning("%s: the Hub's chunk store fails (%s); going on by plain HTTP", what, _short(error))
            _leave_chunk_store()
        return Path(download(watch.bar))


class _Watch:
    """Looks at the bars of one download."""

    def __init__(self, what: str, silence: float, every: float, tell: Tell) -> None:
        self._what, self._silence, self._every, self._tell = what, silence, every, tell
        self._bars: list[Any] = []
        self._moved = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="download", daemon=True)
        self.silent = False
        watch = self

        class Bar(tqdm):  # type: ignore[misc]
            """Shown nowhere. Some are told by several threads, and one counts files."""

            monitor_interval = 0

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                kwargs.pop("name", None)  # of huggingface_hub's own bars
                super().__init__(*args, **{**kwargs, "disable": False, "file": io.StringIO()})
                if kwargs.get("unit") == "B":
                    watch._bars.append(self)

            def display(self, *_: Any, **__: Any) -> None:
                pass

            def update(self, n: float | None = 1) -> Any:
                if n:
                    watch._moved = time.monotonic()
                return super().update(n)

        self.bar: type[Any] = Bar

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        told, before = time.monotonic(), 0.0
        while not self._over.wait(min(1.0, self._silence / 4, self._every)):
            now = time.monotonic()
            if not self.silent and now - self._moved > self._silence and _in_chunk_store():
                self.silent = True
                _log.warning(
                    "%s: nothing has come from the Hub's chunk store for %.0f s; going on by plain HTTP",
                    *(self._what, self._silence),
                )
                _leave_chunk_store()
            if self.silent and (abort := _abort()) is not None:
                abort()  # again and again: another file of this download may just have begun
            if now - told >= self._every:
                done, total = self._done(), self._total()
                line = self._line(done, total, max(0.0, done - before) / (now - told))
                self._tell(f"{self._what}: {line}", min(1.0, done / total) if total else None)
                told, before = now, done

    def _done(self) -> float:
        """Bytes; what comes over the line has a bar beside what is written from it."""
        return max((bar.n for bar in self._bars), default=0.0)

    def _total(self) -> float:
        return min((bar.total for bar in self._bars if bar.total), default=0.0)

    def _line(self, done: float, total: float, rate: float) -> str:
        return arrived(min(done, total), total, rate) if total else "nothing has come yet"


def arrived(done: float, total: float, rate: float) -> str:
    """How far a download is, of bytes and bytes per second: `23.0 of 72.1 MB, 1.5 MB/s`."""
    fast = f"{rate / 1e6:.1f} MB/s" if rate >= 1e5 else f"{rate / 1e3:.2g} kB/s"
    return f"{done / 1e6:.1f} of {total / 1e6:.1f} MB, {fast}"


def _in_chunk_store() -> bool:
    from huggingface_hub.file_download import is_xet_available  # type: ignore[attr-defined]

    return bool(is_xet_available())


def _leave_chunk_store() -> None:
    """From now on this process reads all by plain HTTP."""
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_XET = True


def _abort() -> Callable[[], None] | None:
    """What ends all that hf_xet does in this process; none if this version of huggingface_hub cannot do that."""
    try:
        from huggingface_hub.utils._xet import abort_xet_session
    except ImportError:
        return None
    found: Callable[[], None] = abort_xet_session
    return found


def _short(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
