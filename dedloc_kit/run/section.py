"""What all parts of a configuration have in common."""

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, le=1e38)]
"""What a tensor in single precision can be multiplied by."""
Decay = Annotated[float, Field(ge=0, lt=1)]
PLAIN_TEXT = r"^[^\x00-\x1f\x7f-\x9f]*$"
"""The pattern of a text without control characters, in what regular expressions have in common: others read it too."""
HUB_REPOSITORY = r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}"
"""The pattern of a repository's name on the Hub, `OWNER/NAME`."""


LATER = "later"
"""Marks a key that came when there were runs already: while it has its default it is left out of what is written, so
that those runs keep their fingerprint."""


class Section(BaseModel):
    """A part of a configuration: immutable, unknown keys rejected, no silent conversions."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = written(self)
        for name, field in type(self).model_fields.items():
            if LATER in field.metadata and getattr(self, name) == field.default:
                values.pop(name, None)
        return values

    def canonical(self) -> str:
        """The configuration as JSON with sorted keys and every default written out, but for keys that came `LATER`."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
