"""How long does a newcomer take until it trains, and from whom does it load?

First the download alone: a model's parameters and LAMB's moments, from one donor, from three on home lines with slow
uplinks, and by several newcomers at once; ours and hivemind's load_state_from_peers. The limit is the time that the
lines must be busy at least: the newcomers' downlinks or all donors' uplinks, whichever takes longer. Then a volunteer
from the start of its process to its first sample that counts, in a run that is under way. With `--full STREAMS` only
this: the coordinator's line carries so many streams already, and a newcomer takes the state from the coordinator, from
it and a helper that holds the state too, and from a folder on another host over HTTP.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.lib.joining_peer import state_of
from benchmarks.lib.network import Line, Loopback, Network, open_network, read_network
from benchmarks.lib.peers import Event, Peer, start_coordinator, start_volunteer
from benchmarks.lib.task import simulated_run
from dedloc_kit.errors import UserError
from dedloc_kit.records.invitation import Invitation

SYSTEMS = ("ours", "hivemind")
_ROW = "{:10}{:30}{:>9}{:>16}{:>9}{:>12}   {}"
_PHASES = ("start of Python", "imports", "joining the swarm", "download", "first microbatch", "its step is done")
_START_SECONDS, _FETCH_SECONDS = 180.0, 1800.0
_FILL_SECONDS = 5.0
_MICROBATCH, _MICROBATCH_SECONDS, _STEP_SECONDS = 8, 0.5, 10.0


@dataclass(frozen=True)
class Case:
    """Who downloads from whom."""

    name: str
    donors: int
    newcomers: int
    uplink: float = 1.0
    """Of the donors, as a share of the line's rate."""


CASES = {
    "one": Case("one donor", 1, 1),
    "slow": Case("three donors, slow uplinks", 3, 1, uplink=0.2),
    "many": Case("four newcomers, three donors", 3, 4),
}


def main() -> int:
    options = _parse()
    folder = Path(tempfile.mkdtemp(prefix="dedloc-joining-"))
    results: dict[str, Any] = {"downloads": []}
    try:
        print(f"Download of {_state_bytes(options) / 1e6:.0f} MB, {options.network_text}")
        if options.full:
            results["full"] = _beside_streams(options, folder)
            options.cases, options.join = [], False
        else:
            print(_ROW.format("", "", "seconds", "(each time)", "limit", "over limit", "sent by each donor"))
        for case in map(CASES.__getitem__, options.cases):
            for system in options.systems:
                results["downloads"].append(_download(system, case, options, folder / f"{case.name}-{system}"))
        if options.join:
            print(f"\nA volunteer joins a run of {options.volunteers} others, {options.network_text}")
            results["joining"] = _join(options, folder / "joining")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    shutil.rmtree(folder)
    return 0


# The download alone


def _download(system: str, case: Case, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    runs = [_fetch_once(system, case, options, folder / str(number)) for number in range(options.repeats)]
    seconds = [taken for taken, _ in runs]
    mean, limit = sum(seconds) / len(seconds), _limit(case, options)
    row = _ROW.format(
        system,
        case.name,
        f"{mean:.2f}",
        f"{min(seconds):.2f}..{max(seconds):.2f}",
        "n/a" if limit is None else f"{limit:.2f}",
        "n/a" if limit is None else f"{mean / limit:.2f}",
        ", ".join("n/a" if sent is None else f"{sent / 1e6:.0f} MB" for sent in runs[-1][1]),
    )
    print(row, flush=True)
    return {"system": system, "case": case.name, "seconds": seconds, "limit": limit, "sent_by_donors": runs[-1][1]}


def _fetch_once(system: str, case: Case, options: argparse.Namespace, folder: Path) -> tuple[float, list[int | None]]:
    """Seconds until the last newcomer has the state, and what each donor sent meanwhile; raises UserError."""
    with _peers(system, case, options, folder) as (network, peers):
        donors, newcomers = peers[: case.donors], peers[case.donors :]
        known = {event["peer"]: event["addresses"] for event in map(_joined, donors)}
        before = [network.bytes_sent(k) for k in range(case.donors)]
        began = time.monotonic()
        for newcomer in newcomers:
            newcomer.send({"do": "fetch", "donors": known})
        answers = [newcomer.wait_for("fetched", deadline=_FETCH_SECONDS) for newcomer in newcomers]
        after = [network.bytes_sent(k) for k in range(case.donors)]
    if not all(answer["exact"] for answer in answers):
        raise UserError(f"with {system} a newcomer did not get the donors' state; the logs are in {folder}")
    sent = [a - b if a is not None and b is not None else None for a, b in zip(after, before, strict=True)]
    return max(answer["at"] for answer in answers) - began, sent


@contextmanager
def _peers(
    system: str, case: Case, options: argparse.Namespace, folder: Path
) -> Iterator[tuple[Network | Loopback, list[Peer]]]:
    """The donors, then the newcomers, each on a host of its own."""
    slow = {k: replace(options.network, up_mbit=_uplink(case, options)) for k in range(case.donors) if options.network}
    network = open_network(options.network, case.donors + case.newcomers, slow)
    with ExitStack() as stack:
        stack.enter_context(network)
        peers: list[Peer] = []
        addresses: list[str] = []
        for k in range(case.donors + case.newcomers):
            job = {
                "kind": system,
                "donor": k < case.donors,
                "parameters": options.parameters,
                "state": options.optimizer_state,
                "host": network.address(k),
                "folder": str(folder / f"peer{k}"),
                "addresses": addresses,
            }
            peer = Peer("benchmarks.lib.joining_peer", job, name=f"peer{k}", folder=folder, prefix=network.run_in(k))
            peers.append(stack.enter_context(peer))
            addresses = addresses or list(_joined(peer)["addresses"])
        for peer in peers:
            _joined(peer)
        yield network, peers


def _joined(peer: Peer) -> Event:
    return peer.wait_for("joined", deadline=_START_SECONDS)


def _state_bytes(options: argparse.Namespace) -> float:
    return float(_bytes_of(int(options.parameters), options.optimizer_state))


@cache
def _bytes_of(parameters: int, kept: str) -> int:
    return sum(tensor.nbytes for tensor in state_of(parameters, kept))


def _uplink(case: Case, options: argparse.Namespace) -> float:
    return float(case.uplink * options.network.up_mbit)


def _limit(case: Case, options: argparse.Namespace) -> float | None:
    if options.network is None:
        return None
    by_downlink = _state_bytes(options) * 8e-6 / float(options.network.down_mbit)
    by_uplinks = case.newcomers * _state_bytes(options) * 8e-6 / (case.donors * _uplink(case, options))
    return max(by_downlink, by_uplinks)


# While the coordinator's line is full


def _beside_streams(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Shares of the newcomer's own line at which the state comes from the coordinator, from it and a helper, and from a
    bucket; the hosts are the coordinator, the newcomer, the bucket's server, one that takes what fills the line, and
    the helper."""
    line = options.network
    wide = Line(10 * line.up_mbit, 10 * line.down_mbit, line.delay_ms)
    limit = _state_bytes(options) * 8e-6 / float(line.down_mbit)
    with ExitStack() as stack:
        network = stack.enter_context(Network(5, line.up_mbit, line.delay_ms, {2: wide, 3: wide}))
        peers: list[Peer] = []
        addresses: list[str] = []
        for k in (0, 1, 4):
            job = {
                "kind": "ours",
                "donor": k != 1,
                "parameters": options.parameters,
                "state": options.optimizer_state,
                "host": network.address(k),
                "folder": str(folder / f"full{k}"),
                "addresses": addresses,
            }
            peer = Peer("benchmarks.lib.joining_peer", job, name=f"full{k}", folder=folder, prefix=network.run_in(k))
            peers.append(stack.enter_context(peer))
            addresses = addresses or list(_joined(peer)["addresses"])
        coordinator, newcomer, helper = peers
        first, second = ({event["peer"]: event["addresses"]} for event in map(_joined, (coordinator, helper)))
        shown = folder / "shown"
        coordinator.send({"do": "put", "folder": str(shown)})
        digest = coordinator.wait_for("put", deadline=_START_SECONDS)["digest"]

        def run(host: int, *command: str) -> subprocess.Popen[str]:
            started = subprocess.Popen(
                [*network.run_in(host), sys.executable, "-m", *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            stack.callback(started.wait)
            stack.callback(started.kill)
            return started

        server, sink = network.address(2), network.address(3)
        run(2, "http.server", "8000", "--bind", server, "--directory", str(shown))
        ready = run(3, "benchmarks.lib.filling", "sink", sink, "8001").stdout
        assert ready is not None
        ready.readline()
        run(0, "benchmarks.lib.filling", "source", sink, "8001", str(options.full))
        time.sleep(_FILL_SECONDS)
        ways = {
            "from the bucket": {"do": "take", "url": f"http://{server}:8000/", "digest": digest},
            "from both": {"do": "fetch", "donors": first | second},
            "from the coordinator": {"do": "fetch", "donors": first},
        }
        shares: dict[str, list[float]] = {way: [] for way in ways}
        for way, command in ways.items():
            for number in range(options.repeats):
                sent, began = network.bytes_sent(0), time.monotonic()
                newcomer.send(command)
                answer = newcomer.wait_for("fetched", partial(_after, began), _FETCH_SECONDS)
                if not answer["exact"]:
                    raise UserError(f"the state that came {way} is another one; the logs are in {folder}")
                carried = ((network.bytes_sent(0) or 0) - (sent or 0)) * 8e-6 / (time.monotonic() - began)
                shares[way].append(limit / answer["seconds"])
                print(
                    f"  {way:22}{answer['seconds']:>8.2f} s  {shares[way][-1]:.2f} of the newcomer's line; "
                    f"the coordinator's carried {carried:.1f} Mbit/s ({number + 1})",
                    flush=True,
                )
    return {"streams": options.full, "limit": limit, "shares": shares}


def _after(moment: float, event: Event) -> bool:
    return float(event["at"]) > moment


# From the start of the process to the first sample that counts


def _join(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    others = options.volunteers
    batch = round((others + 1) * _STEP_SECONDS / _MICROBATCH_SECONDS) * _MICROBATCH
    optimizer = {
        "learning_rate": 1e-3,
        "warmup_steps": 0,
        "total_steps": 100_000,
        "state_dtype": options.optimizer_state,
    }
    run = simulated_run("joining", int(options.parameters), _MICROBATCH_SECONDS, batch, optimizer=optimizer)
    network = open_network(options.network, 2 + others)
    with ExitStack() as stack:
        stack.enter_context(network)
        coordinator = start_coordinator(run, folder, prefix=network.run_in(0), host=network.address(0))
        stack.enter_context(coordinator)
        invitation = Invitation.of(run, tuple(_joined(coordinator)["addresses"]))

        def volunteer(k: int) -> Peer:
            peer = start_volunteer(
                invitation,
                folder,
                f"volunteer{k}",
                prefix=network.run_in(k),
                host=network.address(k),
                microbatch=_MICROBATCH,
            )
            return stack.enter_context(peer)

        volunteers = [volunteer(1 + k) for k in range(others)]
        for peer in volunteers:
            _joined(peer)
        volunteers[0].wait_for_step(2, _START_SECONDS)
        before = [network.bytes_sent(k) for k in range(1 + others)]
        began = time.monotonic()
        newcomer = volunteer(1 + others)
        joined = newcomer.wait_for("joined", deadline=_FETCH_SECONDS)
        after = [network.bytes_sent(k) for k in range(1 + others)]
        marks = [
            newcomer.wait_for("state", lambda event: event["text"] == "getting ready"),
            newcomer.wait_for("state", lambda event: event["text"] == "connecting"),
            newcomer.wait_for("state", lambda event: event["text"].startswith("loading")),
            joined,
            newcomer.wait_for("progress", deadline=_START_SECONDS),
            newcomer.wait_for("step", lambda event: joined["peer"] in event["contributions"], _START_SECONDS),
        ]
    times = [began, *(mark["at"] for mark in marks)]
    phases = {name: b - a for name, (a, b) in zip(_PHASES, pairwise(times), strict=True)}
    limit = _limit(CASES["one"], options)
    for name, seconds in phases.items():
        note = f"{seconds / limit:.2f} x the limit" if name == "download" and limit else ""
        print(f"  {name:20}{seconds:>8.2f} s  {note}")
    print(f"  {'until it trains':20}{times[-2] - began:>8.2f} s")
    sent = [a - b if a is not None and b is not None else None for a, b in zip(after, before, strict=True)]
    return {"phases": phases, "limit": limit, "sent_by_others": sent}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--parameters", type=float, default=18e6)
    add("--optimizer-state", choices=["float32", "8bit"], default="float32", help="how LAMB keeps its averages")
    add("--network", default="100mbit/60ms", help="rate and round trip (needs root), or loopback")
    add("--repeats", type=int, default=2, help="how often each download is measured")
    add("--cases", nargs="*", choices=CASES, default=list(CASES), help="kinds of downloads")
    add("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    add("--full", type=int, default=0, metavar="STREAMS", help="only: a newcomer beside so many streams, see above")
    add("--volunteers", type=int, default=2, help="how many train already when the newcomer comes")
    add("--no-join", dest="join", action="store_false", help="only the downloads")
    add("--json", type=Path, help="a file for the results")
    options = parser.parse_args()
    read_network(parser, options)
    if options.full and options.network is None:
        parser.error("--full needs a line, such as --network 100mbit/60ms")
    return options


if __name__ == "__main__":
    sys.exit(main())
