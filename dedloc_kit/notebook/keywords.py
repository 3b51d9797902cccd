"""Functions whose keyword arguments are the fields of a class; see `dedloc_kit.config.machine`."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dedloc_kit.config.machine import PeerConfig, parsed
from dedloc_kit.config.option import default_of, options_of
from dedloc_kit.machine.paths import expanded

F = TypeVar("F", bound=Callable[..., Any])


def keywords_of(kind: type[PeerConfig]) -> Callable[[F], F]:
    """Give a function that takes `**options` a signature and a documentation with the fields of a class."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = {name: each for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD}
        found = [(name, field, option) for name, field, option in options_of(kind) if name not in own]
        more = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default_of(field, option), annotation=field.annotation
            )
            for name, field, option in found
        ]
        told = "".join(f"\n:param {name}: {' '.join((field.description or '').split())}" for name, field, _ in found)
        decorated: Any = function
        decorated.__signature__ = signature.replace(parameters=[*own.values(), *more])
        decorated.__doc__ = f"{inspect.getdoc(function)}{told}"
        return function

    return decorate


def checked(kind: type[PeerConfig], options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, of their kinds; raises UserError, with the nearest name, for what is none.

    Paths may be strings, and None is as good as nothing.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(copies := given.get("data"), dict):
        given["data"] = {name: expanded(path).absolute() for name, path in copies.items()}
    made = parsed(kind, {"folder": Path(), **given})
    return {name: getattr(made, name) for name in given}
