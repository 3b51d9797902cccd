"""`dedloc tokenizer`."""

import argparse

from dedloc_kit.cli.options import Commands, add_run, positive
from dedloc_kit.display.console import Console
from dedloc_kit.run.loading import load_run


def add(commands: Commands) -> None:
    parser = commands.add_parser("tokenizer", help="train the tokenizer that a run names")
    add_run(parser)
    parser.add_argument("--characters", type=positive, metavar="N", help="of text to train on; default: 50 million")
    parser.add_argument("--push", metavar="OWNER/NAME", help="upload it to the Hub; one that is there is not trained")
    parser.add_argument(
        "--shards",
        action="store_true",
        help="also write the training data as token ids, to the folder 'tokens' beside RUN.toml: volunteers then need "
        "not tokenize; with --push they become a dataset of the same name",
    )
    parser.add_argument("--private", action="store_true", help="with --push: make private repositories")
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.hub import check_login
    from dedloc_kit.organizer.prepare import prepare_tokenizer, push_tokenizer, tokenizer_folder

    run, console = load_run(options.run, options.overrides), Console(highlight=False, markup=False)
    if options.push:
        check_login(options.push)  # before the minutes that training takes
    if not ((options.push or options.shards) and tokenizer_folder(run).exists()):
        prepare_tokenizer(run, options.characters)
    console.print(f"the tokenizer is in {tokenizer_folder(run)}", soft_wrap=True)
    changes = []
    if options.push:
        pushed = push_tokenizer(tokenizer_folder(run), options.push, options.private)
        console.print(f"the tokenizer is on the Hub: {pushed}", soft_wrap=True)
        changes += [f'in place of the line with tokenizer:\n\ntokenizer = "{pushed}"']
    if options.shards:
        from dedloc_kit.organizer.pretokenize import prepare_shards, push_shards, sources_toml

        folder = options.run.resolve().parent / "tokens"
        if not (options.push and folder.exists()):
            prepare_shards(run, folder)
        console.print(f"the token ids are in {folder}", soft_wrap=True)
        revision = push_shards(folder, options.push, options.private) if options.push else None
        dataset = options.push or "tokens"
        changes += [f"in place of every section [[data.train]]:\n\n{sources_toml(run, dataset, revision)}"]
    for change in changes:
        console.print(f"\nput into {options.run}, {change}", soft_wrap=True)
