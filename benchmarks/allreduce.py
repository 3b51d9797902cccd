"""How near does a bare all-reduce come to the wire's limit?

The limit is the time in which a host's line can carry what a butterfly all-reduce must send through it: of N peers
each sends the others their shares of its vector and the average of its own share, 2 (N - 1) / N vectors at the
compression's nominal bits for each value. `over sent` is the same for the bytes that really went through it, headers
included. Finding the group is not part of it: both systems do that ahead. `tcp` is no all-reduce: it only sends as many
bytes between the same hosts, and so shows how near to the limit TCP itself comes. `gloo` is what torch.distributed has
for machines that stand together.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.lib.averaging_peer import BITS
from benchmarks.lib.network import Network, open_network, read_network
from benchmarks.lib.peers import Peer, end_on_signal
from dedloc_kit.errors import UserError

CASES = ("tcp/8bit", "ours/8bit", "ours/4bit", "ours/float16", "hivemind/8bit", "hivemind/float16", "gloo/none")
_ROW = "{:>12} {:18}{:>10}{:>16}{:>10}{:>14}{:>12}{:>12}"
_ATTEMPTS = 5
_START_SECONDS, _ROUND_SECONDS = 180.0, 600.0


def main() -> int:
    options = _parse()
    end_on_signal()
    folder = Path(tempfile.mkdtemp(prefix="dedloc-allreduce-"))
    results = []
    print(f"All-reduce of {options.peers} peers, {options.network_text}")
    print(_ROW.format("parameters", "", "seconds", "(each round)", "limit", "over limit", "sent", "over sent"))
    try:
        for parameters in options.parameters:
            for case in options.cases:
                results.append(_measure(case, int(parameters), options, folder / f"{parameters:.0f}-{case}"))
    except UserError as error:
        print(error, file=sys.stderr)
        if not any(folder.iterdir()):  # no peer has left a log to read
            folder.rmdir()
        return 2
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    shutil.rmtree(folder)
    return 0


def _measure(case: str, parameters: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    kind, compression = case.split("/")
    network = open_network(options.network, options.peers)
    with ExitStack() as stack:
        stack.enter_context(network)
        peers: list[Peer] = []
        addresses, anchor = list[str](), ""
        for k in range(options.peers):
            job = {
                "role": kind,
                "compression": compression,
                "parameters": parameters,
                "peers": options.peers,
                "host": network.address(k),
                "folder": str(folder / f"peer{k}"),
                "addresses": addresses,
                "anchor": anchor,
            }
            name = f"peer{k}"
            peer = Peer("benchmarks.lib.averaging_peer", job, name=name, folder=folder, prefix=network.run_in(k))
            peers.append(stack.enter_context(peer))
            if k == 0:
                first = peer.wait_for("joined", deadline=_START_SECONDS)
                addresses, anchor = first["addresses"], first["anchor"]
        joined = [peer.wait_for("joined", deadline=_START_SECONDS) for peer in peers]
        _tell(peers, "meet", "met", addresses={event["peer"]: event["addresses"] for event in joined})
        rounds = [_round(peers, network) for _ in range(options.warm_up + options.rounds)][options.warm_up :]
    seconds = [round_seconds for round_seconds, _ in rounds]
    told = [sent for _, sent in rounds if sent is not None]
    mean, sent = fmean(seconds), fmean(told) if told else None
    must_cross = 2 * (options.peers - 1) / options.peers * parameters * BITS[compression] / 8
    line = options.network.up_mbit * 1e6 / 8 if options.network else None
    limit, limit_sent = (size / line if line and size else None for size in (must_cross, sent))
    row = _ROW.format(
        parameters,
        case,
        f"{mean:.2f}",
        f"{min(seconds):.2f}..{max(seconds):.2f}",
        f"{limit:.2f}" if limit else "n/a",
        f"{mean / limit:.2f}" if limit else "n/a",
        f"{sent / 1e6:.1f} MB" if sent else "n/a",
        f"{mean / limit_sent:.2f}" if limit_sent else "n/a",
    )
    print(row, flush=True)
    return {"case": case, "parameters": parameters, "seconds": seconds, "limit": limit, "bytes_per_peer": sent}


def _round(peers: list[Peer], network: Any) -> tuple[float, float | None]:
    """Seconds until the last peer has the average, and what a peer sent, on average; raises UserError."""
    for _ in range(_ATTEMPTS):  # now and then a group is found without one of the peers
        _tell(peers, "gather", "gathered")
        before = _sent(network)
        began = time.monotonic()
        answers = _tell(peers, "average", "averaged")
        after = _sent(network)
        if all(answer["members"] == len(peers) for answer in answers):
            sent = (after - before) / len(peers) if after is not None and before is not None else None
            return max(answer["at"] for answer in answers) - began, sent
        print(f"  (again: {', '.join(answer['detail'] or str(answer['members']) for answer in answers)})", flush=True)
    raise UserError(f"{_ATTEMPTS} all-reduces in a row failed; the logs are in {peers[0].log.parent}")


def _tell(peers: list[Peer], command: str, answer: str, **values: Any) -> list[dict[str, Any]]:
    count = sum(event["event"] == answer for event in peers[0].events)
    for peer in peers:
        peer.send({"do": command, **values})
    return [peer.wait_for(answer, deadline=_ROUND_SECONDS, number=count) for peer in peers]


def _sent(network: Any) -> int | None:
    return sum(traffic.sent for traffic in network.traffic()) if isinstance(network, Network) else None


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--peers", type=int, default=4)
    add("--parameters", type=float, nargs="+", default=[18e6, 60e6])
    add("--network", default="100mbit/60ms", help="rate and round trip (needs root), or loopback")
    add("--warm-up", type=int, default=8, help="rounds before: the first connects, in the next ones memory is new")
    add("--rounds", type=int, default=3, help="rounds to measure after them")
    add("--cases", nargs="+", choices=CASES, default=list(CASES))
    add("--json", type=Path, help="a file for the results")
    options = parser.parse_args()
    read_network(parser, options)
    return options


if __name__ == "__main__":
    sys.exit(main())
