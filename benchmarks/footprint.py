"""How much memory does a volunteer take? The rule in `dedloc_kit/machine/memory_model.py` comes from here.

A coordinator and two volunteers on this machine, for each number of parameters anew; the second volunteer comes when
the first has taken a step, so that one gives the training state and the other receives it. Counted are all processes
of a volunteer, at the highest of many moments; what they share counts once.

With `--lender` a volunteer whom nobody reaches, the coordinator, and one who lends a line: the two average all. What
the lender takes is told twice, once without what lies on the disk as well, of which the system lets go when memory is
scarce. Its share of a dense gradient is 4 bytes for each parameter that it averages.
"""

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression
from typing import Any

from benchmarks.lib.forked import session_memory
from benchmarks.lib.peers import Peer, end_on_signal, start_coordinator, start_volunteer
from benchmarks.lib.task import SPREAD, simulated_run
from dedloc_kit.errors import UserError
from dedloc_kit.machine.memory_model import memory_needed
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of

_MICROBATCH, _MICROBATCH_SECONDS, _BATCH, _STEPS = 8, 0.2, 64, 4
_LOOK_SECONDS = 0.1
LENDER = "lender"


class Watch(threading.Thread):
    """Looks again and again how much memory peers take, and remembers the most."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most: dict[str, int] = {}
        self.firm: dict[str, int] = {}
        """The same without what lies on the disk as well."""
        self._peers: dict[str, int] = {}
        self._ended = threading.Event()

    def add(self, peer: Peer) -> None:
        self._peers[peer.name] = peer.pid

    def run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            for name, pid in tuple(self._peers.items()):
                taken = session_memory({pid})
                self.most[name] = max(self.most.get(name, 0), taken)
                self.firm[name] = max(self.firm.get(name, 0), taken - session_memory({pid}, "Pss_File"))

    def end(self) -> None:
        self._ended.set()
        self.join()


@dataclass
class Lent:
    """Of one lender: bytes at most without what lies on the disk as well, and the share that it averaged at most."""

    firm: int
    share: float


def measure(
    parameters: int, mode: str, folder: Path, names: Sequence[str], gives_state: bool = False
) -> tuple[dict[str, int], Lent | None]:
    """The most bytes that each volunteer has taken, without what only the simulated task needs."""
    averaging = {"mode": mode, "local_batch": _MICROBATCH}
    run = simulated_run("footprint", parameters, _MICROBATCH_SECONDS, _BATCH, averaging=averaging)
    watch = Watch()
    with ExitStack() as stack:
        coordinator = stack.enter_context(start_coordinator(run, folder))
        invitation = Invitation.of(run, tuple(coordinator.wait_for("joined")["addresses"]))
        watch.start()
        for name in names:
            kind: dict[str, Any] = {"microbatch": _MICROBATCH, **({"client_mode": True} if LENDER in names else {})}
            if name == LENDER:
                kind = {"lends": True, "gives_state": gives_state, "client_mode": False}
            peer = start_volunteer(invitation, folder, name, **kind)
            watch.add(stack.enter_context(peer))
            peer.wait_for("step", number=_STEPS, deadline=300.0)
        watch.end()
        lent = None
        if name == LENDER:
            carried = [step["step"]["carried"].get(peer.wait_for("joined")["peer"], {}) for step in peer.steps()]
            codec = codec_of(run.averaging.compression)
            whole = codec.gradients.byte_count(parameters) + codec.averages.byte_count(parameters)
            lent = Lent(watch.firm[name], max(each.get("bytes", 0) for each in carried) / whole)
    simulated = 4 * (parameters + SPREAD)  # a lender computes nothing
    return {name: most - (0 if name == LENDER else simulated) for name, most in watch.most.items()}, lent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, nargs="+", default=[4e6, 18e6, 40e6])
    parser.add_argument("--mode", choices=["global-batch", "local-steps"], default="global-batch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    parser.add_argument("--lender", action="store_true", help="one volunteer and one who lends a line")
    parser.add_argument(
        "--give-state", action="store_true", help="with --lender, which gives the state to newcomers too"
    )
    options = parser.parse_args()
    names = ("first", LENDER) if options.lender else ("first", "second")
    end_on_signal()
    points: dict[str, list[tuple[int, int]]] = {}
    shares = list[float]()
    try:
        for parameters in map(int, options.parameters):
            with tempfile.TemporaryDirectory(prefix="dedloc-footprint-") as folder:
                most, lent = measure(parameters, options.mode, Path(folder), names, options.give_state)
            for name, size in most.items():
                points.setdefault(name, []).append((parameters, size))
            told = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in most.items())
            if lent is None:
                predicted = memory_needed(parameters)
                told += f"; predicted {predicted / 1e6:.0f} MB, {predicted / max(most.values()):.2f} of the most"
            else:
                points.setdefault(f"{LENDER}, beside the disk", []).append((parameters, lent.firm))
                shares.append(lent.share)
                told += f", {lent.firm / 1e6:.0f} MB beside what lies on the disk; it averaged {lent.share:.2f} of all"
            print(f"{parameters / 1e6:6.0f} million parameters: {told}", flush=True)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    if len(options.parameters) > 1:
        for name, measured in points.items():
            slope, fixed = linear_regression(*zip(*measured, strict=True))
            told = f"{name}: {fixed / 1e6:.0f} MB and {slope:.1f} bytes for each parameter"
            if name.startswith(LENDER):
                told += f", {slope / (4 * max(shares)):.2f} times its share of a dense gradient"
            print(told)
    if options.json:
        bytes_of = {name: dict(measured) for name, measured in points.items()}
        options.json.write_text(json.dumps({"mode": options.mode, "bytes": bytes_of}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
