"""`dedloc corpus`."""

import argparse
from pathlib import Path

from dedloc_kit.cli.options import Commands
from dedloc_kit.display.console import Console


def add(commands: Commands) -> None:
    parser = commands.add_parser("corpus", help="write this machine's documentation strings as a dataset")
    parser.add_argument("folder", type=Path)
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.learning.data.docstrings import write_corpus

    Console(highlight=False).print(f"the corpus is in {write_corpus(options.folder)}")
