"""How a pipeline stands: who holds which of its stages, who drives, and what limits it."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, Field

from dedloc_kit.config.parts import MAX_STAGES
from dedloc_kit.records.record import Count, PeerId, PeerText

HOLDING_STATES = ("online", "moving")
"""In these a peer computes the stage that it names."""
MAX_TOLD = 200
"""Peers of one stage, and drivers, that are told one by one."""
EVEN = 0.9
"""Where the slowest stage passes so much of what the fastest does, none limits the run."""
AGREEING = 2
"""Drivers that have to say that a peer answers wrongly before the organizer is called: one alone may say anything."""

State = Literal["joining", "online", "moving", "leaving"]
StageNumber = Annotated[int, Field(ge=0, lt=MAX_STAGES)]
MAX_RATE, MAX_COUNT = 1e9, 2**53
Rate = Annotated[float, Field(ge=0, le=MAX_RATE)]
"""Microbatches a second."""


class StagePeerSeen(BaseModel):
    """A stage peer, as it says itself."""

    peer: PeerId
    name: PeerText
    state: State
    microbatches_per_second: Rate
    """0 before it is measured."""
    queue: Count
    """Calls that wait."""
    served: Count
    """Samples through its stage in this session."""
    moving_to: StageNumber | None = None
    """The stage that it goes over to, or means to."""
    accusers: Count = 0
    """Drivers that say that it answers wrongly."""


class StageSeen(BaseModel):
    """A stage and its peers: who hold it first, the fastest ones first, no more than MAX_TOLD."""

    number: StageNumber
    peers: Annotated[tuple[StagePeerSeen, ...], Field(max_length=MAX_TOLD)]
    holders: Count
    """Who hold it and compute, all of them."""
    throughput: Rate
    """Of all who hold it."""
    queue: Count
    """Calls that wait at all who hold it."""
    forward: Count = 0
    """Microbatches that are there, or on their way there, as all drivers say together: those that go forward."""
    backward: Count = 0
    """Those that come back."""
    step: Count
    """The global step that half of those who hold it have reached: one alone may say anything."""


class DriverSeen(BaseModel):
    """Who sends microbatches through all stages, as it says itself."""

    peer: PeerId
    name: PeerText
    driven: Count
    """Samples in this session."""
    begun: Count
    """Samples for the next global step."""


class Moved(Protocol):
    @property
    def stage(self) -> int: ...


class Begun(Protocol):
    @property
    def samples(self) -> int: ...


class Offered(Protocol):
    """What a peer of a pipeline says of itself."""

    @property
    def name(self) -> str: ...

    @property
    def stage(self) -> int | None: ...

    @property
    def state(self) -> State: ...

    @property
    def step(self) -> int: ...

    @property
    def microbatches_per_second(self) -> float: ...

    @property
    def queue(self) -> int: ...

    @property
    def served(self) -> int: ...

    @property
    def moving(self) -> Moved | None: ...

    @property
    def accuses(self) -> Sequence[str]: ...

    @property
    def driven(self) -> int: ...

    @property
    def begun(self) -> Begun | None: ...

    @property
    def in_flight(self) -> Sequence[tuple[int, int]]: ...


def stages_seen(offers: Mapping[str, Offered], count: int) -> tuple[StageSeen, ...]:
    """All stages with their peers; what names a stage that there is not counts nowhere.

    :param offers: by peer
    :param count: how many stages there are
    """
    found, accusers = [], _accusers(offers)
    told = [offer.in_flight for offer in offers.values() if offer.begun is not None]
    for number in range(count):
        here = [(peer, offer) for peer, offer in offers.items() if offer.stage == number]
        here.sort(key=lambda item: (item[1].state not in HOLDING_STATES, -item[1].microbatches_per_second, item[0]))
        coming = [stages[number] for stages in told if number < len(stages)]
        holding = [offer for _, offer in here if offer.state in HOLDING_STATES]
        found.append(
            StageSeen(
                number=number,
                peers=tuple(_stage_peer(peer, offer, count, accusers[peer]) for peer, offer in here[:MAX_TOLD]),
                holders=len(holding),
                throughput=min(MAX_RATE, sum(offer.microbatches_per_second for offer in holding)),
                queue=min(MAX_COUNT, sum(offer.queue for offer in holding)),
                forward=sum(forward for forward, _ in coming),
                backward=sum(backward for _, backward in coming),
                step=statistics.median_low([offer.step for offer in holding] or [0]),
            )
        )
    return tuple(found)


def _stage_peer(peer: str, offer: Offered, count: int, accusers: int) -> StagePeerSeen:
    to = None if offer.moving is None or offer.moving.stage >= count else offer.moving.stage
    return StagePeerSeen(
        peer=peer,
        name=offer.name,
        state=offer.state,
        microbatches_per_second=offer.microbatches_per_second,
        queue=offer.queue,
        served=offer.served,
        moving_to=to,
        accusers=accusers,
    )


def _accusers(offers: Mapping[str, Offered]) -> Counter[str]:
    """How many drivers say of a peer that it answers wrongly; each counts once, however often it says so."""
    return Counter(peer for offer in offers.values() if offer.begun is not None for peer in set(offer.accuses))


def drivers_seen(offers: Mapping[str, Offered]) -> tuple[DriverSeen, ...]:
    """Who drives, most samples first, no more than MAX_TOLD."""
    driving = [
        DriverSeen(peer=peer, name=offer.name, driven=offer.driven, begun=offer.begun.samples)
        for peer, offer in offers.items()
        if offer.begun is not None
    ]
    return tuple(sorted(driving, key=lambda driver: (-driver.driven, driver.peer))[:MAX_TOLD])


def held_by(holders: int, stages: Sequence[StageSeen]) -> tuple[int, ...]:
    """The stages that just so many peers hold."""
    return tuple(stage.number for stage in stages if stage.holders == holders)


def accused(stages: Sequence[StageSeen]) -> tuple[tuple[int, StagePeerSeen], ...]:
    """Of whom several drivers say that they answer wrongly, each with its stage; of whom most say so first."""
    found = [(stage.number, peer) for stage in stages for peer in stage.peers if peer.accusers >= AGREEING]
    return tuple(sorted(found, key=lambda each: (-each[1].accusers, each[1].peer)))


def named(stages: Sequence[int], count: int) -> str:
    """Some of so many stages, in a sentence."""
    return f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))} of {count}"


def throughput(stages: Sequence[StageSeen]) -> float:
    """Microbatches a second that the whole pipeline passes: those of its slowest stage."""
    return min((stage.throughput for stage in stages), default=0.0)


def limiting(stages: Sequence[StageSeen]) -> tuple[int, ...]:
    """The stages that limit the run: those that nobody holds, else the slowest, unless all pass about the same."""
    bare = held_by(0, stages)
    if bare:
        return bare
    slowest, fastest = _ends(stages)
    return (slowest.number,) if 0 < slowest.throughput < EVEN * fastest.throughput else ()


def bottleneck(stages: Sequence[StageSeen]) -> str:
    """What limits the run, in a sentence; what its fastest stage passes stands beside what the slowest does."""
    limits, (slowest, fastest), count = limiting(stages), _ends(stages), len(stages)
    if not slowest.holders:
        return f"{named(limits, count)} {'has' if len(limits) == 1 else 'have'} nobody"
    if limits:
        passed = f"{_rate(slowest.throughput)} of {_rate(fastest.throughput)} microbatches/s"
        return f"{named(limits, count)} limits the run: {passed}"
    if not slowest.throughput:
        return f"{named([slowest.number], count)} is not measured yet"
    return f"no stage limits the run: each passes {_rate(slowest.throughput)} microbatches/s or more"


def _ends(stages: Sequence[StageSeen]) -> tuple[StageSeen, StageSeen]:
    """The slowest stage, before others one that nobody holds, and the fastest."""
    ordered = sorted(stages, key=lambda stage: (stage.throughput, stage.holders))
    return ordered[0], ordered[-1]


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
