"""A published model that a run's file names: OWNER/NAME@COMMIT of the Hub, or a folder of the organizer's. No torch."""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dedloc_kit.config.section import public_name
from dedloc_kit.errors import UserError
from dedloc_kit.hub import HubUnavailable, model_files, repository_and_revision

_MAX_CONFIG_BYTES = 1_000_000
_COMMIT = r"[0-9a-f]{40}"


@dataclass(frozen=True)
class Named:
    """What a key of the run's file names.

    :ivar key: such as `task.init_from`
    :ivar fix: what to do if it is not there
    """

    key: str
    name: str
    fix: str

    @property
    def shown(self) -> str:
        """Its name for people."""
        return public_name(self.name)

    def pinned(self) -> tuple[str, str]:
        """Its repository and commit on the Hub; raises UserError if it names none."""
        where, commit = repository_and_revision(self.name) or (None, None)
        if where is None:
            raise UserError(
                f"{self.key} must be OWNER/NAME@COMMIT of the Hub, or a folder, not {self.name}; {self.fix}"
            )
        if commit is None or not re.fullmatch(_COMMIT, commit):
            raise UserError(
                f'{self.key} must name a commit, so that it stays the same: "{where}@" and the 40 digits of the newest '
                f"one on huggingface.co/{where}/commits/main"
            )
        return where, commit

    def files(self, patterns: list[str]) -> Path:
        """The folder with the files of these patterns, from the Hub if need be; raises UserError."""
        path = Path(self.name)
        if path.is_absolute():
            if not path.is_dir():
                raise UserError(f"{self.key}: there is no folder {path}; {self.fix}")
            return path
        where, commit = self.pinned()
        try:
            return model_files(where, commit, patterns)
        except HubUnavailable as error:
            raise UserError(f"{self.key}: {where} cannot be read now ({error}); try again later") from None

    def config(self, path: Path) -> dict[str, Any]:
        """A file of JSON that describes it; raises UserError if that is none."""
        try:
            if path.stat().st_size > _MAX_CONFIG_BYTES:
                raise ValueError("it is too large")
            values = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(values, dict):
                raise ValueError("it is no object")
        except (OSError, ValueError) as error:
            raise UserError(f"the {path.name} of {self.shown} cannot be used ({error}); {self.fix}") from None
        return values

    def weights(self, pattern: str, patterns: list[str]) -> list[Path]:
        """The files of safetensors of the first pattern, fetched with the others; raises UserError if there is none."""
        found = sorted(self.files(patterns).glob(pattern))
        if not found:
            raise UserError(
                f"{self.key}: {self.shown} has no weights in safetensors, and others are not read, for they may hold "
                "code; load it with its library, write it with save_pretrained, and name that folder"
            )
        return found


def fingerprint(files: Iterable[Path]) -> str:
    """The SHA-256 of a line with the name and SHA-256 of each file."""
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            whole.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()
