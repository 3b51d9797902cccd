"""What does it cost in peace that members are checked (`trust.checks = "on"`)?

The same small run, with checks off and on in turn: a coordinator and volunteers with one thread each on loopback, the
tiny ALBERT of `albert-demo`. They share this machine's cores, so that what one computes to check another is missing
elsewhere. And how long does it take to encode a large vector and to commit to it, beside encoding it alone?
"""

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

import torch

from benchmarks.lib.network import open_network
from benchmarks.lib.peers import end_on_signal, start_coordinator, start_volunteer, step_of
from benchmarks.lib.small_parquet import as_parquet
from dedloc_kit.config.places import local_copies
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import Source
from dedloc_kit.config.trust import TrustConfig
from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.machine.hardware import cores
from dedloc_kit.machine.home import home
from dedloc_kit.organizer.prepare import prepare_demo
from dedloc_kit.records.invitation import Invitation
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding, Feedback
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.audits.kept import Kept
from dedloc_kit.swarm.averaging.pledges.introduced_rounds import IntroducedRounds
from dedloc_kit.swarm.averaging.pledges.pledges import LOTS, Pledges
from dedloc_kit.swarm.trust.pledge import Work

_ROW = "{:12}{:>10}{:>14}{:>10}{:>13}   {}"
_WARM_UP_STEPS = 3
_PATIENCE = 600.0
_SEALED = 5


@dataclass(frozen=True)
class Measured:
    """Of the steps after the first ones."""

    samples_per_second: float
    """That count."""
    bytes_per_step: float | None
    """Sent by a volunteer; none where the network cannot tell."""
    cpu_per_sample: float
    """Seconds of all volunteers' processes."""
    round_seconds: float
    """From the full batch to the averaged gradient, the median."""
    told: str
    """What the coordinator says has been checked."""


def main() -> int:
    options = _parse()
    end_on_signal()
    base = prepare_demo("albert-demo", home() / "demo" / "albert-demo")
    print(f"load of this machine before: {os.getloadavg()[0]:.1f} on {cores()} cores")
    print(_ROW.format("checks", "samples/s", "CPU a sample", "a round", "sent a step", ""))
    ways = {
        "off": TrustConfig(),
        **{f"on, {share:g}": TrustConfig(checks="on", share=share) for share in options.shares},
    }
    found: dict[str, list[Measured]] = {way: [] for way in ways}
    for _ in range(options.times):
        for way, trust in ways.items():
            with tempfile.TemporaryDirectory(prefix="dedloc-checks-") as folder:
                text = Source(dataset=str(as_parquet(Path(folder) / "text")))
                data = base.data.model_copy(update={"train": (text,), "evaluation": None})
                run = base.model_copy(update={"global_batch": options.global_batch, "trust": trust, "data": data})
                measured = _measured(run, options.volunteers, options.steps, Path(folder))
            found[way].append(measured)
            sent = measured.bytes_per_step
            print(
                _ROW.format(
                    way,
                    f"{measured.samples_per_second:.2f}",
                    f"{measured.cpu_per_sample * 1000:.0f} ms",
                    f"{measured.round_seconds:.2f} s",
                    "" if sent is None else f"{sent / 1e6:.2f} MB",
                    measured.told,
                ),
                flush=True,
            )
    encoded, sealed = _sealing(int(options.values))
    print(
        f"\n{options.values:g} values in 4 bits: encoded in {encoded:.2f} s, encoded and committed to in {sealed:.2f} s"
    )
    if options.json:
        runs = {way: [asdict(each) for each in times] for way, times in found.items()}
        options.json.write_text(json.dumps({**runs, "encoded": encoded, "sealed": sealed}, indent=2) + "\n")
    return 0


def _measured(run: RunConfig, volunteers: int, steps: int, folder: Path) -> Measured:
    with ExitStack() as stack:
        network = open_network(None, 1 + volunteers)
        stack.enter_context(network)
        coordinator = stack.enter_context(
            start_coordinator(run, folder, prefix=network.run_in(0), host=network.address(0), evaluate_every=1000)
        )
        invitation = Invitation.of(run, tuple(coordinator.wait_for("joined", deadline=_PATIENCE)["addresses"]))
        peers = [
            stack.enter_context(
                start_volunteer(
                    invitation,
                    folder,
                    f"volunteer-{number}",
                    prefix=network.run_in(number),
                    host=network.address(number),
                    microbatch=8,
                    data=local_copies(run),
                )
            )
            for number in range(1, volunteers + 1)
        ]
        for peer in peers:
            peer.wait_for("joined", deadline=_PATIENCE)

        def spent() -> tuple[float, list[int | None]]:
            return sum(peer.cpu_seconds() for peer in peers), [network.bytes_sent(n + 1) for n in range(volunteers)]

        first = coordinator.wait_for_step(_WARM_UP_STEPS, _PATIENCE)
        cpu, sent = spent()
        last = coordinator.wait_for_step(step_of(first) + steps, _PATIENCE)
        cpu_after, sent_after = spent()
        told = coordinator.wait_for("peers", lambda event: event["at"] > last["at"], _PATIENCE).get("checks", "")
        done = [e["step"] for e in coordinator.steps() if step_of(first) < step_of(e) <= step_of(last)]
    samples = sum(step["samples"] for step in done)
    each = [b - a for a, b in zip(sent, sent_after, strict=True) if a is not None and b is not None]
    return Measured(
        samples_per_second=samples / (last["at"] - first["at"]),
        bytes_per_step=fmean(each) / len(done) if each else None,
        cpu_per_sample=(cpu_after - cpu) / samples,
        round_seconds=median(step["seconds"] for step in done),
        told=told,
    )


def _sealing(size: int) -> tuple[float, float]:
    """Seconds to encode so many values, and to encode and commit to them, as a member does before a round."""
    torch.set_num_threads(1)
    layout = FlatLayout.of([torch.empty(size)])
    plan = Plan(("one", "another"), layout, (1, 1))
    flat, codec = torch.randn(size, generator=torch.Generator().manual_seed(0)), codec_of("4bit")
    said = {"run_id": "checks-0123456789abcdef", "step": 1, "session": "ab", "loss": 1.0, "name": "", "time": 1.0}
    mine = Contribution.parse({**said, "samples": 64, "session_samples": 64})
    work = [Work(0, None, 8 * number, 8, 0).content for number in range(8)]
    with tempfile.TemporaryDirectory(prefix="dedloc-checks-") as folder:
        pledges = Pledges(Kept(Path(folder) / "pledged", LOTS), IntroducedRounds(Path(folder) / "introduced-rounds"))
        coding = Coding(codec, Feedback(size), Feedback(size))
        encoded, sealed = [], []
        for number in range(_SEALED):
            coding.sent.begin(64.0)
            began = time.monotonic()
            for begin, end in plan.chunks:
                coding.sent.encode(codec.gradients, flat[begin:end], begin)
            encoded.append(time.monotonic() - began)
            coding.sent.begin(64.0)
            began = time.monotonic()
            pledges.seal(f"{number:040x}", mine, work, plan, flat, coding)
            sealed.append(time.monotonic() - began)
            coding.sent.commit()
            pledges.counted()
    return median(encoded), median(sealed)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--volunteers", type=int, default=3)
    add("--global-batch", type=int, default=192)
    add("--steps", type=int, default=20, help="global steps to measure, after three to warm up")
    add("--times", type=int, default=3, help="how often each is measured, in turn")
    add("--shares", type=float, nargs="+", default=[0.02], help="of the contributions that are checked")
    add("--values", type=float, default=18e6, help="of the large vector")
    add("--json", type=Path, metavar="FILE", help="write the results there as well")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
