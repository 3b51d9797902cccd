"""`dedloc join`."""

import argparse

from dedloc_kit.cli.generated import add_options, given
from dedloc_kit.cli.options import INVITATION, add_code, code_for
from dedloc_kit.config.machine import JoinOptions


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Volunteer this machine: it trains the run's model together with others until you leave with Ctrl-C. What it "
        "has given until then stays in the model and to your name."
    )
    parser.add_argument("invitation", metavar="INVITATION", help=INVITATION)
    add_code(parser)
    add_options(parser, JoinOptions)


def run(options: argparse.Namespace) -> int:
    from dedloc_kit.session.terminal import watch
    from dedloc_kit.session.training_session import TrainingSession

    settings = given(JoinOptions, options)
    folder = settings.pop("folder", None)
    return watch(TrainingSession(options.invitation, folder=folder, settings=settings, code=code_for(options)))
