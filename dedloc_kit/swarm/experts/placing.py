"""Who is to hold which experts: a plan that changes as little as it can."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.records import MAX_ASSIGNED_CELLS, MAX_ASSIGNED_HOSTS, NOBODY, Assigned, HostOffer

UNEVEN = 2
"""By so many more experts a host keeps than another one that holds copies of some: then it gives it one of these."""


@dataclass(frozen=True)
class Holder:
    """A host, as it says of itself.

    :ivar room: experts that it can hold
    :ivar keeps: those that answer there
    :ivar copies: those that it stands in for
    :ivar time: when it said so, by its own clock
    """

    room: int = 0
    keeps: Collection[ExpertName] = ()
    copies: Collection[ExpertName] = ()
    time: float = 0.0


@dataclass(frozen=True)
class Plan:
    """By expert; of those that no host is to keep there is nothing."""

    keepers: Mapping[ExpertName, str] = field(default_factory=dict)
    stand_ins: Mapping[ExpertName, str] = field(default_factory=dict)


def plan(names: Sequence[ExpertName], hosts: Mapping[str, Holder], before: Plan) -> Plan:
    """Who was to hold an expert still is, if it is there; else who holds it; else whoever has the most room.

    :param hosts: those that are there and do not leave
    """
    hosts = dict(sorted(hosts.items())[:MAX_ASSIGNED_HOSTS])
    left = {peer: host.room for peer, host in hosts.items()}

    def take(*peers: str | None, besides: str | None = None) -> str | None:
        roomy = max(left, key=lambda peer: (peer != besides, left[peer]), default=None)
        for peer in (*peers, roomy):
            if peer is not None and peer != besides and left.get(peer, 0) > 0:
                left[peer] -= 1
                return peer
        return None

    def has(name: ExpertName, *, kept: bool) -> str | None:
        return next((peer for peer, host in hosts.items() if name in (host.keeps if kept else host.copies)), None)

    keepers, stand_ins = dict[ExpertName, str](), dict[ExpertName, str]()
    for known in (True, False):  # first those that are somewhere already, or newcomers would take their room
        for name in names:
            said = before.keepers.get(name), has(name, kept=True), before.stand_ins.get(name), has(name, kept=False)
            there = [peer for peer in said if peer in hosts]
            if name not in keepers and bool(there) == known and (keeper := take(*there)) is not None:
                keepers[name] = keeper
    for name, keeper in keepers.items():
        stand_in = take(before.stand_ins.get(name), has(name, kept=False), before.keepers.get(name), besides=keeper)
        if stand_in is not None:
            stand_ins[name] = stand_in
    _even(hosts, keepers, stand_ins)
    return Plan(keepers, stand_ins)


def _even(hosts: Mapping[str, Holder], keepers: dict[ExpertName, str], stand_ins: dict[ExpertName, str]) -> None:
    """Keeper and stand-in of an expert change places, which costs next to nothing."""
    count = {peer: sum(keeper == peer for keeper in keepers.values()) for peer in hosts}
    for name, stand_in in list(stand_ins.items()):
        keeper = keepers[name]
        if name in hosts[stand_in].copies and count[keeper] - count[stand_in] >= UNEVEN:
            keepers[name], stand_ins[name] = stand_in, keeper
            count[keeper], count[stand_in] = count[keeper] - 1, count[stand_in] + 1


class Planner:
    """The organizer's: follows what hosts say, and plans anew.

    :param bytes_each: of an expert, where it is held
    :ivar plan: the newest one
    :ivar stale: hosts that had something before the run went back, and say so still
    """

    def __init__(self, names: Sequence[ExpertName], bytes_each: int) -> None:
        # More do not fit into a record: then the organizer's machine has them all.
        self._names, self._bytes = names if len(names) <= MAX_ASSIGNED_CELLS else (), bytes_each
        self.plan = Plan()
        self.said: Assigned | None = None
        self.stale: set[str] = set()

    def begin_anew(self, holders: Mapping[str, Holder]) -> None:
        """The run goes back to an earlier state: what hosts hold is of the one that it has left."""
        self.plan = Plan()
        self.stale = {peer for peer, holder in holders.items() if holder.keeps or holder.copies}

    def look(self, offers: Mapping[str, HostOffer], holders: Mapping[str, Holder]) -> None:
        """Plan by what hosts say and have."""
        self.stale = {peer for peer in self.stale & holders.keys() if holders[peer].keeps or holders[peer].copies}
        there = {
            peer: replace(holders[peer], room=offer.room // self._bytes)
            for peer, offer in offers.items()
            if offer.state == "online" and offer.room and peer in holders and peer not in self.stale
        }
        self.plan = plan(self._names, there, self.plan)
        self.said = assigned(self.plan, self._names, [peer for peer in holders if peer in offers and offers[peer].room])


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
