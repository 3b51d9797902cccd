"""`dedloc notebook`."""

import argparse
from pathlib import Path

from dedloc_kit.display.console import Console


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "invitation", metavar="INVITATION", help="the coordinator's URL, as volunteers reach it, or an invitation file"
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: runs/RUN-ID/notebooks")


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.notebook.generate import notebooks_for

    console = Console(highlight=False, markup=False, soft_wrap=True)
    for path in notebooks_for(options.invitation, options.output):
        console.print(str(path))
