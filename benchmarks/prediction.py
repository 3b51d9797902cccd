"""How close is what `dedloc check` predicts to what a swarm does?

For each setting a rehearsal on this machine, a prediction from it, and then the run itself: a coordinator and
volunteers with one thread each, the models of the demos `albert-demo` and `gpt`. Where there are more volunteers than
cores they share them, which the prediction is told. Compared are the time of a global step and, where volunteers are
clients (others cannot reach them) on a network that counts, the bytes that each sends and receives in a step; both are
means over the steps after the first ones.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.lib.network import Loopback, Network, Traffic, open_network
from benchmarks.lib.peers import end_on_signal, start_coordinator, start_volunteer
from dedloc_kit.config.places import local_copies
from dedloc_kit.config.run import RunConfig
from dedloc_kit.display.console import Console
from dedloc_kit.events import Rehearsed
from dedloc_kit.machine.hardware import cores
from dedloc_kit.machine.home import home
from dedloc_kit.organizer.check import rehearse
from dedloc_kit.organizer.plan import traffic_of
from dedloc_kit.organizer.prediction import HERE, Prediction, Volunteers, predict
from dedloc_kit.organizer.prepare import prepare_demo
from dedloc_kit.records.invitation import Invitation

_ROW = "{:14}{:>11}{:>13}{:>9}{:>11}{:>10}{:>7}{:>8}{:>10}   {}"
_WARM_UP_STEPS = 3
_LINE = 1e9 / 8


@dataclass(frozen=True)
class Setting:
    recipe: str
    volunteers: int
    global_batch: int | None = None
    """In place of the demo's."""
    overlap: bool | None = True
    """None: as in the demo."""
    clients: bool = False
    """Others cannot reach the volunteers."""


SETTINGS = (
    Setting("albert-demo", 2, 192),
    Setting("albert-demo", 3, 192),
    Setting("albert-demo", 2, 192, overlap=False),
    Setting("albert-demo", 2, 64),  # rounds take longer than the computing between them
    Setting("albert-demo", 2, clients=True),
    Setting("gpt", 2, overlap=None, clients=True),
)


@dataclass(frozen=True)
class Measured:
    """Means over global steps; bytes are a volunteer's, none where they cannot be told."""

    seconds: float
    sent: float | None
    received: float | None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="global steps to measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    options = parser.parse_args()
    end_on_signal()
    found = []
    print(f"load of this machine before: {os.getloadavg()[0]:.1f} on {cores()} cores")
    titles = "recipe", "volunteers", "global batch", "overlap", "predicted", "measured", "ratio", "sent", "received"
    print(_ROW.format(*titles, "limited by"))
    for setting in SETTINGS:
        run = _run(setting)
        rehearsed = rehearse(run, Console(quiet=True), devices="cpu", threads=1)
        predicted = _predicted(run, rehearsed, setting)
        with tempfile.TemporaryDirectory(prefix="dedloc-prediction-") as folder:
            measured = _measured(run, setting, options.steps, Path(folder))
        expected = traffic_of(rehearsed, setting.volunteers + 1, measured.seconds) if setting.clients else None
        ratios = {
            "seconds": predicted.step / measured.seconds,
            "sent": expected.sent / measured.sent if expected and measured.sent else None,
            "received": expected.received / measured.received if expected and measured.received else None,
        }
        print(
            _ROW.format(
                setting.recipe,
                setting.volunteers,
                run.global_batch,
                "yes" if run.averaging.overlap else "no",
                f"{predicted.step:.2f} s",
                f"{measured.seconds:.2f} s",
                *("n/a" if ratio is None else f"{ratio:.2f}" for ratio in ratios.values()),
                predicted.limit,
            ),
            flush=True,
        )
        found.append({**asdict(setting), **asdict(predicted), "measured": asdict(measured), "ratios": ratios})
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def _run(setting: Setting) -> RunConfig:
    base = prepare_demo(setting.recipe, home() / "demo" / setting.recipe)
    overlap = base.averaging.overlap if setting.overlap is None else setting.overlap
    averaging = base.averaging.model_copy(update={"overlap": overlap})
    return base.model_copy(update={"global_batch": setting.global_batch or base.global_batch, "averaging": averaging})


def _predicted(run: RunConfig, rehearsed: Rehearsed, setting: Setting) -> Prediction:
    volunteers = Volunteers(setting.volunteers, HERE, _LINE, reachable=not setting.clients)
    return predict(run, _shared(rehearsed, setting.volunteers), [volunteers], _LINE)


def _shared(rehearsed: Rehearsed, volunteers: int) -> Rehearsed:
    """What each of these volunteers makes of its part of this machine's cores."""
    assert rehearsed.cost is not None
    rate = rehearsed.cost.samples_per_second * min(1.0, cores() / volunteers)
    return rehearsed.model_copy(update={"cost": rehearsed.cost.model_copy(update={"samples_per_second": rate})})


def _measured(run: RunConfig, setting: Setting, steps: int, folder: Path) -> Measured:
    """What the coordinator sees of the time of global steps, and the network of their bytes."""
    last = _WARM_UP_STEPS + steps
    with (
        open_network(None, 1 + setting.volunteers) as network,
        start_coordinator(
            run, folder, prefix=network.run_in(0), host=network.address(0), evaluate_every=1000
        ) as coordinator,
    ):
        invitation = Invitation.of(run, tuple(coordinator.wait_for("joined")["addresses"]))
        peers = [
            start_volunteer(
                invitation,
                folder,
                f"volunteer-{number}",
                prefix=network.run_in(number),
                host=network.address(number),
                client_mode=setting.clients,
                data=local_copies(run),
            )
            for number in range(1, 1 + setting.volunteers)
        ]
        try:
            for peer in peers:
                peer.wait_for("joined")
            first = coordinator.wait_for_step(_WARM_UP_STEPS, deadline=300.0)["at"]
            before = _traffic(network)
            end = coordinator.wait_for_step(last, deadline=900.0)["at"]
            after = _traffic(network)
        finally:
            for peer in peers:
                peer.leave()
            for peer in peers:
                peer.kill()
    passed = [(b.sent - a.sent, b.received - a.received) for a, b in zip(before, after, strict=True)]
    sent, received = (sum(each) / len(passed) / steps for each in zip(*passed, strict=True)) if passed else (None, None)
    return Measured(float(end - first) / steps, sent, received)


def _traffic(network: Network | Loopback) -> list[Traffic]:
    """Of the volunteers; empty where nobody counts."""
    return network.traffic()[1:] if isinstance(network, Network) else []


if __name__ == "__main__":
    sys.exit(main())
