"""How far a server is from those who may come after it in a route."""

import logging

from dedloc_kit.serving.offer import short_id
from dedloc_kit.swarm.remote.pulse import round_trip
from dedloc_kit.swarm.serving.member import Member

NEIGHBOURS = 8
"""Servers of the next layers to which the round trip is measured."""

_log = logging.getLogger(__name__)


def round_trips(me: Member, layer: int) -> dict[str, float]:
    """Seconds to some of those who serve this layer, by `short_id`; call it outside the loop."""
    near = [peer for peer, each in me.offers.others().items() if each.begin <= layer < each.end][:NEIGHBOURS]
    found = {}
    for peer in near:
        try:
            found[short_id(peer)] = me.loop.run(round_trip(me.caller, peer))
        except (OSError, EOFError, ValueError) as error:
            _log.info("no round trip to %s: %r", peer, error)
    return found
