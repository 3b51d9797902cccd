"""When a stage peer goes over to another stage, by what all say that they hold; see `blocks.plans.stages` for it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Annotated, Protocol

from hivemind.utils import get_dht_time
from pydantic import BaseModel, Field

from dedloc_kit.blocks.plans.stages import Move, Stage, StagePeer, bare, intend, may_begin
from dedloc_kit.records.record import Digest
from dedloc_kit.records.stages import Stage as StageNumber
from dedloc_kit.records.stages import StageOffer
from dedloc_kit.swarm.pipeline.placing import stage_peers

STATE_BYTES = 12
"""Of a parameter in a stage's state: itself and two moments."""


class Mover(BaseModel):
    """A volunteer on its way from one stage to another, and what it takes along.

    :ivar given: samples that have counted in its session, each by its stage's share of the computation
    :ivar fits: numbers of the stages that its machine holds: nobody waits while it finds out once more
    """

    stage: StageNumber
    session: Digest
    given: Annotated[float, Field(ge=0)]
    fits: tuple[StageNumber, ...]


class Others(Protocol):
    """What all say of themselves; see `swarm.remote.offers.Offers`."""

    @property
    def told(self) -> StageOffer | None: ...

    def others(self) -> Mapping[str, StageOffer]: ...

    def first_seen(self, peer: str, what: object) -> float: ...


class Moving:
    """Asks the plan for one peer. What others announce counts from when it was first seen here.

    :param stages: all of them, as planning sees them
    :param mine: what this peer says of itself
    :param fits: numbers of those that this machine holds
    :param absent: who is gone, as this peer has seen itself, though its record is there
    :ivar intends: what it has announced
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        me: str,
        offers: Others,
        mine: Callable[[], StageOffer],
        fits: frozenset[int] | None = None,
        absent: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self._stages, self._me, self._offers, self._mine, self._fits = stages, me, offers, mine, fits
        self._absent = absent
        self.intends: Move | None = None

    def look(self) -> Move | None:
        """What this peer has to do now; None if it stays for the time being."""
        now = float(get_dht_time())
        self.intends = intend(self._stages, self._peers(now), self._me, now)
        if self.intends is None or not may_begin(self._stages, self._peers(now), self._me, now):
            return None
        return self.intends

    def needed_at(self, stage: int) -> bool:
        """Has nobody else this stage, or is about to?"""
        now = float(get_dht_time())
        others = [peer for peer in self._peers(now) if peer.name != self._me]
        return stage in bare(self._stages, others, now)

    def needed_here(self) -> bool:
        """Is this peer the last one of its stage?"""
        stage = self._mine().stage
        return not any(offer.stage == stage and offer.state == "online" for offer in self._others().values())

    def _others(self) -> dict[str, StageOffer]:
        absent = self._absent()
        return {peer: offer for peer, offer in self._offers.others().items() if peer not in absent}

    def _peers(self, now: float) -> list[StagePeer]:
        offers, clock = self._others(), monotonic()
        others = stage_peers(offers, len(self._stages))
        # As the others know it: whose turn it is must come out alike for all.
        (me,) = stage_peers({self._me: self._offers.told or self._mine()}, len(self._stages))
        found = [replace(me, intends=self.intends, fits=self._fits)]
        for peer in others:
            said = offers[peer.name].moving
            if said is not None and not said.begun:
                seen = now - (clock - self._offers.first_seen(peer.name, said))
                peer = replace(peer, intends=Move(said.stage, max(said.announced, seen)))
            found.append(peer)
        return found
