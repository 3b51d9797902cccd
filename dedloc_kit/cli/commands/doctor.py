"""`dedloc doctor`."""

import argparse

from dedloc_kit.cli.facts import add_json
from dedloc_kit.cli.findings import Diagnosis
from dedloc_kit.cli.options import port
from dedloc_kit.display.console import Console, print_json


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "where",
        nargs="?",
        metavar="INVITATION|FOLDER",
        help="the invitation to a run; or, on the organizer's machine, the run's folder, runs/RUN-ID",
    )
    parser.add_argument("--port", type=port, default=8000, help="of the live page; default: %(default)s")
    parser.add_argument("--swarm-port", type=port, default=0, metavar="PORT", help="that others are to reach")
    add_json(parser, Diagnosis)


def run(options: argparse.Namespace) -> int:
    from dedloc_kit.cli.doctor import examine

    findings = examine(options.where, port=options.port, swarm_port=options.swarm_port)
    if options.json:
        found = tuple(findings)
        print_json(Diagnosis(ok=not any(each.must for each in found), findings=found))
        return 2 if any(each.must for each in found) else 0
    console = Console(highlight=False, markup=False, soft_wrap=True)
    wrong = 0
    for finding in findings:
        wrong += finding.must
        mark, style = ("wrong", "red") if finding.must else ("look", "yellow") if finding.fix else ("ok", None)
        console.print(f"{mark:7}{finding.what}", style=style)
        if finding.fix:
            console.print(f"{'':7}-> {finding.fix}")
    return 2 if wrong else 0
