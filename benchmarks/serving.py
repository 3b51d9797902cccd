"""How well is a model served by volunteers?

`--balance`: in simulated time, how well servers share the layers when they come and go. `--network 100mbit/60ms`, with
SmolLM2 (`make smollm2`) on lines as people have them: the speed beside what the wire and the computing take, what the
death of a server costs, several users at once, and offloading on the same machine. `--memory`: what servers and a
user need.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.lib.balance import hours
from benchmarks.lib.network import read_network
from benchmarks.lib.peers import end_on_signal
from benchmarks.lib.serving_memory import memory_figures
from benchmarks.lib.serving_network import network_figures
from dedloc_kit.errors import UserError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--balance", action="store_true", help="also without any of the three")
    parser.add_argument("--seeds", type=int, default=5, help="of --balance")
    parser.add_argument("--network", default="loopback", help="a rate and a round trip, such as 100mbit/60ms")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    options = parser.parse_args()
    read_network(parser, options)
    end_on_signal()
    results: Any
    try:
        if options.network is not None:
            results = network_figures(options.network)
        elif options.memory:
            results = memory_figures()
        else:
            results = [asdict(hour) for hour in hours(options.seeds)]
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
