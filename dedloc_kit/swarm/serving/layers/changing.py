"""When a server changes over to a newer version of its layers: one after the other, and no layer that users need is
left without a server meanwhile."""

import time
from collections.abc import Collection, Mapping, Sequence

from hivemind.utils import get_dht_time

from dedloc_kit.blocks.plans.plan import Intention, LayerRange, may_change, unserved
from dedloc_kit.serving.offer import Moving, Serving
from dedloc_kit.swarm.remote.offers import Offers
from dedloc_kit.swarm.serving.layers.choosing import servers_of, span_of
from dedloc_kit.swarm.serving.server.sessions import Held

RETRY_SECONDS = 60.0
"""After a change that has failed."""


def beside(held: Sequence[Held], used: str, room: bool) -> tuple[Held, ...]:
    """What a server goes on serving with a newer version, of what it holds: one at most, above all what users use.

    :param room: its memory holds another version, beside the one that stays
    """
    return tuple(sorted(held, key=lambda each: each.version != used)[:1]) if room else ()


def may_go(span: LayerRange, going: Collection[str], used: str, offers: Offers[Serving]) -> bool:
    """May a server give up its span in these versions? Not if users would lack a layer of the one that they use."""
    return used not in going or spared(span, used, offers)


def spared(span: LayerRange, used: str, offers: Offers[Serving]) -> bool:
    """Do others serve all of these layers in the version that users use?

    :param used: the digest of its manifest
    """
    return not unserved(span, servers_of(offers.others(), offers, {used}, ready=True))


class Change:
    """Of one server. Versions are named by the digests of their manifests."""

    def __init__(self, me: str, offers: Offers[Serving]) -> None:
        self._me, self._offers = me, offers
        self._mine: Intention | None = None
        self._version = ""
        self._said = 0.0
        self._not_before = 0.0

    def due(self, version: str, span: LayerRange) -> bool:
        """Is it this server's turn to change to this version? It is announced until then; call it now and then."""
        now = time.monotonic()
        if now < self._not_before:
            return False
        if self._mine is None or self._version != version:
            self._mine, self._version = Intention(self._me, span, now), version
            self._said = float(get_dht_time())
            self._offers.tell()
        if not may_change(version, self._mine, self._others(self._offers.others()), now):
            return False
        self._mine = Intention(self._me, span, self._mine.announced, now)
        return True

    def over(self, failed: bool = False) -> None:
        """It has changed, or may not or could not."""
        self._mine = None
        if failed:
            self._not_before = time.monotonic() + RETRY_SECONDS

    def announced(self) -> Moving | None:
        """What this server has to say of it."""
        mine = self._mine
        if mine is None:
            return None
        span, begun = mine.span, mine.begun is not None
        return Moving(begin=span.begin, end=span.end, announced=self._said, begun=begun, version=self._version)

    def _others(self, others: Mapping[str, Serving]) -> list[Intention]:
        """What holds this server back: a change or a move that has begun, and a change to the same version.

        Each counts from when it was first seen, whatever it says of itself since.
        """
        found = []
        for peer, said in others.items():
            moving = said.moving
            if moving is not None and (moving.begun or moving.version == self._version):
                first = self._offers.first_seen(peer, ("change", self._version, moving.begun))
                found.append(Intention(peer, span_of(moving), first, first if moving.begun else None))
        return found
