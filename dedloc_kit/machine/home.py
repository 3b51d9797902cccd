"""Where this machine keeps what outlives a session: identities and the demo's tokenizers."""

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from dedloc_kit.errors import UserError
from dedloc_kit.machine.hosted import hosted
from dedloc_kit.machine.paths import expanded
from dedloc_kit.machine.preflight import user_home
from dedloc_kit.machine.private import make_private

DRIVE = Path("/content/drive/MyDrive")
"""A volunteer's Google Drive on Colab, once it is mounted."""
KAGGLE_OUTPUT = Path("/kaggle/working")
"""On Kaggle only this folder can outlive a session, if the notebook's persistence is switched on."""
LEASE_SECONDS, RENEWAL_SECONDS = 120.0, 30.0


def home() -> Path:
    """`$DEDLOC_HOME`, or `dedloc` in the user's cache folder."""
    chosen = os.environ.get("DEDLOC_HOME")
    if chosen:
        return expanded(chosen)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else user_home() / ".cache") / "dedloc"


@contextmanager
def peer_folder(chosen: Path | None, user: str = "volunteer") -> Iterator[Path]:
    """A volunteer's folder that no other process uses: the chosen one, or the first free one of this volunteer's.

    Two volunteers on one machine so get two identities, and each has the same one in its next session.
    Raises UserError if the chosen folder is in use or cannot be written.

    :param user: who uses it, for that error
    """
    candidates = [chosen] if chosen else [_keeping() / "peers" / str(number) for number in range(1, 100)]
    for folder in candidates:
        lock = _locked(folder)
        if lock is not None:
            with lock, _leased(folder):
                yield folder
            return
    raise UserError(f"another {user} uses {candidates[0]}; choose another folder with --folder")


def in_use(folder: Path) -> bool:
    """Does a process hold this folder? Where that cannot be found out, it may."""
    try:
        with (folder / "lock").open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # somebody does, or some network file system has no locks
        return True
    return False


def check_organizer(run_id: str, organizer: str) -> None:
    """Remember who leads a run when its invitation is first seen on this machine, and hold everyone to it.

    Raises UserError if somebody else claims the run, or if it cannot be remembered.

    :param run_id: a valid one, for it becomes the name of a file
    :param organizer: its peer id, the hash of its key
    """
    path = _keeping() / "organizers" / run_id
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{run_id}-{os.getpid()}-{threading.get_ident()}")
            temporary.write_text(organizer, encoding="utf-8")
            os.replace(temporary, path)
        known = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read and written ({error}); set DEDLOC_HOME to another folder") from None
    if known != organizer:
        raise UserError(
            f"another organizer claims the run {run_id}: this machine knows it with the key {known[:64]!r}, and the "
            f"invitation has {organizer}; somebody may stand between you and the organizer, so ask the organizer, by a "
            f"way that you trust, and only if the new key is right remove {path}"
        )


def remember_copies(run_id: str, organizer: str, copies: Mapping[str, Path]) -> None:
    """Note where the data of a run is that is led from this machine, so that it may also volunteer here.

    Raises UserError if it cannot be written.

    :param organizer: its peer id: another one's run of the same name and configuration gets nothing of it
    :param copies: as `run.places.local_copies` says
    """
    path = _own_run(run_id)
    values = {"organizer": organizer, "copies": {name: str(place) for name, place in copies.items()}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{run_id}-{os.getpid()}")
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(values), encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); set DEDLOC_HOME to another folder") from None


def known_copies(run_id: str, organizer: str) -> dict[str, Path]:
    """The same again; nothing for a run that was never led from here."""
    try:
        values = json.loads(_own_run(run_id).read_text(encoding="utf-8"))
        own = values["organizer"] == organizer
        return {name: Path(place) for name, place in values["copies"].items()} if own else {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _own_run(run_id: str) -> Path:
    return home() / "own" / f"{run_id}.json"


def next_session(folder: Path) -> str:
    """Whether a volunteer's total continues in the next session, as one sentence."""
    if _on_drive(folder):
        return "Your identity is kept in your Google Drive, so your total continues in your next session."
    if hosted() == "colab":
        return (
            "This runtime forgets your identity when it ends, and your total starts anew; to let it continue next "
            "time, mount your Google Drive before you join."
        )
    if hosted() == "kaggle" and folder.is_relative_to(KAGGLE_OUTPUT):
        return (
            "Your total continues in your next session if this notebook's persistence is set to 'Files only'; keep the "
            "notebook private, for its output holds the key to your identity."
        )
    if hosted() == "kaggle":
        return (
            "Kaggle forgets your identity when this session ends, and your total starts anew; to let it continue next "
            f"time, set this notebook's persistence to 'Files only' and DEDLOC_HOME to {KAGGLE_OUTPUT}/dedloc before "
            "you join, and keep the notebook private."
        )
    return f"Your identity is kept in {folder}, so your total continues in your next session on this machine."


def _keeping() -> Path:
    """Where identities are kept: where they outlive a session, if there is such a place that only its owner sees.

    Kaggle's is not: what lies there becomes the notebook's output when a version is saved, and a notebook may be
    public. Whoever wants it all the same sets DEDLOC_HOME.
    """
    if hosted() == "colab" and DRIVE.is_dir() and not os.environ.get("DEDLOC_HOME"):
        return DRIVE / "dedloc"
    return home()


def _locked(folder: Path) -> IO[str] | None:
    try:
        make_private(folder)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); choose another with --folder") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError:  # some network file systems have no locks
        pass
    if _on_drive(folder) and _leased_elsewhere(folder / "lease"):
        lock.close()
        return None
    return lock


def _on_drive(folder: Path) -> bool:
    return folder.is_relative_to(DRIVE)


@contextmanager
def _leased(folder: Path) -> Iterator[None]:
    """In a Drive, tell the owner's other runtimes again and again that this folder is in use.

    A lock there holds within one runtime only, and two peers with one identity spoil each other's rounds.
    """
    if not _on_drive(folder):
        yield
        return
    lease, ended = folder / "lease", threading.Event()

    def renew() -> None:
        while not ended.is_set():
            with suppress(OSError):
                lease.write_text(socket.gethostname(), encoding="utf-8")
            ended.wait(RENEWAL_SECONDS)

    renewing = threading.Thread(target=renew, name="lease", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        with suppress(OSError):
            lease.unlink()


def _leased_elsewhere(lease: Path) -> bool:
    try:
        held = lease.stat().st_mtime > time.time() - LEASE_SECONDS
        return held and lease.read_text(encoding="utf-8") != socket.gethostname()
    except (OSError, UnicodeDecodeError):
        return False
