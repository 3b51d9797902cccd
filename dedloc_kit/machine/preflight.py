"""What every process of ours needs of its surroundings; else it would end in a traceback from deep within a library."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dedloc_kit.errors import UserError

MAX_TEMPORARY = 73
"""Bytes of the folder for temporary files: with more, the names of the sockets that torch makes there are longer than
the 107 bytes that Linux allows."""
MIN_SHARED_BYTES = 2**22
"""Of shared memory, for what the processes of one peer tell each other. A training state takes its own, which is looked
at when its size is known."""
_SHARED = Path("/dev/shm")


def obstacles() -> Iterator[str]:
    """What would keep a process of ours from working, each in one line with the fix."""
    try:
        user_home()
    except UserError as error:
        yield str(error)
    try:
        temporary = os.fsencode(tempfile.gettempdir())
    except FileNotFoundError:
        yield "there is no folder for temporary files that can be written; free disk space, or set TMPDIR to another"
    else:
        if len(temporary) > MAX_TEMPORARY:
            yield (
                f"the path of the folder for temporary files has {len(temporary)} bytes and may have "
                f"{MAX_TEMPORARY}; set TMPDIR to a shorter one, such as /tmp"
            )
    if _SHARED.is_dir():
        free = shutil.disk_usage(_SHARED).free
        if free < MIN_SHARED_BYTES or not os.access(_SHARED, os.W_OK | os.X_OK):
            yield (
                f"{free / 1e6:.1f} MB of shared memory are free in {_SHARED} and {MIN_SHARED_BYTES / 1e6:.0f} MB "
                "that can be written are needed; start the container with more of it (docker run --shm-size), or "
                "remove what others have left there"
            )


def check_surroundings() -> None:
    """Raise UserError with the first obstacle."""
    for obstacle in obstacles():
        raise UserError(obstacle)


def user_home() -> Path:
    """The user's home folder; raises UserError if there is none, as in a container with a user that has no name."""
    try:
        return Path.home()
    except RuntimeError:
        raise UserError(
            "this user has no home folder: neither HOME nor the list of users names one; set HOME to a folder that can "
            "be written"
        ) from None
