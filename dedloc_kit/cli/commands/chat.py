"""`dedloc chat`."""

import argparse

from dedloc_kit.cli.generated import add_options, given
from dedloc_kit.cli.options import add_code, add_device, code_for
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.display.console import mention

OF_RUN = ("data", "task_module")


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Talk with a model. Ctrl-C stops an answer and not the chat; at an empty prompt a second one, or Ctrl-D, ends "
        "it. /help lists what else may be typed. Lines that come through a pipe are answered one after the other."
    )
    parser.add_argument(
        "invitation",
        metavar="MODEL|RUN|INVITATION",
        help="a folder that transformers loads, a run's folder (its best checkpoint), OWNER/NAME on the Hub, or the "
        "invitation to a served model, whose servers see what is typed",
    )
    add_code(parser)
    add_device(parser)
    add_options(parser, PeerConfig, *OF_RUN)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.inference.kinds import kind_of

    kind = kind_of(options.invitation)
    code = code_for(options) if kind == "served" else ""

    mention("loading the libraries")
    from dedloc_kit.inference.chat import chat_with
    from dedloc_kit.learning.train.computing.device import set_threads
    from dedloc_kit.notebook.chat import talk_in_terminal

    set_threads(options.threads)
    talk_in_terminal(
        chat_with(options.invitation, kind, code=code, device=options.device, **given(PeerConfig, options, *OF_RUN))
    )
