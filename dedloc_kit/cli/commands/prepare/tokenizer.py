"""`dedloc prepare tokenizer`."""

import argparse

from dedloc_kit.cli.generated import add_options, given
from dedloc_kit.cli.options import add_run, positive
from dedloc_kit.config.loading import load_run
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.display.console import Console

OF_RUN = ("task_module",)


def add(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--characters", type=positive, metavar="N", help="of text to train on; default: 50 million")
    add_push(parser, "upload it to the Hub; one that is there is not trained")
    add_options(parser, PeerConfig, *OF_RUN)


def add_push(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("--push", metavar="OWNER/NAME", help=help)
    parser.add_argument("--private", action="store_true", help="with --push: make private repositories")


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.hub import check_login
    from dedloc_kit.organizer.prepare import prepare_tokenizer, tokenizer_folder

    run, console = load_run(options.run, options.overrides), Console(highlight=False, markup=False)
    if options.push:
        check_login(options.push)  # before the minutes that training takes
    if not (options.push and tokenizer_folder(run).exists()):
        prepare_tokenizer(run, options.characters, given(PeerConfig, options, *OF_RUN).get("task_module"))
    console.print(f"the tokenizer is in {tokenizer_folder(run)}", soft_wrap=True)
    for change in pushed_tokenizer(run, options, console) if options.push else []:
        console.print(f"\nput into {options.run}, {change}", soft_wrap=True)


def pushed_tokenizer(run: RunConfig, options: argparse.Namespace, console: Console) -> list[str]:
    """Upload the run's tokenizer; returns what to change in the run's file."""
    from dedloc_kit.organizer.prepare import push_tokenizer, tokenizer_folder

    pushed = push_tokenizer(tokenizer_folder(run), options.push, options.private)
    console.print(f"the tokenizer is on the Hub: {pushed}", soft_wrap=True)
    return [f'in place of the line with tokenizer:\n\ntokenizer = "{pushed}"']
