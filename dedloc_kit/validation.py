"""Turns pydantic's findings into one line that names the field and the fix."""

import difflib
import re
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_NEAR = 0.55
"""How like a known key a misspelled one is at least, as `difflib` counts."""
_FEW = 12
_PLAIN_KEY = re.compile(r"[\w-]{1,80}", re.ASCII)


def describe(error: ValidationError, model: type[BaseModel]) -> str:
    """The first finding, as `data.train[0].wieght is not a known key; did you mean 'weight'?`.

    An unknown key goes before what is missing: it is most often the misspelled name of that.
    """
    findings = error.errors(include_url=False, include_context=False)
    finding = next((each for each in findings if each["type"] == "extra_forbidden"), findings[0])
    location = finding["loc"]
    where = _dotted(location) or "the configuration"
    match finding["type"]:
        case "extra_forbidden":
            return unknown_key(location, _keys_at(model, location[:-1]))
        case "missing":
            return f"{where} is missing; add it"
        case "value_error":
            return finding["msg"].removeprefix("Value error, ")
        case _:
            return f"{where}: {finding['msg'][0].lower()}{finding['msg'][1:]}, not {finding['input']!r:.80}"


def unknown_key(location: tuple[int | str, ...], known: Sequence[str]) -> str:
    """One line that names the key and the nearest of those that are known, or all of a few if none is near."""
    cutoff = _NEAR if len(known) <= _FEW else 0.0
    nearest = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=cutoff)
    hint = f"; did you mean '{nearest[0]}'?" if nearest else f"; known are {', '.join(known)}" if known else ""
    return f"{_dotted(location)} is not a known key{hint}"


def _dotted(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            # A key from the network may hold anything: quote what is no plain name, so that this stays one line.
            text += ("." if text else "") + (part if _PLAIN_KEY.fullmatch(part) else f"{part!r:.80}")
    return text


def _keys_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    for part in location:
        if isinstance(part, int) or part not in model.model_fields:
            continue
        inner = _model_in(model.model_fields[part].annotation)
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The configuration section inside `Section`, `tuple[Section, ...]` or `Section | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner))), None)
