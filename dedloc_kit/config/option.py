"""How a field of a machine's options is typed, where its name and its kind do not say enough."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from dedloc_kit.config.section import Section


@dataclass(frozen=True)
class Option:
    """Of one field, whose description is its help.

    :ivar metavar: stands for the value
    :ivar expects: what the value must be, in words
    :ivar flag: in place of the field's name with dashes
    :ivar help: on the command line, in place of the description
    :ivar no: of a field that is true, false or None: the flag that means false
    :ivar no_help: of that flag
    :ivar optional: whether the caller finds a value for a field without a default
    :ivar no_default: whether the caller finds one though there is a default
    :ivar hidden: whether nobody types it
    """

    metavar: str | None = None
    expects: str = ""
    flag: str = ""
    help: str = ""
    no: str = ""
    no_help: str = ""
    optional: bool = False
    no_default: bool = False
    hidden: bool = False


HIDDEN = Option(hidden=True)


def options_of(kind: type[Section]) -> Iterator[tuple[str, FieldInfo, Option]]:
    """The fields of a class that people type, in the order of their declaration."""
    for name, field in kind.model_fields.items():
        # The last of several says more, as of a kind of values that has one.
        option = next((each for each in reversed(field.metadata) if isinstance(each, Option)), Option())
        if not option.hidden:
            yield name, field, option


def default_of(field: FieldInfo, option: Option) -> Any:
    """None if there is none, or the caller finds one."""
    return None if field.is_required() or option.no_default else field.get_default(call_default_factory=True)


def kind_of(field: FieldInfo) -> Any:
    """The type of a field's values: `int` of `Annotated[int, ...] | None`."""
    kind = field.annotation
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def validated(field: FieldInfo, option: Option, value: Any) -> Any:
    """A value of one field; raises ValueError with what it must be, in words."""
    try:
        return TypeAdapter(field.rebuild_annotation()).validate_python(value, strict=True)
    except ValidationError as error:
        finding = error.errors(include_url=False)[0]["msg"]
        expected = option.expects or ("a path, in quotes" if kind_of(field) is Path else "")
        said = f"must be {expected}" if expected else f"{finding[0].lower()}{finding[1:]}"
    raise ValueError(said)
