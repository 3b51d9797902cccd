"""`dedloc run revoke`."""

import argparse

from dedloc_kit.cli.options import add_folder_of_run, add_person
from dedloc_kit.display.console import Console


def add(parser: argparse.ArgumentParser) -> None:
    add_folder_of_run(parser, then="person")
    add_person(parser, "the name that they were invited under, or their account")


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.access.admission import revoke

    revoke(options.folder, options.person)
    Console(highlight=False, markup=False).print(f"{options.person} is out within a minute, if the run is up")
