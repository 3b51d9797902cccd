"""How well does a pipeline of stages train over unreliable peers?

`--balance`: in simulated time, how well peers share the stages when they come and go. `--network 100mbit/60ms`: real
drivers and stage peers with simulated devices on lines as people have them, beside fixed pipelines and what is possible
at most; needs the network emulator, and so root. `--memory`: real processes train, keep and export a model; what each
takes of memory, beside the whole state of that model.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.lib.network import read_network
from benchmarks.lib.peers import end_on_signal
from benchmarks.lib.pipeline_cases import CASES, Length, network_rows
from benchmarks.lib.pipeline_memory import memory_rows
from benchmarks.lib.stage_balance import figures
from dedloc_kit.errors import UserError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--balance", action="store_true", help="also without any other")
    add("--memory", action="store_true", help="takes minutes")
    add("--stages", type=int, default=6, help="of --memory, as is the next one")
    add("--width", type=int, default=2048, help="of their layers")
    add("--seeds", type=int, default=5, help="of --balance")
    add("--network", default="loopback", help="a rate and a round trip, such as 100mbit/60ms")
    add("--cases", nargs="+", choices=CASES, default=list(CASES), help="of --network, as are the following")
    add("--rounds", type=int, default=3, help="global steps to measure, after one to warm up")
    add("--step-seconds", type=float, default=60.0, help="of a global step at the optimum")
    add("--dying-seconds", type=float, default=180.0, help="for which peers die in the case of deaths")
    add("--seed", type=int, default=0)
    add("--json", type=Path, metavar="FILE", help="write the results there as well")
    options = parser.parse_args()
    read_network(parser, options)
    if min(options.rounds, options.step_seconds, options.dying_seconds) < 1:
        parser.error("--rounds, --step-seconds and --dying-seconds must be 1 or more")
    end_on_signal()
    rows: list[dict[str, Any]] = []
    try:
        if options.memory:
            rows = memory_rows(options.stages, options.width)
        elif options.network is not None:
            length = Length(options.rounds, options.step_seconds, options.dying_seconds)
            for row in network_rows(options.network, options.cases, length, options.seed):
                rows.append(row)
                _keep(rows, options.json)
        else:
            rows = figures(options.seeds)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _keep(rows, options.json)
    return 0


def _keep(rows: list[dict[str, Any]], path: Path | None) -> None:
    if path:
        path.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
