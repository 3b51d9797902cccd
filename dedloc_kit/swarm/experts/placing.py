"""Who is to hold which experts: a plan that changes as little as it can."""

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.records.experts import MAX_ASSIGNED_CELLS, MAX_ASSIGNED_HOSTS, NOBODY, Assigned, HostOffer

FASTER = 4.0
"""So many times as many experts, and no more, a host keeps for its line, and so many times fewer: the median is 1. Its
speed is what it says itself."""
CHANGED = 2.0
"""A line that is so many times faster or slower than it was counts as another one: a measurement that varies moves
nothing."""
STEADY_SECONDS = 600.0
"""And not sooner than so long after it last did: what is told while an expert moves may be lost."""


@dataclass(frozen=True)
class Holder:
    """A host, as it says of itself.

    :ivar room: experts that it can hold
    :ivar keeps: those that answer there
    :ivar copies: those that it stands in for
    :ivar line: how many it keeps beside one with 1.0, for its line; in a plan alone, as the next
    :ivar new: it has just come
    :ivar time: when it said so, by its own clock
    """

    room: int = 0
    keeps: Collection[ExpertName] = ()
    copies: Collection[ExpertName] = ()
    line: float = 1.0
    new: bool = False
    time: float = 0.0


@dataclass(frozen=True)
class Plan:
    """By expert; of those that no host is to keep there is nothing."""

    keepers: Mapping[ExpertName, str] = field(default_factory=dict)
    stand_ins: Mapping[ExpertName, str] = field(default_factory=dict)


def plan(names: Sequence[ExpertName], hosts: Mapping[str, Holder], before: Plan) -> Plan:
    """Who was to hold an expert still is, if it is there; else who holds it; else whoever keeps the fewest for its
    line, or, of copies, has the most room.

    Who is new keeps nothing, unless it stands in for a host that is gone.

    :param hosts: those that are there and do not leave
    """
    hosts = dict(sorted(hosts.items())[:MAX_ASSIGNED_HOSTS])
    left = {peer: host.room for peer, host in hosts.items()}
    kept = Counter[str]()

    def load(peer: str, more: int = 0) -> float:
        return (kept[peer] + more) / hosts[peer].line

    def take(known: Iterable[str | None], best: Callable[[str], float], besides: str | None = None) -> str | None:
        """The first of these that has room, else of all that have the one for which this is the lowest."""
        found = next((peer for peer in known if peer is not None and peer != besides and left.get(peer, 0)), None)
        if found is None:
            roomy = (peer for peer, room in left.items() if room and peer != besides and best(peer) < math.inf)
            found = min(roomy, key=best, default=None)
        if found is not None:
            left[found] -= 1
        return found

    keeps = {name: peer for peer, host in hosts.items() for name in host.keeps}
    copies = {name: peer for peer, host in hosts.items() for name in host.copies}
    keepers, stand_ins = dict[ExpertName, str](), dict[ExpertName, str]()
    for known in (True, False):  # first those that are somewhere already, or newcomers would take their room
        for name in names:
            there = [before.keepers.get(name), keeps.get(name)]
            for peer in (before.stand_ins.get(name), copies.get(name)):
                if peer in hosts and not (hosts[peer].new and before.keepers.get(name) is None):
                    there.append(peer)
            if name not in keepers and any(peer in hosts for peer in there) == known:
                keeper = take(there, lambda peer: math.inf if hosts[peer].new else load(peer, 1))
                if keeper is not None:
                    keepers[name] = keeper
                    kept[keeper] += 1
    for name in names:
        there = [before.stand_ins.get(name), copies.get(name), before.keepers.get(name)]
        if (stand_in := take(there, lambda peer: -left[peer], besides=keepers.get(name))) is not None:
            stand_ins[name] = stand_in
    for name, stand_in in stand_ins.items():  # they change places, which costs next to nothing
        other = keepers.get(name)
        may = name in hosts[stand_in].copies and not hosts[stand_in].new
        if may and other is not None and load(other) > load(stand_in, 1):
            keepers[name], stand_ins[name] = stand_in, other
            kept[other], kept[stand_in] = kept[other] - 1, kept[stand_in] + 1
    return Plan(keepers, stand_ins)


class Planner:
    """The organizer's: follows what hosts say, and plans anew.

    :param bytes_each: of an expert, where it is held
    :ivar plan: the newest one
    :ivar stale: hosts that had something before the run went back, and say so still
    """

    def __init__(
        self, names: Sequence[ExpertName], bytes_each: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # More do not fit into a record: then the organizer's machine has them all.
        self._names, self._bytes = names if len(names) <= MAX_ASSIGNED_CELLS else (), bytes_each
        self.plan = Plan()
        self.said: Assigned | None = None
        self.stale: set[str] = set()
        self._clock = clock
        self._lines: dict[str, tuple[float, float]] = {}
        """What each host is to keep for its line beside others, and since when."""

    def begin_anew(self, holders: Mapping[str, Holder]) -> None:
        """The run goes back to an earlier state: what hosts hold is of the one that it has left."""
        self.plan = Plan()
        self.stale = {peer for peer, holder in holders.items() if holder.keeps or holder.copies}

    def look(
        self,
        offers: Mapping[str, HostOffer],
        holders: Mapping[str, Holder],
        lines: Mapping[str, float | None],
        new: Collection[str],
    ) -> None:
        """Plan by what hosts say and have.

        :param lines: bytes per second that they have sent, as far as that is known
        :param new: hosts that have just come
        """
        self.stale = {peer for peer in self.stale & holders.keys() if holders[peer].keeps or holders[peer].copies}
        self._measured({peer: line for peer in holders if (line := lines.get(peer))})
        there = {
            peer: replace(
                holders[peer],
                room=offer.room // self._bytes,
                line=self._lines.get(peer, (1.0, 0.0))[0],
                new=peer in new,
            )
            for peer, offer in offers.items()
            if offer.state == "online" and offer.room and peer in holders and peer not in self.stale
        }
        self.plan = plan(self._names, there, self.plan)
        self.said = assigned(self.plan, self._names, [peer for peer in holders if peer in offers and offers[peer].room])

    def _measured(self, lines: Mapping[str, float]) -> None:
        usual = statistics.median(lines.values()) if lines else 0.0
        self._lines = {peer: known for peer, known in self._lines.items() if peer in lines}
        for peer, line in lines.items():
            share, now = min(FASTER, max(1 / FASTER, line / usual)), self._clock()
            known, since = self._lines.get(peer, (0.0, -math.inf))
            if not known / CHANGED < share < known * CHANGED and now > since + STEADY_SECONDS:
                self._lines[peer] = share, now


def assigned(made: Plan, names: Sequence[ExpertName], named: Collection[str]) -> Assigned:
    """As the organizer's record has it.

    :param named: hosts that it is to name in any case: those that still hold what others are to have
    """
    used = {*made.keepers.values(), *made.stand_ins.values()}
    hosts = [*sorted(used), *sorted(set(named) - used)][:MAX_ASSIGNED_HOSTS]
    places = {peer: place for place, peer in enumerate(hosts)}
    return Assigned(
        hosts=tuple(hosts),
        keepers=bytes(places.get(made.keepers.get(name, ""), NOBODY) for name in names),
        stand_ins=bytes(places.get(made.stand_ins.get(name, ""), NOBODY) for name in names),
    )


def plan_of(said: Assigned | None, names: Sequence[ExpertName]) -> Plan:
    """What a record says."""
    if said is None:
        return Plan()

    def read(places: bytes) -> dict[ExpertName, str]:
        return {name: said.hosts[place] for name, place in zip(names, places, strict=False) if place != NOBODY}

    return Plan(read(said.keepers), read(said.stand_ins))
