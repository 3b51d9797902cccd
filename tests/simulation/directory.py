"""A directory in the simulated world that behaves as hivemind's: replicas at peers, stale, lossy and slow.

Each record lies at a few nodes near its key, and nodes are peers: one that dies takes its copies along, one that is new
has none, one that is cut off is waited for. Its author replaces a record only with one that expires later.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from typing import Any

from tests.simulation.world import World

REPLICAS = 4
NODE_SECONDS = 2.0
"""Until a node that does not answer is given up, and for how long it is then not asked."""
AVOIDED = 10.0
RECORD_BYTES = 700


@dataclass(frozen=True)
class Entry:
    value: Any
    expires: float


class Directory:
    """One key of it.

    :ivar lost: how often a node misses a store
    :ivar slow: how often a look takes some seconds
    :ivar nodes: peers that others reach
    """

    def __init__(self, world: World, reachable: Callable[[str, str], bool], clock: Callable[[str], float]) -> None:
        self._world, self._reachable, self._clock = world, reachable, clock
        self.lost = self.slow = 0.0
        self.nodes: list[str] = []
        self._copies: dict[str, dict[str, Entry]] = defaultdict(dict)
        self._avoid: dict[tuple[str, str], float] = {}

    def add_node(self, name: str) -> None:
        """It is new, and holds nothing."""
        self._copies[name] = {}
        if name not in self.nodes:
            self.nodes.append(name)
            self.nodes.sort(key=lambda node: sha256(node.encode()).digest())

    def _nearest(self, me: str) -> tuple[list[str], float]:
        """Nodes that answer, and the seconds that went by with those that did not."""
        found: list[str] = []
        waited = 0.0
        for node in self.nodes:
            if self._avoid.get((me, node), -inf) > self._world.now:
                continue
            if node == me or self._reachable(me, node):
                found.append(node)
            else:
                waited = NODE_SECONDS  # several are asked at once
                self._avoid[me, node] = self._world.now + AVOIDED
            if len(found) == REPLICAS:
                break
        return found, waited

    def put(self, me: str, value: Any, expires: float) -> None:
        """:param value: None if the peer leaves"""
        nodes, waited = self._nearest(me)
        for node in nodes:
            if self._world.random.random() >= self.lost:
                self._world.after(waited + self._delay(me, 1), self._stored, node, me, Entry(value, expires))

    def _stored(self, node: str, author: str, entry: Entry) -> None:
        there = self._copies[node].get(author)
        if there is None or entry.expires > there.expires:
            self._copies[node][author] = entry

    def look(self, me: str, wide: bool, then: Callable[[dict[str, Any] | None], None]) -> None:
        """Values by author; None if no node answers.

        :param wide: several nodes are asked, and their newest entries count; else the nearest one alone
        """
        nodes, waited = self._nearest(me)
        size = sum(len(self._copies[node]) for node in nodes[: None if wide else 1])
        seconds = waited + self._delay(me, size)
        if self._world.random.random() < self.slow:
            seconds += self._world.random.uniform(1, 8)
        self._world.after(seconds, self._looked, me, nodes if wide else nodes[:1], then)

    def _looked(self, me: str, nodes: list[str], then: Callable[[dict[str, Any] | None], None]) -> None:
        now, newest = self._clock(me), dict[str, Entry]()
        for node in nodes:
            for author, entry in self._copies[node].items():
                if entry.expires > now and (author not in newest or entry.expires > newest[author].expires):
                    newest[author] = entry
        then({author: entry.value for author, entry in sorted(newest.items())} if nodes else None)

    def _delay(self, me: str, records: int) -> float:
        line = self._world.lines[me]
        return self._world.random.uniform(0.05, 0.3) + 4 * line.delay + records * RECORD_BYTES / line.down
