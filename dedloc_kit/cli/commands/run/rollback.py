"""`dedloc run rollback`: the way out for a run that has diverged."""

import argparse

from dedloc_kit.cli.options import add_folder_of_run
from dedloc_kit.display.console import Console


def add(parser: argparse.ArgumentParser) -> None:
    add_folder_of_run(parser, then="step")
    parser.add_argument("step", metavar="STEP", help="global step of a checkpoint in RUN/checkpoints; 0: untrained")
    parser.add_argument(
        "--rate", default="1", metavar="FACTOR", help="of the learning rate, such as 0.5; default: 1, as it was"
    )


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.steering.commands import rollback

    text = rollback(options.folder, options.step, options.rate)
    Console(highlight=False, markup=False, soft_wrap=True).print(text)
