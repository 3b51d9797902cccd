"""`coordinator.toml`, beside run.toml: how one machine leads a run. What is typed counts more than what it says.

Its keys are the fields of the classes of which the command line is made, so they are declared once.
"""

import json
import os
import textwrap
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from dedloc_kit.config.loading import read_toml
from dedloc_kit.config.machine import CoordinatorConfig, LaunchOptions
from dedloc_kit.config.option import Option, default_of, kind_of, options_of, validated
from dedloc_kit.errors import UserError
from dedloc_kit.machine.paths import expanded
from dedloc_kit.validation import unknown_key

COORDINATOR_FILE = "coordinator.toml"
TYPED = (
    *("folder", "hub", "private", "resume", "host", "port", "url", "announce_host", "swarm_host", "swarm_port"),
    *("devices", "threads", "task_module"),
)
"""What `dedloc launch` takes as options as well; all else stands in the file alone."""
_ONCE = ("folder", "resume")
"""What belongs to one start, and stands in no file."""
_WIDTH = 100
_HEAD = """\
# How this machine leads the run: `dedloc launch` reads this file beside run.toml. Each line is a default: remove its
# "# " to change it. Paths are seen from this file's folder.
"""
_TYPED_TOO = "# These are options of `dedloc launch` as well; what is typed there counts more.\n"


def settings_beside(run: Path) -> dict[str, Any]:
    """What the file beside a run's says, by field; nothing if there is none.

    Raises UserError with the file, the key and the fix.
    """
    file = run.parent / COORDINATOR_FILE
    if not os.path.lexists(file):  # a link to nowhere is told rather than passed over
        return {}
    known, found = keys(), read_toml(file)
    for name, value in found.items():
        if name not in known:
            raise UserError(f"{file}: {unknown_key((name,), list(known))}")
        field, option = known[name]
        if kind_of(field) is Path and isinstance(value, str):
            value = file.parent.absolute() / expanded(value)
        try:
            found[name] = validated(field, option, value)
        except ValueError as error:
            raise UserError(f"{file}: {name}: {error}, not {found[name]!r:.80}") from None
    return found


def keys() -> dict[str, tuple[FieldInfo, Option]]:
    """What the file may say, by name."""
    found = (each for kind in (LaunchOptions, CoordinatorConfig) for each in options_of(kind))
    return {name: (field, option) for name, field, option in found if name not in _ONCE}


def in_file_only() -> list[str]:
    """The keys that are no options of the command."""
    return [name for name in keys() if name not in TYPED]


def template() -> str:
    """The file with every key as a comment, at its default."""
    known = keys()
    alone = [_lines(name, *known[name]) for name in in_file_only()]
    typed = [_lines(name, *known[name]) for name in known if name in TYPED]
    return "\n".join([_HEAD, *alone, _TYPED_TOO, *typed])


def _lines(name: str, field: FieldInfo, option: Option) -> str:
    """A key with what it means."""
    default, kind = default_of(field, option), kind_of(field)
    shown = json.dumps(default)
    if default is None:  # stands for what there is none of
        shown = option.metavar or ""
        shown = shown if kind in (int, float) else f'"{shown}"'
    text = textwrap.wrap(" ".join((field.description or "").split()), _WIDTH)
    return "\n".join([*(f"# {line}" for line in text), f"# {name} = {shown}", ""])
