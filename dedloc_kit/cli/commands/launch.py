"""`dedloc launch`."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dedloc_kit.cli.generated import add_options, given
from dedloc_kit.cli.options import add_run, run_of
from dedloc_kit.config.coordinator import COORDINATOR_FILE, TYPED, in_file_only, settings_beside
from dedloc_kit.config.machine import CoordinatorConfig, LaunchOptions, parsed
from dedloc_kit.config.option import options_of
from dedloc_kit.config.section import Section


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"{parser.description}\n\n"
        f"How often it evaluates, saves and pushes, when it alerts, TLS and more stand in {COORDINATOR_FILE} beside "
        f"RUN.toml, which 'dedloc init' writes: {', '.join(in_file_only())}. That file takes the options below too, "
        "with _ for -; an option that is typed takes precedence.\n\n"
        "The last three checkpoints stay, the best one, and the last one of each of the last seven days."
    )
    add_run(parser)
    for kind in (LaunchOptions, CoordinatorConfig):
        add_options(parser, kind, *(name for name in _names(kind) if name in TYPED))


def run(options: argparse.Namespace) -> int:
    from dedloc_kit.organizer.launch import launch
    from dedloc_kit.organizer.page import PageSettings
    from dedloc_kit.records.plan import read_plan

    kept = settings_beside(options.run)
    launched = parsed(LaunchOptions, chosen(LaunchOptions, kept, options))
    page = PageSettings.of(launched)
    run = run_of(options)
    settings = chosen(CoordinatorConfig, kept, options)
    settings["folder"] = settings.get("folder", Path("runs") / run.run_id).resolve()
    return launch(run, parsed(CoordinatorConfig, settings), page, launched, read_plan(options.run.parent, run.run_id))


def chosen(kind: type[Section], kept: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """What was typed and, where nothing was, what the file says, by field."""
    return {name: kept[name] for name in _names(kind) if name in kept} | given(kind, options)


def _names(kind: type[Section]) -> list[str]:
    return [name for name, _, _ in options_of(kind)]
