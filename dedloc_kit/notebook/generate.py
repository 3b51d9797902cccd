"""Writes the volunteers' notebooks: the same cells for Colab, Kaggle and Jupyter, from `cells.md`; and the one in which
people talk with a served model, from `chat.md`.

`python -m dedloc_kit.notebook.generate` writes those of the checkout, into which a volunteer puts the invitation;
`dedloc notebook INVITATION` writes them for one run. The same input gives the same bytes. The checkout's notebooks for
organizers are made here too, each from a Markdown file whose Python code becomes its cells.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dedloc_kit.client import fetch_invitation
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import HUB_REPOSITORY
from dedloc_kit.config.swarm import SwarmConfig
from dedloc_kit.distribution import running_wheel
from dedloc_kit.errors import UserError
from dedloc_kit.serving.config import swarm_of

_CELLS, _CHAT = (Path(__file__).with_name(name) for name in ("cells.md", "chat.md"))
_CHECKOUT = Path(__file__).parents[2] / "notebooks"
_MARK = re.compile(r"^<!-- cell: ([a-z ]+) -->$", re.MULTILINE)
_CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE_CELL: dict[str, Any] = {"cell_type": "code", "execution_count": None, "outputs": []}
_TEXT_CELL = {"cell_type": "markdown"}
CHAT = "chat.ipynb"
TUTORIALS = ("organize", "use_model", "draw", "fine_tune")
_PUT_IN = (
    "The organizer gives you two addresses that begin with `http`. Put the invitation between the quotes behind\n"
    "`INVITATION`, and the long one, which ends in the fingerprint of the program, behind `KIT`."
)
_PUT_IN_FIRST = """\
assert INVITATION, "Put the invitation between the quotes behind INVITATION first."
assert "#sha256=" in KIT, "Put the whole long address between the quotes behind KIT first."
"""
_IMPORT = """\
try:
    from dedloc_kit import {function}
except ImportError:
    raise RuntimeError(
        "The program is not installed. If it says 404 or DO NOT MATCH near here, this notebook is older than the run: "
        "ask the organizer for the newest one. Else the organizer's computer cannot be reached now: try again later."
    ) from None
"""
_URL = re.compile(r"https?://[\w.:\[\]/~-]+", re.ASCII)
"""Addresses that mean nothing but themselves in Python, in a shell and in IPython, where all this comes to stand."""


@dataclass(frozen=True)
class Platform:
    """Where a notebook is opened."""

    name: str
    file: str
    fields: tuple[str, str, str]
    """What stands behind the invitation, the name and the kit in the cell; Colab makes form fields of its comments."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Asks for a GPU and, on Kaggle, for the Internet."""


_FORM = '# @param {type:"string"}'
_HINTS = ("# the address that the organizer gave you", "# how everyone sees you", "# the long address")
PLATFORMS = (
    Platform("jupyter", "join.ipynb", _HINTS),
    Platform(
        "colab",
        "join_colab.ipynb",
        (_FORM, _FORM, _FORM),
        {"accelerator": "GPU", "colab": {"gpuType": "T4", "provenance": []}},
    ),
    Platform(
        "kaggle",
        "join_kaggle.ipynb",
        _HINTS,
        {
            "kaggle": {
                "accelerator": "nvidiaTeslaT4",
                "dataSources": [],
                "isGpuEnabled": True,
                "isInternetEnabled": True,
                "language": "python",
                "sourceType": "notebook",
            }
        },
    ),
)


@dataclass(frozen=True)
class Target:
    """The run that a notebook joins."""

    invitation: str = ""
    """The coordinator's URL with the organizer behind it, or `OWNER/NAME` on the Hub; empty where the volunteer puts it
    in."""
    kit: str = ""
    """Where pip finds the kit, `URL#sha256=DIGEST`; empty where the volunteer puts it in. Over plain HTTP anybody on
    the way can serve another program: the digest comes with the notebook, and pip refuses what does not fit it."""
    text: str = f"Which model it is, the organizer of the run has told you.\n{_PUT_IN}"
    """Of which run and for whom, as Markdown."""


def notebooks_for(invitation: str, folder: Path | None = None) -> list[Path]:
    """Write the notebooks of a run, by default to `runs/RUN-ID/notebooks`; returns their paths.

    They install the kit that this machine has, and nothing else: what the coordinator says of it is not believed.

    :param invitation: a URL, `OWNER/NAME` on the Hub, or a file; a file's URL is what then stands in the notebooks
    Raises UserError if there is no such run, it gives away another kit than is here, volunteers could not use the
    notebooks, or the folder cannot be written.
    """
    found = fetch_invitation(invitation, watch=True)  # its organizer may write them though it is full
    on_the_hub = re.fullmatch(HUB_REPOSITORY, invitation) and not Path(invitation).exists()
    url = invitation.partition("#")[0] if invitation.startswith(("http://", "https://")) else found.url
    if url is None:
        raise UserError(f"the invitation {invitation} names no coordinator's address; give its URL, http://HOST:PORT")
    url = url.rstrip("/")
    if not _URL.fullmatch(url):
        raise UserError(f"a notebook cannot hold the address {url!r}; give the coordinator's URL, http://HOST:PORT")
    wheel = running_wheel().pinned
    if found.wheel != wheel:
        raise UserError(
            f"the coordinator at {url} gives away another dedloc_kit than is here; write the notebooks where it runs, "
            "and if the kit was changed there launch the run again first"
        )
    to_join = invitation if on_the_hub else f"{url}#{found.organizer}"
    does = "joins the run" if found.kind == "run" else "talks with the model"
    run = Target(to_join, f"{url}/wheel/{wheel}", _about(swarm_of(found), does))
    made = made_for(run) if found.kind == "run" else {CHAT: chat(run)}
    return _write(made, folder or Path("runs") / found.run_id / "notebooks")


def notebooks_to_be(run: RunConfig, folder: Path) -> list[Path]:
    """The same for a run that is not launched yet: what it is for stands there, the invitation is put in later."""
    return _write(made_for(Target(text=f"{_about(run)}\n\n{_PUT_IN}")), folder)


def made_for(run: Target) -> dict[str, str]:
    """The volunteers' notebooks, by the names of their files."""
    return {platform.file: notebook(platform, run) for platform in PLATFORMS}


def _write(made: Mapping[str, str], folder: Path) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in made.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); choose another with --output") from None
    return [folder / name for name in made]


def notebook(platform: Platform, run: Target) -> str:
    """A volunteer's notebook."""
    return _as_json(_cells(platform, run), platform.metadata)


def chat(served: Target) -> str:
    """The notebook in which people talk with a model, the same one everywhere."""
    _, *parts = _MARK.split(_CHAT.read_text(encoding="utf-8"))
    invitation, _, kit = _HINTS
    lines = [f"INVITATION = {json.dumps(served.invitation)}  {invitation}"]
    code = _CODE_CELL, _code(served, lines, kit, "chat", "chat(INVITATION)")
    return _as_json(
        (
            code if names == "code" else (_TEXT_CELL, text.strip().replace("{run}", served.text))
            for names, text in zip(parts[::2], parts[1::2], strict=True)
        ),
        {},
    )


def tutorial(name: str) -> str:
    """The notebook of a Markdown file beside this one: what stands between ```python and ``` becomes a code cell."""
    parts = _CODE.split(Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8"))
    cells = [(_CODE_CELL if number % 2 else _TEXT_CELL, part.strip()) for number, part in enumerate(parts)]
    return _as_json((cell for cell in cells if cell[1]), {})


def _as_json(cells: Iterable[tuple[dict[str, Any], str]], metadata: dict[str, Any]) -> str:
    """Cells, each its kind and its text, in the Jupyter format 4.5."""
    numbered = [
        {"id": f"cell-{number}", "metadata": {}, "source": source.splitlines(keepends=True), **kind}
        for number, (kind, source) in enumerate(cells, start=1)
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    values = {
        "cells": numbered,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}, **metadata},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(values, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _cells(platform: Platform, run: Target) -> Iterator[tuple[dict[str, Any], str]]:
    """The kind of each cell and its text."""
    _, *parts = _MARK.split(_CELLS.read_text(encoding="utf-8"))
    for names, text in zip(parts[::2], parts[1::2], strict=True):
        if names == "join":
            invitation, name, kit = platform.fields
            lines = [f"INVITATION = {json.dumps(run.invitation)}  {invitation}", f'NAME = ""  {name}']
            yield _CODE_CELL, _code(run, lines, kit, "join", "join(INVITATION, name=NAME or None)")
        elif platform.name in names.split() or names == "all":
            yield _TEXT_CELL, text.strip().replace("{run}", run.text)


def _code(target: Target, fields: list[str], kit: str, function: str, call: str) -> str:
    """Lines that assign the fields, get the kit and call one of its functions."""
    lines = [*fields, ""]
    if not target.kit:
        lines[1:1] = [f'KIT = ""  {kit}']
        lines.append(_PUT_IN_FIRST)
    lines += [f'%pip install -q "{target.kit or "{KIT}"}"', _IMPORT.replace("{function}", function), call]
    return "\n".join(lines)


def _about(run: SwarmConfig, does: str = "joins the run") -> str:
    """What the organizer says of it; as character references nothing in it means anything to Markdown."""
    about = "".join(c if c.isalnum() or c in " .,'" else f"&#{ord(c)};" for c in run.about)
    return f"This notebook {does} **{run.name}**." + (f"\n\n> {about}" if about else "")


if __name__ == "__main__":
    _write({**made_for(Target()), CHAT: chat(Target(text=_PUT_IN))}, _CHECKOUT)
    for each in TUTORIALS:
        (_CHECKOUT / f"{each}.ipynb").write_text(tutorial(each), encoding="utf-8")
