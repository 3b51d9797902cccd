"""Folders with what was exported: there as a whole or not at all, and replaced as a whole."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from dedloc_kit.errors import UserError
from dedloc_kit.export.source import EXPORTED_FILE, Exported, round_of
from dedloc_kit.records.state import StateInfo

_OF_THE_DISK = re.compile(r"\(os error \d+\)")
"""What a library that is written in Rust says of a file that it cannot write."""


def check_free(out: Path) -> None:
    """Raise UserError if something else than an export of ours lies there: nothing of a person's is overwritten."""
    if not out.is_symlink() and not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out} is no folder; name a new one")
    written = Exported.of(out)
    ours = set() if written is None else {*written.files, EXPORTED_FILE}
    if theirs := sorted(set(_files(out)) - ours):
        raise UserError(f"{out} holds something else, such as {theirs[0]}; name a new folder, or remove it")


@contextmanager
def placed(out: Path, of: StateInfo | None = None) -> Iterator[Path]:
    """A temporary folder beside `out` to fill; it gets its name, and an earlier export of ours goes, only once the
    block ends without an error.

    :param of: the state of a run whose model it will be, if it is one's
    Raises UserError as `check_free`, and if the disk is full or the folder may not be written.
    """
    check_free(out)
    temporary = None
    try:
        with explained(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=_prefix(out), dir=out.parent))
            yield temporary
            files = tuple(sorted(_files(temporary)))
            written = Exported(files=files)
            if of is not None:
                written = Exported(run_id=of.run_id, step=of.step, round=round_of(of), files=files)
            (temporary / EXPORTED_FILE).write_text(written.model_dump_json() + "\n", encoding="utf-8")
            temporary.chmod(0o755)  # mkdtemp keeps everyone else out
            check_free(out)
            _replace(temporary, out)
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def explained(where: Path) -> Iterator[None]:
    """Raise UserError for what a full disk, or a folder that may not be written to, lets libraries raise within."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not isinstance(error, OSError | SafetensorError) and not _OF_THE_DISK.search(str(error)):
            raise
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(f"{where} cannot be written ({why}); make room on the disk, or name another folder") from None


def clear_leftovers(out: Path) -> None:
    """Remove what a process that was killed has left beside `out`, of which nobody else may write now."""
    for leftover in out.parent.glob(f"{_prefix(out)}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _replace(new: Path, out: Path) -> None:
    old = new.with_name(f"{new.name}.old")
    if out.exists():
        os.rename(out, old)
    try:
        os.rename(new, out)
    except OSError:
        if old.exists():
            os.rename(old, out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _prefix(out: Path) -> str:
    return f".{out.name}-"


def _files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
