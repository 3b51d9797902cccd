"""`dedloc launch`."""

import argparse
from pathlib import Path

from dedloc_kit.cli.generated import add_options, given
from dedloc_kit.cli.options import add_run, run_of
from dedloc_kit.config.machine import CoordinatorConfig, LaunchOptions, parsed


def add(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_options(parser, LaunchOptions)
    add_options(parser, CoordinatorConfig)


def run(options: argparse.Namespace) -> int:
    from dedloc_kit.organizer.launch import launch
    from dedloc_kit.organizer.page import PageSettings
    from dedloc_kit.records.plan import read_plan

    launched = parsed(LaunchOptions, given(LaunchOptions, options))
    page = PageSettings.of(launched)
    run = run_of(options)
    settings = given(CoordinatorConfig, options)
    settings["folder"] = settings.get("folder", Path("runs") / run.run_id).resolve()
    return launch(run, parsed(CoordinatorConfig, settings), page, launched, read_plan(options.run.parent, run.run_id))
