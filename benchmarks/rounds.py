"""Does every round of hundreds of peers end although members die, and what does one cost each peer?

The real all-reduce with its agreement, all members in one process, over lines of their own: see lib/lines.py.
There is no libp2p; message for message the same objects go from one to another. A model of 100,000 values in 4 bits
stands for one of 18 million: its parts take as long on the way; entries, votes and commits as long as they would
anyhow. In each round some peers die at a random moment (they fall silent, or break off with --break-off), and as many
come for the next one.

After each round it is checked that all who live have ended it with the same bits, and that these are the average of
those who count, each with its own weight. Seconds of the processor leave out what is only pretended here. What all
peers compute alike (checking a signature) is computed once, and counted for each.
With --processes the rounds are shared out among as many.
"""

import argparse
import asyncio
import itertools
import json
import math
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from benchmarks.lib.lines import Lines, SimulatedTime
from benchmarks.lib.party import Party
from dedloc_kit.learning.train.flat import GRID_CHUNKS, FlatLayout
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.allreduce.wire import Kind
from dedloc_kit.swarm.averaging.entries import new_entry
from dedloc_kit.swarm.consensus.records import Entry, Voter
from dedloc_kit.swarm.network.identity import Identity, Signer
from dedloc_kit.swarm.network.service import Stream
from dedloc_kit.swarm.p2p.adapters import KeySigner, KeyVerifier
from dedloc_kit.swarm.rounds.timing import BANDWIDTH_STEP

VALUES, STANDS_FOR = 100_000, 18_000_000
PART = 4 * VALUES // GRID_CHUNKS
"""Values in one message at most: four times as long as it would be with 18 million, to save time."""
BYTES_PER_VALUE: Mapping[int, float] = {Kind.PART: 4.125 / 8, Kind.AVERAGE: 4.125 / 8}
SLOWEST, FASTEST = 10e6 / 8, 100e6 / 8
"""Bytes per second."""
START = 3.0
"""Seconds more than the patience until a member has begun."""
FIRST_GUESS = 15.0
"""Seconds that a round may take, before there was any: in these its peers die."""
LIMIT = 600.0
"""Simulated seconds after which a round is said not to end."""
LATE = 0.2
"""Seconds within which all begin."""
SAMPLES = (4, 12)
ROUNDS = ((256, 100), (512, 20), (math.inf, 5))
"""Up to how many peers how many rounds."""


def main() -> int:
    options = _parse()
    rows = []
    print(_ROW.format(*_HEAD))
    for count in options.peers:
        row = _measure(count, options)
        rows.append(row)
        print(_ROW.format(*(_shown(row, name) for name in _COLUMNS)), flush=True)
        for trouble in row["troubles"]:
            print(f"    {trouble}")
    if len(rows) > 1:
        first, last = rows[0], rows[-1]
        growth = (f"x{last[n] / first[n]:.2f}" if n in _GROWS and first[n] else "" for n in _COLUMNS[1:])
        print(_ROW.format(f"{first['peers']}->{last['peers']}", *growth))
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    return 0 if all(row["ended"] == row["same_bits"] == row["rounds"] for row in rows) else 1


_COLUMNS = (
    "peers",
    "rounds",
    "ended",
    "same_bits",
    "counted_share",
    "bytes_per_peer",
    "told_bytes_per_peer",
    "messages_per_peer",
    "streams_per_peer",
    "most_streams",
    "cpu_seconds_per_peer",
    "memory_per_peer",
    "modelled_seconds",
)
_HEAD = (
    *("peers", "rounds", "ended", "same bits", "counted", "sent", "of it told", "messages", "streams", "at most"),
    *("CPU", "memory", "modelled"),
)
_ROW = "{:>9}{:>7}{:>7}{:>10}{:>9}{:>10}{:>11}{:>10}{:>9}{:>9}{:>9}{:>9}{:>10}"
_GROWS = frozenset(_COLUMNS[5:])


def _shown(row: dict[str, Any], name: str) -> str:
    value = row[name]
    if name == "counted_share":
        return f"{value:.4f}"
    if ("bytes" in name and name != "same_bits") or name == "memory_per_peer":
        return f"{value / 1e6:.2f} MB"
    if "seconds" in name:
        return f"{value:.3f} s" if name.startswith("cpu") else f"{value:.1f} s"
    return f"{value:.0f}"


@dataclass(frozen=True)
class Peer:
    """Someone with a line.

    :ivar rate: bytes per second, up and down
    :ivar reachable: does it reduce?
    """

    number: int
    rate: float
    reachable: bool

    @property
    def bandwidth(self) -> float:
        """As rounds have shown it: see `AdaptiveTimeouts.bandwidth`."""
        return float(BANDWIDTH_STEP ** round(math.log(self.rate, BANDWIDTH_STEP)))


@dataclass
class Shared:
    """What all peers compute alike, computed once.

    :ivar seconds: what it would have taken all others
    """

    seconds: float = 0.0
    _found: dict[tuple[Any, ...], tuple[Any, float]] = field(default_factory=dict)

    def once(self, key: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
        if key in self._found:
            found, seconds = self._found[key]
            self.seconds += seconds
            return found
        began = time.process_time()
        found = compute()
        self._found[key] = found, time.process_time() - began
        return found


class SharedSigner:
    """Signs for any peer with the same real key: as many bytes and as dear as if each had its own."""

    def __init__(self, peer: str, signer: Signer) -> None:
        self.peer, self._signer = peer, KeySigner(signer)

    def sign(self, content: bytes) -> str:
        return f"{self.peer}+{self._signer.sign(content)}"


class SharedVerifier:
    """Of what any `SharedSigner` has signed."""

    def __init__(self, real: str, shared: Shared) -> None:
        self._real, self._shared, self._verifier = real, shared, KeyVerifier()

    def valid(self, author: str, content: bytes, signature: str) -> bool:
        name, _, real = signature.partition("+")
        valid: bool = self._shared.once((content, real), lambda: self._verifier.valid(self._real, content, real))
        return valid and name == author


class FineLayout(FlatLayout):
    """A flat vector in pieces of at most `PART` values."""

    def pieces(self, begin: int, end: int, length: int) -> Iterator[tuple[int, int]]:
        return super().pieces(begin, end, min(length, PART))


class Crowd(Party):
    """A group of peers with lines, some of whom die."""

    def __init__(
        self,
        peers: Sequence[Peer],
        lines: Lines,
        signer: Signer,
        bandwidths: Sequence[float],
        patience: Patience,
        rng: random.Random,
    ):
        self.peers, self.wires, self.shared = peers, lines, Shared()
        self._real = signer
        self.ended: dict[int, float] = {}
        samples = [rng.randint(*SAMPLES) for _ in peers]
        gradients = _gradients(len(peers), rng.randrange(2**31))
        super().__init__(gradients, samples, compression="4bit", patience=patience, limit=LIMIT)
        self.plan = Plan.of(self.plan.members, FineLayout.of([gradients[0]]), bandwidths, len(peers))
        self._entries = [self._entry(number) for number in range(len(peers))]

    def entry(self, number: int) -> Entry:
        return self._entries[number]

    def signer(self, number: int) -> SharedSigner:
        return SharedSigner(self.plan.members[number], self._real)

    def verifier(self) -> SharedVerifier:
        return SharedVerifier(self._real.peer, self.shared)

    async def connect(self, me: int, number: int) -> tuple[Stream, Stream]:
        here, there = await self.wires.connect(me, number)
        await here.send(wire.introduction(0, self.entry(me)))
        return here, there

    async def serve(self, number: int, sender: int, there: Stream) -> None:
        with suppress(OSError, EOFError):  # as a stream's handler ends
            if number not in self.wires.silent:
                introduction = await there.receive(wire.ENTRY_BYTES)
                await self.members[number].serve(self.plan.members[sender], introduction, there)

    async def begin_late(self, number: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.members[number].complete()
        self.ended[number] = self.wires.time.now

    def silence(self, number: int) -> None:
        """Its line is gone; the others notice nothing."""
        self.wires.silent.add(number)
        self.tasks[number].cancel()
        for lines in self.lines.values():
            for peer, _, _, serving in lines:
                if peer == number:
                    serving.cancel()

    def _entry(self, number: int) -> Entry:
        samples = self.samples[number]
        contribution = Contribution(
            run_id="rounds-0123456789abcdef",
            step=1000,
            session="ab" * 8,
            samples=samples,
            session_samples=1000 * samples,
            loss=1.0,
            name=f"volunteer {number}",
            time=1.7e9,
        )
        voter = Voter(self.plan.members[number], 1)
        return new_entry(self.instance, voter, contribution).signed(self.signer(number))


def _gradients(count: int, seed: int) -> list[Tensor]:
    """Each has values that only it has: in the average they show how much it counts."""
    generator, gradients = torch.Generator().manual_seed(seed), []
    for number in range(count):
        gradient = torch.randn(VALUES, generator=generator) * 0.01
        begin, end = _own(number, count)
        gradient[begin:end] = 1.0
        gradients.append(gradient)
    return gradients


def _own(number: int, count: int) -> tuple[int, int]:
    return number * VALUES // count, (number + 1) * VALUES // count


@dataclass
class Result:
    """What came of one round."""

    ended: bool
    same_bits: bool
    counted: float
    seconds: float
    cpu: float
    pretended: float
    sent: int
    messages: int
    ends: list[int]
    told: int
    left_out: int
    troubles: list[str]


def _measure(count: int, options: argparse.Namespace) -> dict[str, Any]:
    rounds = options.rounds or next(rounds for most, rounds in ROUNDS if count <= most)
    each = [len(range(n, rounds, options.processes)) for n in range(min(options.processes, rounds))]
    if len(each) == 1:
        found = [_simulate(count, rounds, options.seed, options)]
    else:
        with ProcessPoolExecutor(len(each)) as pool:
            tasks = [pool.submit(_simulate, count, n, options.seed + place, options) for place, n in enumerate(each)]
            found = [task.result() for task in tasks]
    results = [result for some, _ in found for result in some]
    return {
        "peers": count,
        "rounds": len(results),
        "ended": sum(result.ended for result in results),
        "same_bits": sum(result.same_bits for result in results),
        "counted_share": fmean(result.counted for result in results),
        "bytes_per_peer": fmean(result.sent for result in results) / count,
        "told_bytes_per_peer": fmean(result.told for result in results) / count,
        "messages_per_peer": fmean(result.messages for result in results) / count,
        "streams_per_peer": fmean(sum(result.ends) for result in results) / count,
        "most_streams": max(max(result.ends) for result in results),
        "cpu_seconds_per_peer": fmean(result.cpu for result in results) / count,
        "memory_per_peer": max(memory for _, memory in found) / count,
        "modelled_seconds": median(result.seconds for result in results),
        "slowest_seconds": max(result.seconds for result in results),
        "left_out": sum(result.left_out for result in results),
        "pretended_seconds": sum(result.pretended for result in results),
        "troubles": [f"round {n}: {why}" for n, result in enumerate(results) for why in result.troubles],
    }


def _simulate(count: int, rounds: int, seed: int, options: argparse.Namespace) -> tuple[list[Result], int]:
    """Some rounds, one after the other, and the memory that they took."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="dedloc-rounds-") as folder:
        signer = Signer(Identity(Path(folder) / "key"))
    rng, numbers = random.Random(seed), itertools.count()
    peers = [_newcomer(next(numbers), rng, n < options.reachable * count) for n in range(count)]
    before, guess, results = _resident(), FIRST_GUESS, list[Result]()
    for _ in range(rounds):
        result, dead = _round(peers, signer, rng, guess, options)
        results.append(result)
        guess = median(result.seconds for result in results)
        gone = [peers[number].reachable for number in sorted(dead)]
        peers = [peer for number, peer in enumerate(peers) if number not in dead]
        peers += [_newcomer(next(numbers), rng, reachable) for reachable in gone]
        if options.verbose:
            print(f"    {count}: {result.seconds:.1f} s, CPU {result.cpu:.1f} s, {result.troubles}", flush=True)
    return results, max(0, _resident() - before)


def _newcomer(number: int, rng: random.Random, reachable: bool) -> Peer:
    """Its line is lognormal, nine in ten between the slowest and the fastest."""
    middle, spread = math.log(SLOWEST * FASTEST) / 2, math.log(FASTEST / SLOWEST) / 2 / 1.645
    rate = min(FASTEST, max(SLOWEST, math.exp(rng.gauss(middle, spread))))
    return Peer(number, rate, reachable)


def _round(
    peers: Sequence[Peer], signer: Signer, rng: random.Random, guess: float, options: argparse.Namespace
) -> tuple[Result, set[int]]:
    """One round, in which some die; who did."""
    simulated = SimulatedTime()
    told = 0

    def size_of(message: bytes) -> int:
        nonlocal told
        if message[0] in BYTES_PER_VALUE and len(message) > 40:
            begin, end = crowd.plan.chunks[int.from_bytes(message[1:5], "big")]
            return math.ceil((end - begin) * STANDS_FOR / VALUES * BYTES_PER_VALUE[message[0]]) + 64
        told += len(message)
        return len(message)

    lines = Lines(simulated, [peer.rate for peer in peers], size_of)
    reducing = {n for n, peer in enumerate(peers) if peer.reachable} or {0}
    bandwidths = [peer.bandwidth if n in reducing else 0.0 for n, peer in enumerate(peers)]
    crowd = Crowd(peers, lines, signer, bandwidths, Patience(options.patience, options.patience + START), rng)
    dead = set(rng.sample(range(len(peers)), round(options.deaths * len(peers) + rng.random() - 0.5)))
    with simulated.running() as runner:
        crowd.shared.seconds = 0.0
        began, start = time.process_time(), simulated.now
        outcomes = runner.run(_meet(crowd, {n: rng.uniform(0.0, guess) for n in dead}, rng, options.break_off))
        cpu = time.process_time() - began
    troubles = [f"peer {n}: {o!r:.300}" for n, o in enumerate(outcomes) if o is not None and n not in dead]
    living = [n for n, outcome in enumerate(outcomes) if outcome is None and n not in dead]
    first = crowd.members[living[0]] if living else None
    same = first is not None and all(crowd.members[n].average == first.average for n in living)
    same = same and all(torch.equal(crowd.averages[n], crowd.averages[living[0]]) for n in living)
    counted, left_out = [], 0
    if first is not None:
        counted = [crowd.plan.members.index(entry.peer) for entry in first.counted]
        left_out = len(set(living) - set(counted))
        troubles += _wrong(crowd, counted, crowd.averages[living[0]])
        troubles += _blamed(crowd, living, dead)
    result = Result(
        ended=len(living) == len(peers) - len(dead),
        same_bits=same and not any("average" in why for why in troubles),
        counted=sum(crowd.samples[n] for n in counted) / sum(crowd.samples),
        seconds=max((crowd.ended[n] for n in living), default=simulated.now) - start,
        cpu=cpu - lines.seconds + crowd.shared.seconds,
        pretended=lines.seconds,
        sent=sum(lines.sent),
        messages=sum(lines.messages),
        ends=lines.ends,
        told=told,
        left_out=left_out,
        troubles=troubles,
    )
    return result, dead


async def _meet(
    crowd: Crowd, deaths: dict[int, float], rng: random.Random, break_off: bool
) -> list[BaseException | None]:
    """With what it ended for each."""
    crowd.prepare()
    loop = asyncio.get_running_loop()
    crowd.tasks = [
        asyncio.create_task(asyncio.wait_for(crowd.begin_late(n, rng.uniform(0.0, LATE)), LIMIT))
        for n in range(len(crowd.peers))
    ]
    for number, seconds in deaths.items():
        loop.call_later(seconds, crowd.kill if break_off else crowd.silence, number)
    outcomes = await crowd.end()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, left = await asyncio.wait(others, timeout=LIMIT)
        if left:
            outcomes += [RuntimeError(f"{len(left)} tasks go on, such as {next(iter(left))!r:.200}")]
    return outcomes


def _wrong(crowd: Crowd, counted: Sequence[int], average: Tensor) -> list[str]:
    """What the average is not, of what it should be within the rounding of 4 bits, there and back."""
    count, weight = len(crowd.peers), sum(crowd.samples[n] for n in counted)
    own = [float(average[slice(*_own(n, count))].mean()) for n in range(count)]
    right = [crowd.samples[n] / weight if n in counted else 0.0 for n in range(count)]
    least = min(crowd.samples) / weight
    return [
        f"in the average peer {n} has the weight {found:.2e} instead of {due:.2e}"
        for n, (found, due) in enumerate(zip(own, right, strict=True))
        if abs(found - due) > 0.5 * (due or least)  # what all others round makes up to 0.3 with 1,024 peers
    ]


def _blamed(crowd: Crowd, living: Sequence[int], dead: set[int]) -> list[str]:
    found = {peer for n in living for peer in crowd.members[n].culprits}
    wrongly = found - {crowd.plan.members[n] for n in dead}
    return [f"{len(wrongly)} who live are blamed, such as {sorted(wrongly)[0]}"] if wrongly else []


def _resident() -> int:
    """The most bytes that this process has ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--peers", type=int, nargs="+", default=[16, 32, 64])
    add("--rounds", type=int, help="so many in any case; 100 up to 256 peers, 20 up to 512, 5 beyond as a rule")
    add("--deaths", type=float, default=0.02, help="the share of peers that die in a round")
    add("--reachable", type=float, default=0.3, help="the share of peers that reduce")
    add("--patience", type=float, default=3.0, help="seconds of silence after which a member is gone")
    add("--break-off", action="store_true", help="whoever dies closes its streams")
    add("--seed", type=int, default=0)
    add("--processes", type=int, default=2)
    add("--verbose", action="store_true", help="tell of each round")
    add("--json", type=Path, help="a file for the results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
