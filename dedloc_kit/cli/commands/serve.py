"""`dedloc serve`."""

import argparse
import re
from pathlib import Path

from dedloc_kit.cli.options import (
    Commands,
    add_code,
    add_data,
    add_devices,
    add_place,
    add_reach,
    code_for,
    port,
    positive,
    url,
)
from dedloc_kit.errors import UserError
from dedloc_kit.run.loading import local
from dedloc_kit.serving.config import MODEL_ON_HUB

NAME = r"[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?"


def add(commands: Commands) -> None:
    parser = commands.add_parser("serve", help="serve a language model together: begin with a model, or join others")
    parser.add_argument(
        "what",
        metavar="MODEL|INVITATION",
        help="a folder with a model, or OWNER/NAME@COMMIT of the Hub, to begin; or the page's URL or an invitation's "
        "file, to join",
    )
    parser.add_argument(
        "--blocks",
        type=positive,
        metavar="N",
        help="layers that this machine holds; default: all that fit into its memory",
    )
    parser.add_argument("--span", metavar="BEGIN:END", help="which ones; default: those that others lack most")
    parser.add_argument(
        "--weights",
        choices=["float32", "bfloat16", "int8", "int4"],
        default="bfloat16",
        help="how the weights are held: less memory from left to right, and less exact",
    )
    parser.add_argument(
        "--cache-tokens",
        type=positive,
        default=8192,
        metavar="N",
        help="of all texts that are being written, how many tokens this machine remembers",
    )
    parser.add_argument(
        "--source",
        metavar="MODEL",
        help="to join: take the weights from this folder, or "
        "OWNER/NAME@COMMIT of the Hub; default: from where the model is, or from other servers",
    )
    parser.add_argument(
        "--no-forwarding", action="store_true", help="do not connect peers that cannot reach each other"
    )
    parser.add_argument("--name", help="to begin: the swarm's name; to join: yours, shown on the page")
    parser.add_argument("--team", default="", help="shown beside your name")
    parser.add_argument("--about", default="", metavar="TEXT", help="to begin: a sentence or two for volunteers")
    parser.add_argument(
        "--access",
        choices=["open", "invite"],
        default="open",
        help="to begin: whether everybody may take part, or whom you invite with 'dedloc invite'",
    )
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keeps the identity and what was fetched")
    add_devices(parser, "what to compute on: auto (the first GPU of this machine, else its processor), cpu, or a name")
    add_data(parser)
    add_place(parser)
    page = parser.add_argument_group("to begin: the live page, and who is told when layers lack servers")
    page.add_argument("--dashboard-host", default="0.0.0.0", metavar="ADDRESS")
    page.add_argument("--port", type=port, default=8000, help="of the live page; 0 takes a free one")
    page.add_argument("--url", type=url, help="under which others find the page, where a proxy stands before it")
    page.add_argument("--tls-cert", type=Path, metavar="FILE", help="serve the page over TLS, without a proxy")
    page.add_argument("--tls-key", type=Path, metavar="FILE", help="of that certificate")
    page.add_argument("--webhook-file", type=Path, metavar="FILE", help="holds the secret address of a webhook")
    add_reach(parser)
    add_code(parser)
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    settings = {
        "blocks": options.blocks,
        "span": options.span,
        "weights": options.weights,
        "cache_tokens": options.cache_tokens,
        "source": options.source and local(options.source, Path()),
        "forwarding": not options.no_forwarding,
        "team": options.team,
        "devices": options.devices,
        "threads": options.threads,
        "host": options.host,
        "port": options.swarm_port,
        "announce_host": options.announce_host,
        "client_mode": options.client_mode,
    }
    if _is_model(options.what):
        return _begin(options, settings)
    options.invitation = options.what
    return _join(options, settings)


def _is_model(what: str) -> bool:
    return Path(what).expanduser().is_dir() or re.fullmatch(MODEL_ON_HUB, what) is not None


def _begin(options: argparse.Namespace, settings: dict[str, object]) -> int:
    from dedloc_kit.dashboard.http.sockets import Certificate
    from dedloc_kit.organizer.serving import PageSettings, serve_model
    from dedloc_kit.serving.config import parse_server
    from dedloc_kit.steering.webhook import webhook_address

    if (options.tls_cert is None) != (options.tls_key is None):
        raise UserError("a certificate and its key belong together; give both --tls-cert and --tls-key")

    if options.client_mode:
        raise UserError("whoever begins a swarm has to be reached by others; leave out --client-mode")
    folder = Path(options.what).expanduser()
    model = str(folder.resolve()) if folder.is_dir() else options.what
    name = options.name or _name_of(model)
    if re.fullmatch(NAME, name) is None:
        raise UserError(f"--name {name}: the swarm's name is lower-case letters, digits and dashes, at most 48")
    folder = (options.folder or Path("runs") / f"serve-{name}").resolve()
    beginning = {"folder": folder, "name": options.name or "organizer", "client_mode": None, "data": dict(options.data)}
    peer = parse_server({**settings, **beginning})
    page = PageSettings(
        options.dashboard_host,
        options.port,
        options.url,
        Certificate(options.tls_cert, options.tls_key) if options.tls_cert else None,
        webhook_address(options.webhook_file),
    )
    return serve_model({"model": model, "name": name, "about": options.about, "who": options.access}, peer, page)


def _name_of(model: str) -> str:
    """A swarm's name from a model's."""
    plain = re.sub(r"[^a-z0-9]+", "-", model.partition("@")[0].rstrip("/").rpartition("/")[2].lower())
    return plain.strip("-")[:48].strip("-") or "model"


def _join(options: argparse.Namespace, settings: dict[str, object]) -> int:
    from dedloc_kit.display.console import complain
    from dedloc_kit.session.serving import ServingSession
    from dedloc_kit.session.serving_display import watch

    if options.name:
        settings["name"] = options.name
    session = ServingSession(options.invitation, folder=options.folder, settings=settings, code=code_for(options))
    watch(session)
    problem = session.snapshot().problem
    if problem:
        complain(problem)
    return 2 if problem else 0
