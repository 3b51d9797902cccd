"""`dedloc run admin-link`."""

import argparse

from pydantic import BaseModel

from dedloc_kit.cli.facts import add_json
from dedloc_kit.cli.options import add_folder_of_run
from dedloc_kit.display.console import Console, print_json


class AdminLink(BaseModel):
    link: str
    """Logs in whoever opens it: a secret."""


def add(parser: argparse.ArgumentParser) -> None:
    add_folder_of_run(parser)
    add_json(parser, AdminLink)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.dashboard.http.login import Keys
    from dedloc_kit.steering.commands import dashboard_of

    link = Keys(options.folder).link(dashboard_of(options.folder))
    if options.json:
        print_json(AdminLink(link=link))
        return
    Console(highlight=False, markup=False, soft_wrap=True).print(link)
