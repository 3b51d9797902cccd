"""Finds the folders that stand beside the package: in a checkout next to it, in a wheel inside it."""

from pathlib import Path

from dedloc_kit.errors import UserError

_PACKAGE = Path(__file__).parent


def shipped(folder: str) -> Path:
    """The path of `recipes` or `dashboards`, wherever this installation keeps it."""
    for candidate in (_PACKAGE / "shipped" / folder, _PACKAGE.parent / folder):
        if candidate.is_dir():
            return candidate
    raise UserError(f"this installation of dedloc_kit has no '{folder}' folder; reinstall it")


def small_text() -> Path:
    """A folder of text to try things out with, in the splits `train` and `test`."""
    return shipped("recipes") / "text"


def small_conversations() -> Path:
    """The same of conversations."""
    return shipped("recipes") / "chat" / "conversations"


def recipe(name: str) -> Path:
    """The folder of a recipe; raises UserError with the names there are."""
    folder = shipped("recipes") / name
    if not (folder / "run.toml").is_file():
        raise UserError(f"there is no recipe '{name}'; choose one of: {', '.join(recipes())}")
    return folder


def recipes() -> list[str]:
    """The names of all recipes."""
    return sorted(path.parent.name for path in shipped("recipes").glob("*/run.toml"))
