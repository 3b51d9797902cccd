"""A run's configuration out of a file or plain values: the one parser, and what paths in it mean."""

import json
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.machine.hidden_characters import check_pasted
from dedloc_kit.machine.paths import exists, expanded
from dedloc_kit.machine.text_files import read_text
from dedloc_kit.validation import describe

IMAGES = "images"
"""The section of a run's file that only `dedloc prepare images` reads: how codes of pictures come to be. It is no part
of the run: volunteers have the codes."""


def load_run(path: Path, overrides: Path | None = None) -> RunConfig:
    """Read a run configuration from TOML; relative local paths in it are taken from the file's folder.

    `overrides` is a second file whose keys replace those of the first (a recipe's `smoke.toml`).
    Raises UserError with the file, the key and the fix.
    """
    values = read_values(path, overrides)
    values.pop(IMAGES, None)
    try:
        run = parse_run(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return run.renamed(lambda name: local(name, path.parent))


def read_values(path: Path, overrides: Path | None = None) -> dict[str, Any]:
    """All that a run's file says, as it stands there; otherwise as `load_run`."""
    values = read_toml(path)
    return values if overrides is None else _merged(values, read_toml(overrides))


def parse_run(values: dict[str, Any]) -> RunConfig:
    """Validate a run configuration that came as plain values, from a file or from the network."""
    try:
        # JSON mode is strict about types yet takes a list for a tuple, which is all TOML and JSON have.
        return RunConfig.model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise UserError(describe(error, RunConfig)) from None
    except TypeError as error:  # TOML dates have no JSON form
        raise UserError(f"a value has a type that no key takes ({error})") from None


def read_toml(path: Path) -> dict[str, Any]:
    """What a file says; raises UserError if it cannot be read or is no TOML."""
    try:
        return tomllib.loads(read_text(path))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give the path of a run configuration (run.toml)") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path and its permissions") from None
    except RecursionError:
        raise UserError(f"{path} is not valid TOML: it is nested too deeply") from None
    except ValueError as error:  # a path with a zero in it, other bytes than text, or a number of thousands of digits
        raise UserError(f"{path} is not valid TOML: {str(error).partition('; use sys.')[0]}") from None


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        both_tables = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both_tables else value
    return merged


def local(name: str, folder: Path) -> str:
    """An absolute path if the name means something local, else the name (an id on the Hub) itself.

    Raises UserError if nothing local has this name, and it holds a character that nobody sees.
    """
    candidate = folder / expanded(name)
    if not (there := exists(candidate)):
        check_pasted(f"the name '{name}'", name)
    looks_local = name.startswith((".", "/", "~")) or name.count("/") != 1 or there
    return str(candidate.resolve()) if looks_local else name
