"""`dedloc serve`."""

import argparse
import re
from pathlib import Path
from typing import Any

from dedloc_kit.cli.generated import add_options, given
from dedloc_kit.cli.options import add_code, code_for
from dedloc_kit.config.loading import local
from dedloc_kit.config.machine import PageOptions, parsed
from dedloc_kit.errors import UserError
from dedloc_kit.machine.paths import expanded, is_folder
from dedloc_kit.serving.config import MODEL_ON_HUB, ServerConfig

NAME = r"[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        metavar="MODEL|INVITATION",
        help="a folder with a model, or OWNER/NAME@COMMIT of the Hub, to begin; or the page's URL or an invitation's "
        "file, to join",
    )
    add_code(parser)
    name = "to begin: the swarm's name; to join: yours, shown on the page"
    add_options(parser, ServerConfig, helps={"name": name})
    begin = parser.add_argument_group("only for the first server, which begins: who may take part, the page, alerts")
    begin.add_argument("--about", default="", metavar="TEXT", help="a sentence or two for volunteers")
    begin.add_argument(
        "--access",
        choices=["open", "invite"],
        default="open",
        help="whether everybody may take part, or whom you invite with 'dedloc run invite'",
    )
    add_options(begin, PageOptions)


def run(options: argparse.Namespace) -> int:
    settings = given(ServerConfig, options)
    if source := settings.get("source"):
        settings["source"] = local(source, Path())
    if _is_model(options.what):
        return _begin(options, settings)
    options.invitation = options.what
    return _join(options, settings)


def _is_model(what: str) -> bool:
    return is_folder(expanded(what)) or re.fullmatch(MODEL_ON_HUB, what) is not None


def _begin(options: argparse.Namespace, settings: dict[str, Any]) -> int:
    from dedloc_kit.organizer.page import PageSettings
    from dedloc_kit.organizer.serving import serve_model

    page = PageSettings.of(parsed(PageOptions, given(PageOptions, options)))
    if settings.pop("client_mode", None):
        raise UserError("whoever begins a swarm has to be reached by others; leave out --client-mode")
    folder = expanded(options.what)
    model = str(folder.resolve()) if folder.is_dir() else options.what
    name = settings.setdefault("name", _name_of(model))
    if re.fullmatch(NAME, name) is None:
        raise UserError(f"--name {name}: the swarm's name is lower-case letters, digits and dashes, at most 48")
    settings["folder"] = settings.get("folder", Path("runs") / f"serve-{name}").resolve()
    begin = {"model": model, "name": name, "about": options.about, "who": options.access}
    return serve_model(begin, parsed(ServerConfig, settings), page)


def _name_of(model: str) -> str:
    """A swarm's name from a model's."""
    plain = re.sub(r"[^a-z0-9]+", "-", model.partition("@")[0].rstrip("/").rpartition("/")[2].lower())
    return plain.strip("-")[:48].strip("-") or "model"


def _join(options: argparse.Namespace, settings: dict[str, Any]) -> int:
    from dedloc_kit.session.serving_session import ServingSession
    from dedloc_kit.session.terminal import watch

    folder = settings.pop("folder", None)
    return watch(ServingSession(options.invitation, folder=folder, settings=settings, code=code_for(options)))
