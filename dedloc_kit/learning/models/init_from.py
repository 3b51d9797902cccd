"""A published model that training goes on from: every peer knows its shape, the coordinator alone reads its weights.

On the Hub the shape is a small file, pinned by the commit, and every peer reads it there as it reads the tokenizer. A
folder is the organizer's: its shape stands in the run's file, with the SHA-256 of what it holds, and nobody else needs
the folder. The weights reach volunteers from the swarm, as every state does.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dedloc_kit.config.places import HAVE_IT_HERE
from dedloc_kit.errors import UserError
from dedloc_kit.learning.models import pinned
from dedloc_kit.learning.models.families import Family
from dedloc_kit.learning.models.pinned import Named
from dedloc_kit.pretrained import CONFIG, MODEL_FOLDER, WEIGHTS


class Undescribed(UserError):
    """The run's file does not say what its start is; it lacks these lines."""

    def __init__(self, lines: str) -> None:
        super().__init__(
            "task.init_from is a folder, which volunteers do not have, so the run's file must say what is in it: "
            "dedloc check RUN.toml prints the lines"
        )
        self.lines = lines


@dataclass(frozen=True)
class Start:
    """What `task.init_from` names. Raises UserError with the fix if that can be no model.

    :ivar name: `OWNER/NAME@COMMIT` of the Hub, or a folder
    :ivar sha256: of a folder, as `fingerprint` says
    """

    name: str
    sha256: str | None = None

    def __post_init__(self) -> None:
        if self.is_on_hub:
            if self.sha256 is not None:
                raise UserError("task.init_from_sha256 is of a folder; leave it out, for the commit pins the model")
            self._named.pinned()

    @property
    def _named(self) -> Named:
        return Named("task.init_from", self.name, "correct it, or name another model")

    def look(self) -> None:
        """Raise UserError if it is not there, is no model, or may not be read."""
        _ = self.config

    @property
    def is_on_hub(self) -> bool:
        """Else it is the organizer's; volunteers know a bare name of it and have no folder."""
        return "/" in self.name and not Path(self.name).is_absolute()

    @property
    def folder(self) -> Path | None:
        """Where it is if it is the organizer's and lies here."""
        path = Path(self.name)
        return path if path.is_absolute() else None

    @property
    def shown(self) -> str:
        """Its name for people."""
        return self._named.shown

    @cached_property
    def config(self) -> dict[str, Any]:
        """What its config.json says; raises UserError if there is none."""
        path = self._files() / CONFIG
        if not path.is_file():
            raise UserError(
                f"{self.shown} holds no config.json, so it is no model of transformers; write that of a run first, "
                "with: dedloc export RUN FOLDER --to transformers"
            )
        values = self._named.config(path)
        if not isinstance(values.get("model_type"), str):
            raise UserError(
                f"the config.json of {self.shown} cannot be used (it names no model_type); name another model"
            )
        return values

    def shape(self, family: Family, architecture: str | None, values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The architecture and the values of its configuration class.

        :param architecture: that the run names, if it does
        :param values: those of `task.model`, which go before the start's

        Raises UserError if the run names another architecture than the start's, and Undescribed.
        """
        if not self.is_on_hub:
            if self.sha256 is None or architecture is None or not values:
                raise Undescribed("" if self.folder is None else self._lines(family))
            return architecture, dict(values)
        self.check_architecture(architecture)
        return self.config["model_type"], family.published(self.config) | dict(values)

    def check_architecture(self, architecture: str | None) -> None:
        """Raise UserError if the run names another architecture than it has."""
        found = self.config["model_type"]
        if architecture not in (None, found, found.removesuffix("_text")):
            raise UserError(f'task.architecture is "{architecture}", and {self.shown} is "{found}"; leave it out')

    def weights(self) -> Path:
        """The folder with its config.json and weights, from the Hub if need be.

        Raises UserError if the weights are not in safetensors, or if the folder holds something else than the run's
        file says.
        """
        folder = self._weights()
        if self.folder is not None and (found := fingerprint(self.folder)) != self.sha256:
            raise UserError(
                f"{self.shown} is not what the run's file says: task.init_from_sha256 must be {found}, if that is the "
                "model"
            )
        return folder

    def _weights(self) -> Path:
        self._files()  # says better what it is if it is none
        return self._named.weights("model*.safetensors", [CONFIG, *WEIGHTS])[0].parent

    def _files(self) -> Path:
        if not self.is_on_hub and self.folder is None:
            raise UserError(f"task.init_from: {self.name} is a folder of the organizer's; {HAVE_IT_HERE}")
        return self._named.files([CONFIG])

    def described(self, family: Family) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a run has to say of a folder: the keys of `task.model`, and further ones of `task`. Errors as `config`
        and `weights`."""
        assert self.folder is not None
        known = family.described(self.config)
        # transformers believes the tensors: what differs in the file is not tied.
        if known.get("tie_word_embeddings") and family.unties(family.load(self._weights())):
            known["tie_word_embeddings"] = False
        return known, {"architecture": self.config["model_type"], "init_from_sha256": fingerprint(self.folder)}

    def _lines(self, family: Family) -> str:
        """What the run's file has to say of a folder."""
        model, head = ([f"{key} = {_toml(value)}" for key, value in part.items()] for part in self.described(family))
        return "\n".join(["put into [task]:", "", *head, "", "and below it:", "", "[task.model]", *model])


def model_in(name: str) -> str:
    """The folder of the model, if this names the folder of a run, or of a demo, in which one lies; else the same."""
    path = Path(name)
    if path.is_absolute() and not (path / CONFIG).is_file():
        places = (path / MODEL_FOLDER, path / "coordinator" / MODEL_FOLDER)
        return next((str(each) for each in places if (each / CONFIG).is_file()), name)
    return name


def fingerprint(folder: Path) -> str:
    """That of a model's configuration and weights in a folder; see `pinned.fingerprint`."""
    return pinned.fingerprint(sorted({path for pattern in (CONFIG, *WEIGHTS) for path in folder.glob(pattern)}))


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        known = [f"{_key(key)} = {_toml(each)}" for key, each in value.items() if each is not None]
        return f"{{ {', '.join(known)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # which TOML has escaped


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)
