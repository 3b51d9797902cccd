"""`dedloc prepare corpus`."""

import argparse

from dedloc_kit.cli.options import add_run
from dedloc_kit.config.loading import load_run
from dedloc_kit.display.console import Console


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write the training text, without what is no prose, copies, and held-out text, to the folder 'corpus' beside "
        "RUN.toml. Once interrupted, the same command goes on."
    )
    add_run(parser)
    parser.add_argument(
        "--language",
        action="append",
        default=[],
        metavar="CODE",
        dest="languages",
        help="keep only documents in this language, such as bn; may be repeated; default: all",
    )


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.display.counting import CountDisplay
    from dedloc_kit.organizer.corpus.corpus import check_learns_text, prepare_corpus
    from dedloc_kit.organizer.prepare_tokens import named_sources, sources_toml

    run, console = load_run(options.run, options.overrides), Console(highlight=False, markup=False)
    check_learns_text(run)
    folder = options.run.resolve().parent / "corpus"
    with CountDisplay("") as display:
        made = prepare_corpus(run, folder, options.languages, display)
    console.print(
        f"{made.documents:,} of {made.read:,} documents are left, with {made.characters:,} characters", soft_wrap=True
    )
    console.print(f"the text is in {folder}", soft_wrap=True)
    missing = [name for _, name in named_sources(run) if not (folder / name).is_dir()]
    for name in missing:
        console.print(f"nothing is left of {name}", soft_wrap=True)
    sections = " and [[data.cooldown]]" if run.data.cooldown else ""
    console.print(
        f"\nput into {options.run}, in place of every section [[data.train]]{sections}:\n\n"
        f"{sources_toml(run, folder.name, None, tokenized=False, missing=missing)}",
        soft_wrap=True,
    )
