"""What happened, as lines of JSON that are only ever added to a file."""

from pathlib import Path
from typing import Generic, TypeVar

from dedloc_kit.records.record import Record

R = TypeVar("R", bound=Record)


class Journal(Generic[R]):
    """Records of one kind in a file. Several processes may add to it."""

    def __init__(self, path: Path, kind: type[R]) -> None:
        self._path, self._kind = path, kind

    def add(self, record: R) -> None:
        """Raises OSError if the file cannot be written."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(record.model_dump_json() + "\n")

    def newest(self, most: int) -> list[R]:
        """The newest records, newest first; without a file none. A line that is damaged is left out."""
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError:
            return []
        found: list[R] = []
        for line in reversed(lines):
            if len(found) == most:
                break
            try:
                found.append(self._kind.model_validate_json(line))
            except ValueError:  # pydantic's ValidationError is one
                continue
        return found
