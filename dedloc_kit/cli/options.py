"""Options that several commands have, and kinds of values."""

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dedloc_kit.config.run import RunConfig

INVITATION = "the coordinator's URL, an invitation file, or the run's repository OWNER/NAME on the Hub"


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN.toml", help="the run's configuration, as dedloc init writes it")
    parser.add_argument("--overrides", type=Path, metavar="FILE.toml", help="keys that replace those of RUN.toml")


def run_of(options: argparse.Namespace) -> "RunConfig":
    """The run that the options of `add_run` name, with the hash of its picture model if it has one."""
    from dedloc_kit.config.loading import load_run

    run = load_run(options.run, options.overrides)
    if "pictures" in run.task.options:
        from dedloc_kit.learning.models.picture_model.files import completed

        run = completed(run)
    return run


def add_folder_of_run(parser: argparse.ArgumentParser, then: str = "") -> None:
    """The run's folder, which comes first.

    :param then: the argument behind it; where the two are swapped, the right line is told
    """
    parser.add_argument("folder", type=Path, metavar="RUN", help="the run's folder, runs/RUN-ID")
    parser.set_defaults(behind_folder=then)


def add_person(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("person", metavar="NAME", help=help)


def add_device(parser: argparse.ArgumentParser) -> None:
    """One device, and threads."""
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    _add_threads(parser)


def _add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=positive, default=0, metavar="N", help="CPU threads; default: all cores")


def add_code(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--code-file",
        type=Path,
        metavar="FILE",
        help="holds your personal code, for a run that is not open to all; default: the variable DEDLOC_CODE, else you "
        "are asked for it",
    )


def code_for(options: argparse.Namespace) -> str:
    """The personal code for the run of `options.invitation`, as `--code-file` says; empty if none is needed."""
    from dedloc_kit.access.own_code import personal_code

    return personal_code(options.invitation, file=options.code_file, ask=sys.stdin.isatty())


def port(text: str) -> int:
    from dedloc_kit.config.machine import LAST_PORT

    if not (text.isascii() and text.isdigit()) or int(text) > LAST_PORT:
        raise argparse.ArgumentTypeError(f"must be a TCP port, from 0 to {LAST_PORT}")
    return int(text)


def positive(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a whole number, at least 1")
    return int(text)
