"""`--json`: what a command has found, for programs."""

import argparse

from pydantic import BaseModel

from dedloc_kit.display.console import Console


def add_json(parser: argparse._ActionsContainer, *kinds: type[BaseModel]) -> None:
    """Add the option; its help names the keys of what is printed.

    :param kinds: what `printed` will get
    """
    keys = "; or ".join(", ".join(_keys(kind)) for kind in kinds)
    parser.add_argument(
        "--json", action="store_true", help=f"print one JSON object, and all else on standard error; keys: {keys}"
    )


def console_for(options: argparse.Namespace) -> Console:
    """Where what is for people goes: it must not stand between what programs read."""
    return Console(stderr=options.json, highlight=False, markup=False, soft_wrap=True)


def _keys(kind: type[BaseModel]) -> list[str]:
    return [field.serialization_alias or name for name, field in kind.model_fields.items()]
