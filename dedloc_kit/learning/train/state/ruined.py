"""Which global steps of a run are lost: from a measurement that was bad until one that is not, or a rewind."""

import json
from pathlib import Path

from dedloc_kit.errors import UserError
from dedloc_kit.machine.text_files import replace_text
from dedloc_kit.records.record import Count, Record

RUINED_FILE = "ruined.json"


class Stretch(Record):
    """Global steps from the first to the one before `until`; to the newest, if that is none."""

    first: Count
    until: Count | None = None

    def __contains__(self, step: int) -> bool:
        return self.first <= step and (self.until is None or step < self.until)


class Ruined:
    """Kept beside the checkpoints, in `ruined.json`; without the file, or with a damaged one, no step is lost.

    Raises UserError if the file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / RUINED_FILE
        self._stretches = self._read()

    def __contains__(self, step: int) -> bool:
        return any(step in stretch for stretch in self._stretches)

    @property
    def go_on(self) -> bool:
        """Is the newest step lost, as far as known?"""
        return bool(self._stretches) and self._stretches[-1].until is None

    def judge(self, step: int, sound: bool) -> None:
        """Learn whether the model of a step is worth anything. Raises UserError if that cannot be written down."""
        *before, last = self._stretches or [Stretch(first=step, until=step)]
        if last.until is not None:
            if not sound:
                self._write([*self._stretches, Stretch(first=step)])
        elif sound and step > last.first:
            self._write([*before, last.model_copy(update={"until": step})])
        elif sound and step == last.first:
            self._write(before)

    def forget_newest(self) -> None:
        """The training goes on from before the newest of them. Raises UserError as `judge`."""
        if self.go_on:
            self._write(self._stretches[:-1])

    def _read(self) -> list[Stretch]:
        try:
            return [Stretch.parse(values) for values in json.loads(self._path.read_text(encoding="utf-8"))]
        except (FileNotFoundError, ValueError, TypeError):
            return []
        except OSError as error:  # not as if no step were lost: what is lost would be forgotten for good
            raise UserError(f"{self._path} cannot be read ({error.strerror}); check the disk") from None

    def _write(self, stretches: list[Stretch]) -> None:
        try:
            replace_text(self._path, json.dumps([stretch.model_dump() for stretch in stretches]) + "\n")
        except OSError as error:
            raise UserError(f"{self._path} cannot be written ({error}); make room on the disk") from None
        self._stretches = stretches
