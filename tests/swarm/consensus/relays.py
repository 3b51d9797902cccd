"""A large group's relays over a network in which each message takes 0.01 s; a test loses or changes them."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import count

from dedloc_kit.swarm.consensus.events import Send
from dedloc_kit.swarm.consensus.letters import Alive, Content, Delivered, Forged, Lost, Outcome, Packet, Post
from dedloc_kit.swarm.consensus.messages import Group, Message, Prepare
from dedloc_kit.swarm.consensus.relay import Relay
from dedloc_kit.swarm.consensus.tree import Tree
from tests.swarm.consensus.table import HEAD, VERIFIER, group, instance, signer

PATIENCE = 4.0
Change = Callable[[str, str, Packet], Packet | None]
WHERE = instance({f"p{number}": 4 for number in range(64)})


def names(first: int, last: int) -> tuple[str, ...]:
    return tuple(f"p{number}" for number in range(first, last))


def tree(rows: int = 4, size: int = 16, reducers: int = 6) -> Tree:
    """In each row the first ones reduce; they rank by their place in the row."""
    teams = tuple(names(row * size, (row + 1) * size) for row in range(rows))
    return Tree(teams, tuple(team[place] for place in range(reducers) for team in teams))


def members_of(where: Tree) -> Group:
    return group(WHERE, " ".join(where.members), " ".join(where.reducers))


class Net:
    """
    :ivar told: of each member the messages that were delivered, with their authors
    :ivar packets: how many packets went from one member to another
    :ivar silent: members whose packets are lost, to them and from them
    """

    def __init__(self, where: Tree, change: Change = lambda source, target, packet: packet) -> None:
        self.tree, self.change, self.now = where, change, 0.0
        self.root = where.reducers[0]
        self.relays = {
            name: Relay(where, HEAD, self.root, signer(name), VERIFIER, PATIENCE, 0.0) for name in where.members
        }
        self.told: dict[str, list[tuple[str, Content]]] = defaultdict(list)
        self.alive: dict[str, Counter[str]] = defaultdict(Counter)
        self.lost: dict[str, list[str]] = defaultdict(list)
        self.forged: list[tuple[str, str]] = []
        self.packets: Counter[tuple[str, str]] = Counter()
        self.silent: set[str] = set()
        self._queue: list[tuple[float, int, str, str, Packet]] = []
        self._count = count()

    def do(self, name: str, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case Post(to, packet):
                    heapq.heappush(self._queue, (self.now + 0.01, next(self._count), name, to, packet))
                case Delivered(author, message):
                    self.told[name].append((author, message))
                    if isinstance(message, Prepare):
                        self.relays[name].follow(author, self.now)
                case Alive(member):
                    self.alive[name][member] += 1
                case Lost(member):
                    self.lost[name].append(member)
                case Forged(member):
                    self.forged.append((name, member))

    def form(self) -> Group:
        """The root tells all the group."""
        made = members_of(self.tree)
        self.do(self.root, self.relays[self.root].tell(made, self.now))
        self.run(0.5)
        return made

    def tell(self, message: Message, author: str = "") -> None:
        author = author or self.root
        sends = [Send(member, message) for member in self.tree.members if member != author]
        self.do(author, self.relays[author].send(sends, self.now))

    def send(self, author: str, message: Message, to: str = "") -> None:
        self.do(author, self.relays[author].send([Send(to or self.root, message)], self.now))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            ticks = ((relay.deadline, name) for name, relay in self.relays.items() if name not in self.silent)
            due, name = min(ticks, default=(until, ""))
            arrival = self._queue[0][0] if self._queue else until
            self.now = max(self.now, min(due, arrival, until))
            if self.now >= until:
                return
            if arrival <= due:
                self._deliver()
            else:
                self.do(name, self.relays[name].tick(self.now))

    def _deliver(self) -> None:
        _, _, source, target, packet = heapq.heappop(self._queue)
        changed = self.change(source, target, packet)
        if changed is None or {source, target} & self.silent:
            return
        self.packets[source, target] += 1
        self.do(target, self.relays[target].receive(source, changed, self.now))

    def heard(self, name: str, kind: type[Content]) -> list[str]:
        """The authors of messages of a kind that came to a member."""
        return [author for author, message in self.told[name] if isinstance(message, kind)]
