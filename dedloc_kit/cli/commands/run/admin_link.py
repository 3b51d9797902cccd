"""`dedloc run admin-link`."""

import argparse

from dedloc_kit.cli.options import add_folder_of_run
from dedloc_kit.display.console import Console


def add(parser: argparse.ArgumentParser) -> None:
    add_folder_of_run(parser)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.dashboard.http.login import Keys
    from dedloc_kit.steering.commands import dashboard_of

    link = Keys(options.folder).link(dashboard_of(options.folder))
    Console(highlight=False, markup=False, soft_wrap=True).print(link)
