"""Options of a command that are made of the fields of a class; see `dedloc_kit.config.machine`."""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from dedloc_kit.config.option import Option, default_of, kind_of, options_of, validated
from dedloc_kit.config.section import Section
from dedloc_kit.machine.paths import expanded


def add_options(
    parser: argparse._ActionsContainer, kind: type[Section], *only: str, helps: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Add an option for each field of a class that people type; `given` reads them.

    :param only: for these fields alone
    :param helps: of fields, where this command means something else by them
    """
    for name, field, option in options_of(kind):
        if not only or name in only:
            _add(parser, name, field, option, helps.get(name) or option.help or field.description or "")


def given(kind: type[Section], options: argparse.Namespace, *only: str) -> dict[str, Any]:
    """What was typed, by field; nothing of what was left out. `only` is that of `add_options`."""
    values = vars(options)
    found = {name: values[name] for name in only or [name for name, _, _ in options_of(kind)] if name in values}
    return {name: dict(value) if isinstance(value, list) else value for name, value in found.items()}


def _add(parser: argparse._ActionsContainer, name: str, field: FieldInfo, option: Option, text: str) -> None:
    flag = option.flag or f"--{'no-' if field.default is True else ''}{name.replace('_', '-')}"
    common: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS}
    kind = kind_of(field)
    if kind is bool:
        value = field.default is not True
        if option.no:
            parser = parser.add_mutually_exclusive_group()
        parser.add_argument(flag, action="store_const", const=value, help=_help(text), **common)
        if option.no:
            parser.add_argument(option.no, action="store_const", const=False, help=option.no_help, **common)
        return
    if get_origin(kind) is Literal:
        common["choices"] = get_args(kind)
    elif get_origin(kind) is dict:
        common |= {"action": "append", "type": _copy, "metavar": option.metavar}
        text += " May be given several times."
    else:
        common |= {"type": _checked(field, option), "metavar": option.metavar}
    parser.add_argument(flag, help=_help(text, default_of(field, option)), **common)


def _help(text: str, default: Any = None) -> str:
    """As argparse's own help is written: it begins small, and ends without a full stop."""
    words = _small(" ".join(text.split()).removesuffix("."))
    shown = "" if default in (None, "", {}) or "default:" in words else f"; default: {default}"
    return f"{words}{shown}".replace("%", "%%")


def _small(text: str) -> str:
    """Without a capital at its begin, but for names."""
    first = text.partition(" ")[0]
    return text[:1].lower() + text[1:] if first[1:] == first[1:].lower() else text


def _checked(field: FieldInfo, option: Option) -> Callable[[str], Any]:
    """Reads a value as the field takes it."""
    kind = kind_of(field)

    def read(text: str) -> Any:
        try:
            if kind is int and not re.fullmatch(r"-?[0-9]{1,18}", text):
                raise ValueError("must be a whole number")
            value = kind(text) if kind in (int, float) else expanded(text) if kind is Path else text
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"must be {option.expects}" if option.expects else str(error)) from None
        try:
            return validated(field, option, value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _copy(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and path) or "/" in name:
        raise argparse.ArgumentTypeError("must be NAME=PATH, with the last part of the run's name of it")
    return name, expanded(path).absolute()
