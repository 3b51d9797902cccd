"""`dedloc join`."""

import argparse

from dedloc_kit.cli.options import (
    INVITATION,
    Commands,
    add_code,
    add_data,
    add_microbatch,
    add_peer,
    add_reach,
    code_for,
    peer_settings,
)
from dedloc_kit.display.console import complain


def add(commands: Commands) -> None:
    parser = commands.add_parser("join", help="volunteer this machine")
    parser.add_argument("invitation", metavar="INVITATION", help=INVITATION)
    parser.add_argument("--name", help="shown on the live page; default: that of your Hub account if you are logged in")
    parser.add_argument("--team", default="", help="what you give counts for this team too, on the live page")
    add_microbatch(parser)
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the model's layers for this device, if that works and is faster; it takes a minute or more",
    )
    parser.add_argument(
        "--listed",
        action="store_true",
        help="agree that the public invitation names where this machine is: others can then join through it; only if "
        "the organizer wants that too",
    )
    parser.add_argument(
        "--no-checks",
        action="store_false",
        dest="checks",
        help="do not compute again what others have computed, where the organizer has the work checked",
    )
    parser.add_argument(
        "--stage",
        type=int,
        metavar="N",
        help="of a run in stages: the one to hold, from 0 on; default: the one that lacks peers most",
    )
    parser.add_argument(
        "--drive-only",
        action="store_true",
        help="in a run in stages: hold none, and send batches of data through those of others; takes little memory",
    )
    parser.add_argument(
        "--host-experts",
        action="store_true",
        help="in a run with experts: hold some of them for all, in up to half of the memory that is free, and train",
    )
    add_data(parser)
    add_code(parser)
    add_reach(parser)
    add_peer(parser, folder_help="keeps your identity; default: one in your home folder")
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    from dedloc_kit.session.display import watch
    from dedloc_kit.session.session import Session

    settings = peer_settings(options)
    settings |= {"team": options.team, "microbatch": options.microbatch, "client_mode": options.client_mode}
    settings |= {"listed": options.listed, "checks": options.checks, "stage": options.stage}
    settings |= {"drive_only": options.drive_only, "hosts_experts": options.host_experts, "data": dict(options.data)}
    settings["compile"] = options.compile
    if options.name:
        settings["name"] = options.name
    session = Session(options.invitation, folder=options.folder, settings=settings, code=code_for(options))
    watch(session)
    problem = session.snapshot().problem
    if problem:
        complain(problem)
    return 2 if problem else 0
