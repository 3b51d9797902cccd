"""`dedloc check`."""

import argparse

from pydantic import BaseModel

from dedloc_kit.cli.facts import add_json, console_for
from dedloc_kit.cli.generated import add_options, given
from dedloc_kit.cli.options import add_run, run_of
from dedloc_kit.config.coordinator import settings_beside
from dedloc_kit.config.machine import JoinOptions
from dedloc_kit.records.plan import Plan


class Checked(BaseModel):
    run_id: str
    plan: Plan | None
    """None where no data could be read, or the run is cut into stages."""


_TRIED_WITH = ("microbatch", "task_module", "devices", "threads")


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Open a run's data, put one microbatch through its model on this machine, and predict what the run takes with "
        "these volunteers: time of a step and in all, memory, traffic, electricity, the loss to expect."
    )
    add_run(parser)
    parser.add_argument(
        "--volunteers",
        default="20xT4@50mbit,5xCPU",
        metavar="MIX",
        help="COUNTxDEVICE@LINE and so on, such as 5xT4@50mbit,2xCPU@1gbit/open: CPU is a machine like this one, /open "
        "says that others can reach them; default: %(default)s",
    )
    parser.add_argument("--line", default="100mbit", metavar="RATE", help="the coordinator's; default: %(default)s")
    parser.add_argument(
        "--auxiliary",
        default="",
        metavar="MIX",
        help="peers that only average (dedloc join --auxiliary): COUNT@LINE and so on, such as 3@1gbit; default: none",
    )
    parser.add_argument(
        "--hosts",
        default="",
        metavar="MIX",
        help="of a run with experts, who host them (dedloc join --host-experts): COUNTxMEMORY@LINE and so on, such as "
        "10x8GB@50mbit; default: the organizer's machine alone",
    )
    parser.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="OWNER/NAME",
        help="compare the run's tokenizer on the held-out text with this one, of the Hub or a folder; may be repeated",
    )
    parser.add_argument("--offline", action="store_true", help="read nothing from the Hub")
    add_options(parser, JoinOptions, *_TRIED_WITH)
    add_json(parser, Checked)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.display.console import print_json
    from dedloc_kit.organizer.check import check
    from dedloc_kit.organizer.experts import read_hosts
    from dedloc_kit.organizer.prediction import read_auxiliary, read_line, read_volunteers
    from dedloc_kit.records.plan import write_plan

    run, console = run_of(options), console_for(options)
    plan = check(
        run,
        read_volunteers(options.volunteers),
        coordinator_line=read_line(options.line),
        auxiliary=read_auxiliary(options.auxiliary),
        hosts=read_hosts(options.hosts),
        compare=options.compare,
        offline=options.offline,
        state_bucket_folder=settings_beside(options.run).get("state_bucket_folder"),
        console=console,
        **given(JoinOptions, options, *_TRIED_WITH),
    )
    if plan is not None:
        path = write_plan(plan, options.run.parent)
        console.print(f"plan          kept in {path}: the live page compares the run with it")
    if options.json:
        print_json(Checked(run_id=run.run_id, plan=plan))
