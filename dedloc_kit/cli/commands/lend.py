"""`dedloc lend`."""

import argparse
from pathlib import Path

from dedloc_kit.cli.options import (
    INVITATION,
    Commands,
    add_code,
    add_data,
    add_place,
    add_reach,
    add_task_module,
    code_for,
)
from dedloc_kit.display.console import complain


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "lend", help="lend this machine's line to a run: it averages for others, without a GPU"
    )
    parser.description = (
        "Average for others, which takes a line that they can reach, some room on the disk, and no GPU."
    )
    parser.add_argument("invitation", metavar="INVITATION", help=INVITATION)
    parser.add_argument("--name", help="shown on the live page; default: that of your Hub account if you are logged in")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keeps your identity; default: one in your home")
    parser.add_argument(
        "--give-state",
        action="store_true",
        help="hold the training state as well, and give it to newcomers: that takes many times the memory",
    )
    add_task_module(parser)
    add_place(parser)
    add_reach(parser)
    add_data(parser)
    add_code(parser)
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    from dedloc_kit.session.display import watch
    from dedloc_kit.session.session import Session

    settings = {
        "lends": True,
        "gives_state": options.give_state,
        "devices": "cpu",
        "host": options.host,
        "port": options.swarm_port,
        "announce_host": options.announce_host,
        "client_mode": options.client_mode,
        "task_module": options.task_module,
        "data": dict(options.data),
    }
    if options.name:
        settings["name"] = options.name
    session = Session(options.invitation, folder=options.folder, settings=settings, code=code_for(options))
    watch(session)
    problem = session.snapshot().problem
    if problem:
        complain(problem)
    return 2 if problem else 0
