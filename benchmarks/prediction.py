"""How close is what `dedloc check` predicts to what a swarm does?

For each setting a rehearsal on this machine, a prediction from it, and then the run itself: a coordinator and
volunteers with one thread each on loopback, the tiny ALBERT of `albert-demo`. Where there are more volunteers than
cores they share them, which the prediction is told. Compared is the time of a global step, the mean of those after the
first ones.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.lib.peers import end_on_signal, start_coordinator, start_volunteer
from dedloc_kit.config.places import local_copies
from dedloc_kit.config.run import RunConfig
from dedloc_kit.display.console import Console
from dedloc_kit.events import Rehearsed
from dedloc_kit.machine.home import home
from dedloc_kit.machine.survey import cores
from dedloc_kit.organizer.check import rehearse
from dedloc_kit.organizer.prediction import HERE, Prediction, Volunteers, predict
from dedloc_kit.organizer.prepare import prepare_demo
from dedloc_kit.records.invitation import Invitation

_ROW = "{:12}{:>14}{:>9}{:>12}{:>12}{:>8}   {}"
_WARM_UP_STEPS = 3
_LINE = 1e9 / 8


@dataclass(frozen=True)
class Setting:
    volunteers: int
    global_batch: int
    overlap: bool = True


SETTINGS = (Setting(2, 192), Setting(3, 192), Setting(2, 192, overlap=False), Setting(2, 16))
"""The last one has rounds that take longer than the computing between them."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="global steps to measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    options = parser.parse_args()
    end_on_signal()
    base = prepare_demo("albert-demo", home() / "demo" / "albert-demo")
    found = []
    print(f"load of this machine before: {os.getloadavg()[0]:.1f} on {cores()} cores")
    print(_ROW.format("volunteers", "global batch", "overlap", "predicted", "measured", "ratio", "limited by"))
    for setting in SETTINGS:
        run = base.model_copy(
            update={
                "global_batch": setting.global_batch,
                "averaging": base.averaging.model_copy(update={"overlap": setting.overlap}),
            }
        )
        predicted = _predicted(run, setting.volunteers)
        with tempfile.TemporaryDirectory(prefix="dedloc-prediction-") as folder:
            measured = _measured(run, setting.volunteers, options.steps, Path(folder))
        ratio = predicted.step / measured
        print(
            _ROW.format(
                setting.volunteers,
                setting.global_batch,
                "yes" if setting.overlap else "no",
                f"{predicted.step:.2f} s",
                f"{measured:.2f} s",
                f"{ratio:.2f}",
                predicted.limit,
            ),
            flush=True,
        )
        found.append({**asdict(setting), **asdict(predicted), "measured": measured, "ratio": ratio})
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def _predicted(run: RunConfig, volunteers: int) -> Prediction:
    rehearsed = rehearse(run, Console(quiet=True), devices="cpu", threads=1)
    return predict(run, _shared(rehearsed, volunteers), [Volunteers(volunteers, HERE, _LINE, reachable=True)], _LINE)


def _shared(rehearsed: Rehearsed, volunteers: int) -> Rehearsed:
    """What each of these volunteers makes of its part of this machine's cores."""
    assert rehearsed.cost is not None
    rate = rehearsed.cost.samples_per_second * min(1.0, cores() / volunteers)
    return rehearsed.model_copy(update={"cost": rehearsed.cost.model_copy(update={"samples_per_second": rate})})


def _measured(run: RunConfig, volunteers: int, steps: int, folder: Path) -> float:
    """Seconds per global step, as the coordinator sees them."""
    last = _WARM_UP_STEPS + steps
    with start_coordinator(run, folder, evaluate_every=1000) as coordinator:
        invitation = Invitation.of(run, tuple(coordinator.wait_for("joined")["addresses"]))
        names = [f"volunteer-{number}" for number in range(volunteers)]
        peers = [start_volunteer(invitation, folder, name, data=local_copies(run)) for name in names]
        try:
            for peer in peers:
                peer.wait_for("joined")
            first = coordinator.wait_for_step(_WARM_UP_STEPS, deadline=300.0)["at"]
            return float(coordinator.wait_for_step(last, deadline=600.0)["at"] - first) / steps
        finally:
            for peer in peers:
                peer.leave()
            for peer in peers:
                peer.kill()


if __name__ == "__main__":
    sys.exit(main())
