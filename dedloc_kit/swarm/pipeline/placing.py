"""Which stage a newcomer takes, of those that it can hold, by what the others say that they hold."""

import math
import threading
from collections.abc import Mapping, Sequence

from hivemind.utils import get_dht_time

from dedloc_kit.blocks.plans.stages import LINE, SECOND_LOOK, Stage, StagePeer, place
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.records.stages import StageOffer
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.kinds import STAGES
from dedloc_kit.swarm.network.node import Node, addresses_of
from dedloc_kit.swarm.remote.offers import DHT_SECONDS, LIFE_SECONDS


class Newcomer:
    """Chooses a stage before it has one; nothing here needs a thread, for processes are forked later.

    :param stages: all of them
    :param fits: numbers of those that this machine holds, at least one
    """

    def __init__(
        self,
        run: RunConfig,
        node: Node,
        signer: Signer,
        peer: PeerConfig,
        stages: Sequence[Stage],
        fits: frozenset[int],
    ) -> None:
        self._run, self._node, self._signer, self._peer = run, node, signer, peer
        self._stages, self._fits = stages, fits
        self._directory: Directory[StageOffer] = Directory(
            node, STAGES, run.run_id, reject=lambda _: None, seconds=LIFE_SECONDS
        )

    def choose(self, stop: threading.Event) -> int:
        """The stage that lacks peers most, once those who came at the same moment have said which one they take."""
        announced = math.inf
        stage = self._placed(announced)
        announced = self._announce(stage)
        stop.wait(SECOND_LOOK)
        return self._placed(announced)

    def _placed(self, announced: float) -> int:
        now = float(get_dht_time())
        found = self._directory.look(peers=0, timeout=DHT_SECONDS)
        others = stage_peers(found, len(self._stages))
        return place(self._stages, others, self._signer.peer, min(now, announced), now, self._fits)

    def _announce(self, stage: int) -> float:
        """When, by the clock of the directory."""
        offer = StageOffer(
            run_id=self._run.run_id,
            stage=stage,
            state="joining",
            client_mode=self._node.reach.client_mode,
            addresses=addresses_of(self._node),
            device="",
            name=self._peer.name,
            team=self._peer.team,
            time=get_dht_time(),
        )
        self._directory.store(self._signer, offer, peers=0).result(DHT_SECONDS)
        return offer.time


def stage_peers(offers: Mapping[str, StageOffer | None], stages: int) -> list[StagePeer]:
    """As planning sees them: those who hold one of so many stages, or will. Whoever has come to its stage after all
    says since when; until then the time of its record is that of its announcement. Who has begun to move counts where
    it goes."""
    found = list[StagePeer]()
    for peer, offer in offers.items():
        if offer is None or offer.stage is None or offer.state == "leaving":
            continue
        stage, speed, loading = offer.stage, offer.microbatches_per_second, offer.state == "joining"
        if offer.state == "moving" and offer.moving is not None and offer.moving.begun:
            stage, speed, loading = offer.moving.stage, 0.0, True
        if max(stage, offer.stage) < stages:
            found.append(
                StagePeer(
                    peer,
                    *(stage, speed),
                    line=max(LINE, offer.upload or 0.0),  # a line seldom takes less than it sends
                    loading=(offer.moved or offer.time) if loading else None,
                    moved=offer.moved or None,
                    pinned=offer.pinned,
                )
            )
    return found
