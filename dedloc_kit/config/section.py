"""What all parts of a configuration have in common."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, le=1e38)]
"""What a tensor in single precision can be multiplied by."""
Decay = Annotated[float, Field(ge=0, lt=1)]


def _with_a_place(url: str) -> str:
    """Raises ValueError unless a URL names a host, and a port of at most 65535 if it names one."""
    place = urlsplit(url)
    place.port  # noqa: B018 - raises ValueError
    if not place.hostname:
        raise ValueError("must name a host, as http://HOST:PORT does")
    return url


# Nothing in it means anything to a shell: people paste it into one.
Url = Annotated[
    str, Field(max_length=300, pattern=r"^https?://[A-Za-z0-9._~:/%\[\]-]+$"), AfterValidator(_with_a_place)
]
PLAIN_TEXT = r"^[^\x00-\x1f\x7f-\x9f]*$"
"""The pattern of a text without control characters, in what regular expressions have in common: others read it too."""
HUB_REPOSITORY = r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}"
"""The pattern of a repository's name on the Hub, `OWNER/NAME`."""
HUB_REVISION = r"(?!\S*\.\.)[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}"
"""The pattern of a commit, branch or tag on the Hub. The Hub's client makes a path of it, so it holds no `..`."""


LATER = "later"
"""Marks a key that came when there were runs already: while it has its default it is left out of what is written, so
that those runs keep their fingerprint."""


@dataclass(frozen=True)
class Unit:
    """Marks a key with what its number counts, as the reference shows it."""

    name: str


SAMPLES, STEPS, TOKENS, PIXELS = Unit("samples"), Unit("global steps"), Unit("tokens"), Unit("pixels")
PLACE = "place"
"""Marks a key that names data, a tokenizer or a model: a name on the Hub, or an absolute path of this machine."""


def public_name(name: str) -> str:
    """A name on the Hub as it is, of an absolute path (`load_run` makes them) only the last part."""
    return Path(name).name if Path(name).is_absolute() else name


class Section(BaseModel):
    """A part of a configuration: immutable, unknown keys rejected, no silent conversions."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    _PLACES: ClassVar[tuple[str, ...]] = ()
    """The same as `PLACE` for keys that are not declared; after a dot the key within a table."""

    def renamed(self, change: Callable[[str], str]) -> Self:
        """A copy in which every name of data, a tokenizer or a model is another one, here and in all sections below."""
        fields = type(self).model_fields

        def renamed(path: str, value: Any, place: bool) -> Any:
            match value:
                case Section():
                    return value.renamed(change)
                case str() if place or path in self._PLACES:
                    return change(value)
                case dict():
                    return {key: renamed(f"{path}.{key}", each, False) for key, each in value.items()}
                case tuple():
                    return tuple(renamed(path, each, place) for each in value)
            return value

        places = {key for key, field in fields.items() if PLACE in field.metadata}
        return self.model_copy(update={key: renamed(key, value, key in places) for key, value in self})

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = written(self)
        for name, field in type(self).model_fields.items():
            if LATER in field.metadata and getattr(self, name) == field.default:
                values.pop(name, None)
        return values

    def canonical(self) -> str:
        """The configuration as JSON with sorted keys and every default written out, but for keys that came `LATER`.

        Of a path only the last part: where something lies is no part of what all share.
        """
        values = self.renamed(public_name).model_dump(mode="json")
        return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
