"""`dedloc prepare`: what a run needs before it starts."""

from dedloc_kit.cli.commands.prepare import images, tokenizer, tokens
from dedloc_kit.cli.options import Commands


def add(commands: Commands) -> None:
    parser = commands.add_parser("prepare", help="make what a run needs before it starts")
    kinds = parser.add_subparsers(metavar="WHAT", required=True)
    for kind in (tokenizer, tokens, images):
        kind.add(kinds)
