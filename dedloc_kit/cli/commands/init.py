"""`dedloc init`."""

import argparse

from dedloc_kit.display.console import Console


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a folder with run.toml, coordinator.toml (how this machine leads it), a page for the community and the "
        "notebooks. --language alone is enough: it says what to train on, and how large a model that carries. Without "
        "it and --dataset this asks, in a terminal."
    )
    parser.add_argument("name", metavar="NAME", help="of the run and of its folder: lower-case letters, digits, dashes")
    parser.add_argument(
        "--recipe", metavar="NAME", help="what it is to be, such as gpt; without it you are told of all"
    )
    parser.add_argument(
        "--init-from",
        metavar="OWNER/NAME@COMMIT",
        help="with the recipes continue and chat: the model on the Hub",
    )
    parser.add_argument(
        "--dataset",
        action="append",
        default=[],
        metavar="DATASET[:SUBSET[:SPLIT]][=WEIGHT]",
        help="to train on: OWNER/NAME on the Hub, or a folder; again for each further one",
    )
    parser.add_argument(
        "--evaluation",
        metavar="DATASET[:SUBSET[:SPLIT]]",
        help="held-out data to measure on: its split test if none is named; default: the split test of the first "
        "folder to train on that has one",
    )
    parser.add_argument(
        "--language",
        action="append",
        metavar="LANGUAGE",
        help="ISO 639 code or English name, such as sw or Swahili; again, or after a comma, for each further one. "
        "Without --dataset the run learns from FineWeb-2, Wikipedia and HPLT; default: the recipe's",
    )
    parser.add_argument("--about", metavar="TEXT", help="a sentence or two for volunteers: what is trained, for whom")


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.config.loading import load_run
    from dedloc_kit.config.section import public_name
    from dedloc_kit.organizer.init import init, next_commands
    from dedloc_kit.organizer.init_plan import Plan

    plan = Plan(
        options.name,
        options.recipe,
        options.dataset,
        options.evaluation,
        None if options.language is None else ",".join(options.language),
        options.about,
        options.init_from,
    )
    console = Console(highlight=False, markup=False, soft_wrap=True)
    folder = init(plan, tell=console.print)
    measured = load_run(folder / "run.toml").data.evaluation
    if measured is not None:
        console.print(f"held-out data: {public_name(measured.dataset)}, split {measured.split}")
    console.print(f"the run is in {folder}: read and change {folder / 'run.toml'} and {folder / 'README.md'}, then")
    for command in next_commands(folder):
        console.print(f"  {command}")
