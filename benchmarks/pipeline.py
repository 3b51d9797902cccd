"""How well does a pipeline of stages train over unreliable peers?

`--balance`: in simulated time, how well peers share the stages when they come and go.
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks.lib.stage_balance import figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--balance", action="store_true", help="also without any other")
    parser.add_argument("--seeds", type=int, default=5, help="of --balance")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    options = parser.parse_args()
    rows = figures(options.seeds)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
