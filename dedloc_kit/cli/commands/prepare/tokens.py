"""`dedloc prepare tokens`."""

import argparse

from dedloc_kit.cli.commands.prepare.tokenizer import add_push, pushed_tokenizer
from dedloc_kit.cli.options import add_run
from dedloc_kit.config.loading import load_run
from dedloc_kit.display.console import Console


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write the training data as token ids to the folder 'tokens' beside RUN.toml, so that volunteers need not "
        "tokenize. Train the tokenizer first if there is none. Once interrupted, the same command goes on."
    )
    add_run(parser)
    add_push(parser, "upload the tokenizer to the Hub, and the token ids as a dataset of the same name")


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.hub import check_login
    from dedloc_kit.organizer.prepare import has_own_tokenizer, prepare_tokenizer, tokenizer_folder
    from dedloc_kit.organizer.prepare_tokens import check_learns_tokens, prepare_tokens, push_tokens, sources_toml

    run, console = load_run(options.run, options.overrides), Console(highlight=False, markup=False)
    check_learns_tokens(run)
    if options.push:
        check_login(options.push)  # before the hours that this takes
    if has_own_tokenizer(run) and not tokenizer_folder(run).exists():
        prepare_tokenizer(run)
    folder = options.run.resolve().parent / "tokens"
    if not (options.push and folder.exists()):
        made = prepare_tokens(run, folder)
        documents, tokens = (sum(getattr(each, key) for each in made.values()) for key in ("documents", "tokens"))
        console.print(f"{documents:,} documents with {tokens:,} tokens", soft_wrap=True)
    console.print(f"the token ids are in {folder}", soft_wrap=True)
    changes = pushed_tokenizer(run, options, console) if options.push and has_own_tokenizer(run) else []
    revision = push_tokens(folder, options.push, options.private) if options.push else None
    dataset = options.push or folder.name
    sections = " and [[data.cooldown]]" if run.data.cooldown else ""
    changes.append(f"in place of every section [[data.train]]{sections}:\n\n{sources_toml(run, dataset, revision)}")
    for change in changes:
        console.print(f"\nput into {options.run}, {change}", soft_wrap=True)
