"""A run's bucket as its organizer's machine writes it."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from dedloc_kit.bucket.contents import CHUNK_BYTES, Chunk
from dedloc_kit.errors import UserError
from dedloc_kit.hub import asking, check_login

BATCH = 8
"""Files that are written at once."""

Put = Callable[[Mapping[str, bytes | memoryview]], None]


class Writer(Protocol):
    """Where the files of one run go; whatever else lies there stays.

    What cannot be done raises UserError with the fix, or HubUnavailable if it may work later.
    """

    def put(self, files: Mapping[str, bytes | memoryview]) -> None:
        """Write these files, by their names."""

    def delete(self, names: Collection[str]) -> None:
        """Remove these, as far as they are there."""

    def names(self) -> set[str]:
        """All that is there."""


class HubBucket:
    """A Storage Bucket of the Hub, made if there is none.

    :param name: `OWNER/BUCKET`
    """

    def __init__(self, name: str, run_id: str) -> None:
        self._name, self._run_id = name, run_id
        self._made = False

    def put(self, files: Mapping[str, bytes | memoryview]) -> None:
        self._change(add=[(bytes(content), f"{self._run_id}/{name}") for name, content in files.items()])

    def delete(self, names: Collection[str]) -> None:
        if names:
            self._change(delete=[f"{self._run_id}/{name}" for name in names])

    def names(self) -> set[str]:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError

        self._make()
        with asking(f"read {self._name}"):
            try:
                entries = list(HfApi().list_bucket_tree(self._name, prefix=self._run_id, recursive=True))
            except HfHubHTTPError as error:
                if error.response.status_code != 404:
                    raise
                return set()  # nothing of this run yet
        return {entry.path.rpartition("/")[2] for entry in entries if entry.type == "file"}

    def _change(self, **changes: object) -> None:
        from huggingface_hub import HfApi

        self._make()
        with asking(f"write to {self._name}"):
            HfApi().batch_bucket_files(self._name, **changes)  # type: ignore[arg-type]

    def _make(self) -> None:
        from huggingface_hub import HfApi

        if self._made:
            return
        check_login(self._name)
        with asking(f"write to {self._name}"):
            HfApi().create_bucket(self._name, exist_ok=True)
        self._made = True


class LocalFolder:
    """A folder of this machine that a web server shows."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self._folder = folder / run_id

    def put(self, files: Mapping[str, bytes | memoryview]) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                descriptor, unfinished = tempfile.mkstemp(prefix=".unfinished-", dir=self._folder)
                with open(descriptor, "wb") as file:
                    os.fchmod(descriptor, 0o644)  # a web server is another user
                    file.write(content)
                os.replace(unfinished, self._folder / name)
        except OSError as error:
            raise self._failure(error) from None

    def delete(self, names: Collection[str]) -> None:
        try:
            for name in names:
                (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise self._failure(error) from None

    def names(self) -> set[str]:
        try:
            return {path.name for path in self._folder.iterdir()} if self._folder.is_dir() else set()
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> UserError:
        return UserError(
            f"{self._folder} cannot be written ({error.strerror}); free some space, or let this user write there"
        )


def digest_of(content: bytes | memoryview) -> str:
    """The name of a file."""
    return hashlib.sha256(content).hexdigest()


def put_whole(content: memoryview, put: Put) -> tuple[Chunk, ...]:
    """Write something large as files, some at a time."""
    chunks, files = list[Chunk](), dict[str, bytes | memoryview]()
    for begin in range(0, len(content), CHUNK_BYTES):
        part = content[begin : begin + CHUNK_BYTES]
        chunks.append(Chunk(digest=digest_of(part), size=len(part)))
        files[chunks[-1].digest] = part
        if len(files) == BATCH or begin + CHUNK_BYTES >= len(content):
            put(files)
            files = {}
    return tuple(chunks)


def writer_of(state_bucket: str, folder: Path | None, run_id: str) -> Writer:
    """For a run's `averaging.state_bucket`.

    :param folder: that a web server shows there, if it is no bucket of the Hub
    """
    return HubBucket(state_bucket, run_id) if folder is None else LocalFolder(folder, run_id)
