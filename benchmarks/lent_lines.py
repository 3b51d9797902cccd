"""How long does a round take with so many clients and helpers, message by message, and what does `dedloc check` say?

A model of who sends what over whose line, in a time of its own: no processor computes anything, so it goes where a
machine cannot go with real peers. Every client sends each part of its vector to whoever reduces it; once all have come
there, the average goes to everybody. Where the swarm makes rows of the members, the roll is called before anything is
averaged, and owners of the same values exchange their rows' means. A line carries one message at a time in each
direction, in turn for each peer that has something on it; at most so many parts of a client are on their way as
`swarm/averaging/streams/window.py` lets it send. Nothing is lost, nobody dies, and introductions and rolls are left
out.
"""

import argparse
import heapq
import itertools
import json
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import torch

from dedloc_kit.learning.train.flat import CHUNK, FlatLayout
from dedloc_kit.organizer.prediction import read_line
from dedloc_kit.organizer.round_time import Line, round_time
from dedloc_kit.swarm.averaging.encoding.codec import codec_of
from dedloc_kit.swarm.averaging.matchmaking.group import Member
from dedloc_kit.swarm.averaging.matchmaking.row_meeting import evened
from dedloc_kit.swarm.averaging.reduction.plan import Plan, balanced
from dedloc_kit.swarm.averaging.streams.window import AHEAD, MIN_AHEAD
from dedloc_kit.swarm.directory.rows import Division, rows_for
from dedloc_kit.swarm.network.kinds import EPOCH

DELAY_SECONDS = 0.03
"""From one peer to another."""
ROLL_DELAYS = 4
"""In rows, from the last gradient on: a head reports, the leader calls the roll, and heads hand it on."""
MOST_PARTS = 256
"""A vector of more is cut into so many: longer parts on all lines alike."""


@dataclass(frozen=True)
class Row:
    clients: int
    helpers: int
    rows: float
    """Of the round, the mean over epochs."""
    predicted_rows: float
    modelled: float
    """Seconds until everybody has all averages, the mean over epochs."""
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
    """Whoever cannot be reached has gradients; the others reduce. Chunks, owners and finishers are the package's own.

    :param rates: bytes a second of each member's line
    :param up: bytes of a value on its way to its owner
    :param down: of an average
    :param mean: of a row's mean on its way to the finisher
    """

    def __init__(self, plan: Plan, rates: Sequence[float], up: float, down: float, mean: float) -> None:
        self.clock, self._plan, self._sizes = Clock(), plan, (up, down, mean)
        self.up, self.down = ([Way(self.clock, rate) for rate in rates] for _ in range(2))
        clients = [member for member, share in enumerate(plan.shares) if not share]
        self._rows, self._deal = range(len(plan.teams)), plan.first
        in_row = Counter(plan.rows[client] for client in clients)
        self._missing = [[in_row[row]] * len(plan.chunks) for row in self._rows]
        self._still = len(clients) * len(plan.chunks)
        self._means = [len(plan.teams)] * len(plan.chunks)
        self._had = 0
        self._left = {client: _in_step(self._deal.owners[plan.rows[client]]) for client in clients}
        for client in clients:
            for _ in range(max(AHEAD, MIN_AHEAD * len(plan.row_reducers[plan.rows[client]]))):
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
            owner = self._deal.owners[self._plan.rows[client]][chunk]
            self._carry(client, owner, chunk, self._sizes[0], lambda: self._arrived(client, chunk))

    def _arrived(self, client: int, chunk: int) -> None:
        self.clock.after(DELAY_SECONDS, lambda: self._send(client))
        row = self._plan.rows[client]
        self._missing[row][chunk] -= 1
        self._still -= 1
        if self._plan.one_row and not self._missing[row][chunk]:
            self._hand_out(0, chunk)  # one group foresees whose parts count
        elif not self._plan.one_row and not self._still:
            self.clock.after(ROLL_DELAYS * DELAY_SECONDS, self._send_means)

    def _send_means(self) -> None:
        for chunk, finisher in enumerate(self._deal.finishers):
            for row in self._rows:
                owner = self._deal.owners[row][chunk]
                self._carry(owner, finisher, chunk, self._sizes[2], partial(self._mean_came, chunk))

    def _mean_came(self, chunk: int) -> None:
        self._means[chunk] -= 1
        if self._means[chunk]:
            return
        finisher = self._deal.finishers[chunk]
        for row in self._rows:
            owner = self._deal.owners[row][chunk]
            self._carry(finisher, owner, chunk, self._sizes[1], partial(self._hand_out, row, chunk))

    def _hand_out(self, row: int, chunk: int) -> None:
        """Its owner has the average of a chunk, and gives it to its row."""
        owner = self._deal.owners[row][chunk]
        for member in self._plan.teams[row]:
            self._carry(owner, member, chunk, self._sizes[1], self._has)

    def _has(self) -> None:
        self._had += 1


def _in_step(owners: Sequence[int]) -> "itertools.chain[int]":
    """The chunks in the order in which a client sends them: to all reducers in step."""
    own = {owner: [chunk for chunk, of in enumerate(owners) if of == owner] for owner in owners}
    places = [((place + 1) / len(chunks), chunk) for chunks in own.values() for place, chunk in enumerate(chunks)]
    return itertools.chain(chunk for _, chunk in sorted(places))


def planned(rates: Sequence[float], clients: int, size: int, epoch: int) -> Plan:
    """What the swarm makes of these members, the clients first, in an epoch: rows are dealt by chance, then evened."""
    peers = [f"peer{number}" for number in range(len(rates))]
    members = {
        peer: Member(peer=peer, bandwidth=rate, client_mode=number < clients, group_size=len(peers))
        for number, (peer, rate) in enumerate(zip(peers, rates, strict=True))
    }
    division = Division(rows_for(len(peers)), epoch * EPOCH)
    rows = evened(members, {peer: division.row_of(peer) for peer in peers})
    numbers = tuple(rows[peer] for peer in peers) if rows else ()
    layout = FlatLayout((torch.Size([size]),), (0,), size, size)
    lines = [0.0 if number < clients else rate for number, rate in enumerate(rates)]
    return Plan(tuple(peers), layout, balanced(size, lines, numbers), numbers)


def compare(clients: int, helpers: int, options: argparse.Namespace) -> Row:
    """A round message by message, and by the formula."""
    codec, size = codec_of(options.compression), int(options.parameters)
    up, down, mean = (way.byte_count(size) for way in (codec.gradients, codec.averages, codec.means))
    values = min(MOST_PARTS * CHUNK, size)
    rates = [options.line] * clients + [options.coordinator] + [options.helper] * helpers
    many = rows_for(len(rates)) > 1
    plans = [planned(rates, clients, values, epoch) for epoch in range(options.epochs if many else 1)]
    different = {plan.rows: plan for plan in plans}
    played = {rows: Round(plan, rates, up / values, down / values, mean / values) for rows, plan in different.items()}
    took = {rows: round_.seconds() for rows, round_ in played.items()}
    modelled = fmean(took[plan.rows] for plan in plans)
    lines = [Line(clients, options.line, reachable=False), Line(1, options.coordinator, reachable=True, gives=False)]
    lines += [Line(helpers, options.helper, reachable=True, gives=False)] * bool(helpers)
    predicted = round_time(lines, up, down)
    busiest = fmean(max(way.bytes for way in played[plan.rows].up[clients:]) for plan in plans)
    rows = fmean(len(plan.teams) for plan in plans)
    return Row(
        clients, helpers, rows, predicted.rows, modelled, predicted.exchanging, predicted.exchanging / modelled, busiest
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--clients", type=int, nargs="+", default=[20, 50, 100])
    add("--helpers", type=int, nargs="+", default=[0, 1, 2, 3, 4, 5])
    add("--parameters", type=float, default=150e6)
    add("--epochs", type=int, default=12, help="where there are rows, into which chance deals the members")
    add("--compression", default="4bit")
    add("--line", type=read_line, default="50mbit", help="of a client, in each direction")
    add("--coordinator", type=read_line, default="100mbit", help="of the coordinator")
    add("--helper", type=read_line, default="1gbit", help="of each helper")
    add("--json", type=Path, metavar="FILE", help="write the results there as well")
    options = parser.parse_args()
    print(f"{'clients':>8}{'helpers':>9}{'rows':>6}{'modelled':>11}{'predicted':>11}{'ratio':>8}{'busiest line':>15}")
    rows = []
    for clients, helpers in itertools.product(options.clients, options.helpers):
        row = compare(clients, helpers, options)
        rows.append(row)
        print(
            f"{clients:8}{helpers:9}{row.rows:6.1f}{row.modelled:9.1f} s{row.predicted:9.1f} s{row.ratio:8.2f}"
            f"{row.busiest_line_bytes / 1e6:12.0f} MB",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
