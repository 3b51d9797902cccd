"""How long does a round take with so many clients and helpers, message by message, and what does `dedloc check` say?

A model of who sends what over whose line, in a time of its own: no processor computes anything, so it goes where a
machine cannot go with real peers. Every client sends each part of its vector to whoever reduces it; once all have come
there, the average goes to everybody. A line carries one message at a time in each direction, in turn for each peer that
has something on it; at most so many parts of a client are on their way as `swarm/allreduce/window.py` lets it
send. Nothing is lost, nobody dies, and introductions and votes are left out.
"""

import argparse
import heapq
import itertools
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from dedloc_kit.learning.train.flat import CHUNK, FlatLayout
from dedloc_kit.organizer.prediction import read_line
from dedloc_kit.organizer.round_time import Line, round_time
from dedloc_kit.swarm.allreduce.encoding.codec import codec_of
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.allreduce.window import AHEAD, MIN_AHEAD

DELAY_SECONDS = 0.03
"""From one peer to another."""
MOST_PARTS = 256
"""A vector of more is cut into so many: longer parts on all lines alike."""


@dataclass(frozen=True)
class Row:
    clients: int
    helpers: int
    modelled: float
    """Seconds until everybody has all averages."""
    predicted: float
    """Of `organizer/round_time.py`, without what is told."""
    ratio: float
    busiest_line_bytes: float
    """What the coordinator, or a helper, sends at most."""


class Clock:
    """What happens when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._next: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._next, (self.now + seconds, next(self._order), do))

    def run(self) -> None:
        """Until nothing more is to happen."""
        while self._next:
            self.now, _, do = heapq.heappop(self._next)
            do()


class Way:
    """One direction of a line: a message at a time, in turn for each peer at the other end."""

    def __init__(self, clock: Clock, rate: float) -> None:
        self._clock, self._rate, self.bytes = clock, rate, 0.0
        self._waiting: dict[int, deque[tuple[float, Callable[[], None]]]] = {}
        self._busy = False

    def put(self, peer: int, size: float, then: Callable[[], None]) -> None:
        self.bytes += size
        self._waiting.setdefault(peer, deque()).append((size, then))
        if not self._busy:
            self._go_on()

    def _go_on(self) -> None:
        self._busy = bool(self._waiting)
        if not self._busy:
            return
        peer = next(iter(self._waiting))
        queue = self._waiting.pop(peer)
        size, then = queue.popleft()
        if queue:
            self._waiting[peer] = queue  # behind all others

        def through() -> None:
            then()
            self._go_on()

        self._clock.after(size / self._rate, through)


class Round:
    """Clients have gradients; the others reduce. Chunks and owners are the package's own.

    :param rates: bytes a second of each member's line
    :param up: bytes of a value on its way to its owner
    :param down: of an average
    """

    def __init__(self, plan: Plan, rates: Sequence[float], up: float, down: float) -> None:
        self.clock, self._plan, self._sizes = Clock(), plan, (up, down)
        self.up, self.down = ([Way(self.clock, rate) for rate in rates] for _ in range(2))
        clients = [member for member, share in enumerate(plan.shares) if not share]
        self._missing = [len(clients)] * len(plan.chunks)
        self._had = 0
        self._left = {client: _in_step(plan.first.makers) for client in clients}
        for client in clients:
            for _ in range(max(AHEAD, MIN_AHEAD * len(plan.reducers))):
                self._send(client)

    def seconds(self) -> float:
        self.clock.run()
        assert self._had == len(self.up) * len(self._plan.chunks)
        return self.clock.now

    def _carry(self, sender: int, receiver: int, chunk: int, size: float, then: Callable[[], None]) -> None:
        begin, end = self._plan.chunks[chunk]

        def arrive() -> None:
            self.clock.after(DELAY_SECONDS, lambda: self.down[receiver].put(sender, size * (end - begin), then))

        if sender == receiver:
            then()
        else:
            self.up[sender].put(receiver, size * (end - begin), arrive)

    def _send(self, client: int) -> None:
        """The next chunk, as soon as another has come."""
        chunk = next(self._left[client], None)
        if chunk is not None:
            owner = self._plan.first.makers[chunk]
            self._carry(client, owner, chunk, self._sizes[0], lambda: self._arrived(client, chunk))

    def _arrived(self, client: int, chunk: int) -> None:
        self.clock.after(DELAY_SECONDS, lambda: self._send(client))
        self._missing[chunk] -= 1
        if not self._missing[chunk]:  # whose parts count is foreseen
            owner = self._plan.first.makers[chunk]
            for member in range(len(self.up)):
                self._carry(owner, member, chunk, self._sizes[1], self._has)

    def _has(self) -> None:
        self._had += 1


def _in_step(owners: Sequence[int]) -> "itertools.chain[int]":
    """The chunks in the order in which a client sends them: to all reducers in step."""
    own = {owner: [chunk for chunk, of in enumerate(owners) if of == owner] for owner in owners}
    places = [((place + 1) / len(chunks), chunk) for chunks in own.values() for place, chunk in enumerate(chunks)]
    return itertools.chain(chunk for _, chunk in sorted(places))


def planned(rates: Sequence[float], clients: int, size: int) -> Plan:
    """What the swarm makes of these members, the clients first."""
    peers = tuple(f"peer{number}" for number in range(len(rates)))
    lines = [0.0 if number < clients else rate for number, rate in enumerate(rates)]
    return Plan.of(peers, FlatLayout((torch.Size([size]),), (0,), size, size), lines)


def compare(clients: int, helpers: int, options: argparse.Namespace) -> Row:
    """A round message by message, and by the formula."""
    codec, size = codec_of(options.compression), int(options.parameters)
    up, down = (way.byte_count(size) for way in (codec.gradients, codec.averages))
    values = min(MOST_PARTS * CHUNK, size)
    rates = [options.line] * clients + [options.coordinator] + [options.helper] * helpers
    played = Round(planned(rates, clients, values), rates, up / values, down / values)
    modelled = played.seconds()
    lines = [Line(clients, options.line, reachable=False), Line(1, options.coordinator, reachable=True, gives=False)]
    lines += [Line(helpers, options.helper, reachable=True, gives=False)] * bool(helpers)
    predicted = round_time(lines, up, down)
    busiest = max(way.bytes for way in played.up[clients:])
    return Row(clients, helpers, modelled, predicted.exchanging, predicted.exchanging / modelled, busiest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--clients", type=int, nargs="+", default=[20, 50, 100])
    add("--helpers", type=int, nargs="+", default=[0, 1, 2, 3, 4, 5])
    add("--parameters", type=float, default=150e6)
    add("--compression", default="4bit")
    add("--line", type=read_line, default="50mbit", help="of a client, in each direction")
    add("--coordinator", type=read_line, default="100mbit", help="of the coordinator")
    add("--helper", type=read_line, default="1gbit", help="of each helper")
    add("--json", type=Path, metavar="FILE", help="write the results there as well")
    options = parser.parse_args()
    print(f"{'clients':>8}{'helpers':>9}{'modelled':>11}{'predicted':>11}{'ratio':>8}{'busiest line':>15}")
    rows = []
    for clients, helpers in itertools.product(options.clients, options.helpers):
        row = compare(clients, helpers, options)
        rows.append(row)
        print(
            f"{clients:8}{helpers:9}{row.modelled:9.1f} s{row.predicted:9.1f} s{row.ratio:8.2f}"
            f"{row.busiest_line_bytes / 1e6:12.0f} MB",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
