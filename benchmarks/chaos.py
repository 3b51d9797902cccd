"""Does a run survive random deaths, and how long does it stand still?

Four volunteers and a coordinator, real processes on loopback with a simulated device, suffer random faults for seven
minutes: SIGKILL of a peer and its return, freezes of all of its processes (SIGSTOP, SIGCONT), volunteers that leave and
others that join in their place, deaths and returns of the coordinator. The faults are a pure function of the seed.
Afterwards the coordinator's ledger must sum up exactly, everyone must take steps again, and no process may be left.

With `--against FOLDER` another checkout of the kit suffers the same faults, in turns with this one.
"""

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.lib.peers import end_on_signal
from dedloc_kit.errors import UserError

CHECKOUT = Path(__file__).parents[1]
TRIAL = Path(__file__).with_name("lib") / "chaos_trial.py"
STALL_SECONDS = 30.0
"""Without a step; then the peers' logs of that time are printed, and all logs kept."""

Result = dict[str, Any]


def run_trial(checkout: Path, seed: int, options: argparse.Namespace, folder: Path) -> Result:
    """The faults of this seed, with the kit of this checkout; raises UserError if the trial did not end."""
    folder.mkdir()
    arguments = [str(folder), str(seed), str(options.seconds), str(options.volunteers)]
    child = subprocess.Popen(
        [sys.executable, "-P", str(TRIAL), *arguments],
        cwd=checkout,  # each process of the trial looks there first
        env={**os.environ, "PYTHONPATH": str(checkout)},
        preexec_fn=_end_with_parent,
    )
    try:
        child.wait()
    finally:
        child.terminate()  # if this process is told to end
        child.wait()
    if not (folder / "result.json").exists():
        raise UserError(f"the trial with seed {seed} did not end; the logs are in {folder}")
    result: Result = json.loads((folder / "result.json").read_text())
    return result


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def report(result: Result) -> None:
    after = [fault["next_step"] for fault in result["faults"] if fault["next_step"] is not None]
    ledger = result["ledger"]
    print(
        f"{result['steps']} steps, at most {result['longest']:.1f} s without one, from {result['since']} on;", end=" "
    )
    if after:
        print(f"from a fault to the next step {median(after):.1f} s, at most {max(after):.1f} s;", end=" ")
    print(f"{ledger['counted']} of {ledger['computed']} computed samples count")
    if result["twice"]:
        print(f"  two groups took step {', '.join(map(str, result['twice']))}")
    for text in result["gave_up"]:
        print(f"  gave up: {text}")
    if result["longest"] > STALL_SECONDS:
        for line in result["logged"]:
            print(f"  {line}")
    for text in result["wrong"]:
        print(f"  WRONG: {text}")
    sys.stdout.flush()


def compare(results: Mapping[str, Sequence[Result]]) -> dict[str, list[float]]:
    """This version's numbers over the other's for each seed; prints their median and spread."""
    pairs = list(zip(results["this"], results["other"], strict=True))
    ratios = {key: [this[key] / other[key] for this, other in pairs if other[key]] for key in ("steps", "longest")}
    for key, found in ratios.items():
        if found:
            print(f"{key}: this over the other {median(found):.2f} ({min(found):.2f} to {max(found):.2f})")
    return ratios


def main() -> int:
    options = _parse()
    end_on_signal()
    folder = Path(tempfile.mkdtemp(prefix="dedloc-chaos-"))
    versions = {"this": CHECKOUT, **({"other": options.against} if options.against else {})}
    results: dict[str, list[Result]] = {name: [] for name in versions}
    try:
        for seed in range(options.seed, options.seed + options.runs):
            for name, checkout in versions.items():
                replay = f"--seed {seed} --seconds {options.seconds:g} --volunteers {options.volunteers}"
                print(f"\n{name}: python -m benchmarks.chaos {replay}", flush=True)
                results[name].append(run_trial(checkout, seed, options, folder / f"{name}-{seed}"))
                report(results[name][-1])
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    values: dict[str, Any] = {**results, **({"ratios": compare(results)} if options.against else {})}
    if options.json:
        settings = {key: str(value) for key, value in vars(options).items() if key != "json"}
        options.json.write_text(json.dumps({"settings": settings, **values}, indent=2) + "\n")
    wrong = any(result["wrong"] for result in results["this"])
    if wrong or any(result["longest"] > STALL_SECONDS for each in results.values() for result in each):
        print(f"the logs are in {folder}")
        return int(wrong)
    shutil.rmtree(folder)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--seconds", type=float, default=420.0, help="of faults, from the moment that all train")
    add("--seed", type=int, default=0, help="of the faults; each further run has the next one")
    add("--volunteers", type=int, default=4, help="that are there without a fault")
    add("--runs", type=int, default=1, help="one after the other")
    add("--against", type=Path, metavar="FOLDER", help="another checkout of the kit, run in turns with this one")
    add("--json", type=Path, metavar="FILE", help="a file for the results")
    options = parser.parse_args()
    if min(options.volunteers, options.runs) < 1:
        parser.error("--volunteers and --runs must be 1 or more")
    if options.against and not (options.against / "dedloc_kit").is_dir():
        parser.error(f"{options.against} is no checkout of the kit")
    return options


if __name__ == "__main__":
    sys.exit(main())
