"""How all experts of a run stand, by what their hosts say and the organizer lets them have."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dedloc_kit.config.parts import ExpertsConfig
from dedloc_kit.events import ExpertsState
from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.experts_state import ExpertHost, ExpertLayer
from dedloc_kit.records.experts import MAX_ASSIGNED_CELLS
from dedloc_kit.swarm.experts.placing import Holder, Plan


@dataclass(frozen=True)
class Told:
    """What a host says.

    :ivar tokens: that went to experts which it keeps, in the last finished global step
    """

    name: str
    holder: Holder
    tokens: Mapping[ExpertName, int] = field(default_factory=dict)


def standing(
    settings: ExpertsConfig, names: Sequence[ExpertName], hosts: Mapping[str, Told], plan: Plan, organizer: str
) -> ExpertsState:
    """Where several say that they keep an expert, it is the one that is to.

    :param names: all experts of the run, in their order
    :param hosts: by peer, those alone that the organizer lets have some
    """
    if len(names) > MAX_ASSIGNED_CELLS:
        return ExpertsState(grid=settings.grid, layers=(), hosts=())
    keeping, having = defaultdict[ExpertName, list[str]](list), defaultdict[ExpertName, list[str]](list)
    for peer, told in hosts.items():
        for name in told.holder.keeps:
            keeping[name].append(peer)
        for name in {*told.holder.keeps, *told.holder.copies}:
            having[name].append(peer)
    keepers = {name: min(peers, key=_first(plan.keepers.get(name, organizer))) for name, peers in keeping.items()}
    stand_ins = {
        name: min(others, key=_first(plan.stand_ins.get(name, "")))
        for name, peers in having.items()
        if (others := [peer for peer in peers if peer != keepers.get(name)])
    }
    used = sorted({*keepers.values(), *stand_ins.values()})
    places = {peer: place for place, peer in enumerate(used)}

    def told_of(layer: int) -> ExpertLayer:
        cells = [name for name in names if name.layer == layer]
        return ExpertLayer(
            layer=layer,
            keepers=tuple(places.get(keepers.get(name, "")) for name in cells),
            stand_ins=tuple(places.get(stand_ins.get(name, "")) for name in cells),
            tokens=tuple(hosts[keepers[name]].tokens.get(name, 0) if name in keepers else 0 for name in cells),
        )

    return ExpertsState(
        grid=settings.grid,
        layers=tuple(map(told_of, settings.layers)),
        hosts=tuple(
            ExpertHost(
                peer=peer,
                name=hosts[peer].name,
                organizer=peer == organizer,
                kept=sum(keeper == peer for keeper in keepers.values()),
                copies=sum(stand_in == peer for stand_in in stand_ins.values()),
            )
            for peer in used
        ),
    )


def _first(wanted: str) -> Callable[[str], tuple[bool, str]]:
    return lambda peer: (peer != wanted, peer)
