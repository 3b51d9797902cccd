"""Where this machine keeps what outlives a session: identities and the demo's corpus."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dedloc_kit.errors import UserError


def home() -> Path:
    """`$DEDLOC_HOME`, or `dedloc` in the user's cache folder."""
    chosen = os.environ.get("DEDLOC_HOME")
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "dedloc"


@contextmanager
def peer_folder(chosen: Path | None) -> Iterator[Path]:
    """A volunteer's folder that no other process uses: the chosen one, or the first free one in the home folder.

    Two volunteers on one machine so get two identities, and each has the same one in its next session.
    Raises UserError if the chosen folder is in use or cannot be written.
    """
    candidates = [chosen] if chosen else [home() / "peers" / str(number) for number in range(1, 100)]
    for folder in candidates:
        lock = _locked(folder)
        if lock is not None:
            with lock:
                yield folder
            return
    raise UserError(f"another volunteer uses {candidates[0]}; choose another folder with --folder")


def _locked(folder: Path) -> IO[str] | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); choose another with --folder") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock
