"""`dedloc mirror`."""

import argparse
from pathlib import Path

from dedloc_kit.cli.options import INVITATION, add_code, code_for, port


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("invitation", metavar="INVITATION", help=INVITATION)
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="0.0.0.0 lets others see the page; default: %(default)s"
    )
    parser.add_argument("--port", type=port, default=8000, help="0 takes a free one; default: %(default)s")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keeps its ledger; default: one in your home folder")
    add_code(parser)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.mirror import mirror

    code = code_for(options)
    mirror(options.invitation, host=options.host, port=options.port, folder=options.folder, code=code)
