"""`dedloc demo`."""

import argparse
from pathlib import Path

from dedloc_kit.cli.options import positive


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Train a small model with a coordinator and volunteers on this machine. In a terminal the live page stays open "
        "after the last step, until Ctrl-C."
    )
    parser.add_argument("--volunteers", type=positive, default=3, metavar="N")
    parser.add_argument(
        "--steps", type=positive, default=100, metavar="N", help="global steps to take; default: %(default)s"
    )
    parser.add_argument("--recipe", default="albert-demo", metavar="NAME")
    parser.add_argument("--report", type=Path, metavar="FILE.json", help="write what happened to this file")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="keep the run there; 'dedloc serve FOLDER/coordinator' serves what it has trained",
    )
    parser.add_argument(
        "--init-from",
        dest="start",
        metavar="FOLDER",
        help="with the recipe chat: go on from what another demo has kept, or from any run or model on this machine",
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="do not open the live page, and end after the last step"
    )


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.cli.demo import demo

    demo(
        recipe_name=options.recipe,
        volunteers=options.volunteers,
        steps=options.steps,
        report=options.report,
        keep=options.keep,
        start=options.start,
        browser=not options.no_browser,
    )
