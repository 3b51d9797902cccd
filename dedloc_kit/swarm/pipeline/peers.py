"""Who holds the stages, as a driver follows them, and whom it calls next."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from hivemind.utils import get_dht_time

from dedloc_kit.blocks.plans import hops
from dedloc_kit.records.record import MAX_ACCUSED
from dedloc_kit.records.stages import Begun, StageOffer
from dedloc_kit.swarm.incidents import Rejections
from dedloc_kit.swarm.pipeline.client import CallFailed, PeerGone, StageClient
from dedloc_kit.swarm.pipeline.holding import astray
from dedloc_kit.swarm.pipeline.protocol import CALLS_AT_A_TIME, Cut
from dedloc_kit.swarm.remote.lines import Opener

AVOIDED_SECONDS, BUSY_SECONDS = 3.0, 0.1
"""For which a peer is left alone that has failed, and one that has no room."""
BARRED_SECONDS = 1800.0
"""For which a peer gets no work that has answered what is wrong."""
TICK_SECONDS = 0.5
FOLLOWED_SECONDS = 1.0
"""After which a peer that is gone is followed again: it counts a driver for gone whose line is not back
(`begun.GONE_SECONDS`)."""

_log = logging.getLogger(__name__)


class Stale(Exception):
    """A stage holds a later step than a microbatch was begun for."""


class Changes:
    """Something that others wait for may have come."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """For the next one, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self.wait(TICK_SECONDS)


class Driving(Protocol):
    """Whose calls they are."""

    @property
    def begun(self) -> Begun: ...

    def heard(self, client: StageClient) -> None:
        """It says which step it holds."""

    def lost(self, client: StageClient) -> None:
        """It is gone, with what it was sent."""


class _Lost(NamedTuple):
    """A stage peer that has been heard and is not any more.

    :ivar since: by the clock of the directory
    :ivar reset: is it not reached, or is it only silent?
    :ivar session: in which it had what it was sent
    """

    since: float
    reset: bool
    session: str


class StagePeers:
    """Of all stages.

    :param offers: of all peers, by id
    :param me: the driver's peer id
    :param wrong: counts what peers do wrong, by kind
    """

    def __init__(
        self,
        opener: Opener,
        stages: Sequence[Cut],
        offers: Callable[[], Mapping[str, StageOffer]],
        changes: Changes,
        me: str,
        wrong: Rejections,
    ) -> None:
        self._opener, self._stages, self._offers, self._changes = opener, stages, offers, changes
        self._me, self._wrong = me, wrong
        self._clients: dict[str, StageClient] = {}
        self._avoided: dict[str, float] = {}
        self._barred: dict[str, float] = {}
        self._astray = set[str]()
        self._lost: dict[str, _Lost] = {}
        self._again: dict[str, float] = {}  # when each is followed again

    @property
    def step(self) -> int | None:
        """The global step that all stages hold; None if one has nobody."""
        held = [max((client.step for client in self._there(stage)), default=-1) for stage in self._stages]
        return None if -1 in held else min(held)

    def is_behind(self, step: int) -> bool:
        """Has a stage taken the step after this one, as all its peers say?"""
        everyone = [self._there(stage) for stage in self._stages]
        return any(there and all(client.step > step for client in there) for there in everyone)

    @property
    def missing(self) -> str:
        """Why nothing can be driven; empty if it can."""
        nobody = [stage for stage in self._stages if not self._there(stage)]
        return f"stage {nobody[0].number} of {nobody[0].count} has nobody" if nobody else ""

    @property
    def absent(self) -> frozenset[str]:
        """Who counts as gone before its record lapses: the peers of a stage that has nobody, if this driver has heard
        them, does not reach them any more, and they have said nothing in the directory since.

        Nobody, unless it hears another peer than itself in each other stage: it may be cut off itself.
        """
        nobody = [stage for stage in self._stages if {c.peer for c in self._there(stage)} <= {self._me}]
        if len(nobody) != 1:
            return frozenset()
        offers = self._offers()
        return frozenset(
            peer
            for peer, lost in list(self._lost.items())
            if lost.reset
            and peer in offers
            and offers[peer].stage == nobody[0].number
            and offers[peer].time <= lost.since
        )

    @property
    def ready(self) -> bool:
        """Has each stage somebody who holds the step? One whose peers are all further waits for the other stages."""
        step = self.step
        return step is not None and all(any(c.step == step for c in self._there(stage)) for stage in self._stages)

    def holds(self, client: StageClient) -> bool:
        """Is it there?"""
        return self._clients.get(client.peer) is client

    def avoid(self, peer: str, seconds: float) -> None:
        self._avoided[peer] = max(self._avoided.get(peer, 0.0), time.monotonic() + seconds)

    @property
    def accuses(self) -> tuple[str, ...]:
        """Who gets no more work since its answers are wrong, the latest ones."""
        now = time.monotonic()
        found = sorted((-until, peer) for peer, until in list(self._barred.items()) if until > now)
        return tuple(peer for _, peer in found[:MAX_ACCUSED])

    def bar(self, client: StageClient, kind: str) -> None:
        """Its answer to a call of this kind is wrong: it gets no more work, as if it were not there."""
        self._wrong.add(kind)
        self._barred[client.peer] = time.monotonic() + BARRED_SECONDS
        text = "stage %d: %s answers a %s call unlike others, and gets no more work for %.0f s"
        _log.warning(text, client.stage.number, client.peer, kind, BARRED_SECONDS)
        self._compare(client.stage)

    def undecided(self, one: StageClient, other: StageClient) -> None:
        """They answer differently, and nobody can say who is right."""
        self._wrong.add("undecided")
        _log.warning("stage %d: %s and %s answer differently", one.stage.number, one.peer, other.peer)

    def others(self, client: StageClient, step: int) -> list[StageClient]:
        """Who else holds the same stage and this step."""
        return [other for other in self._there(client.stage) if other is not client and other.step == step]

    async def room(self, client: StageClient) -> None:
        """Wait until it takes one more call."""
        await self._changes.until(lambda: client.hop.calls < CALLS_AT_A_TIME)

    async def choose(self, stage: Cut, step: int, size: int, last: str) -> StageClient:
        """The quickest one that holds this step, as soon as there is one; raises Stale if all are further.

        :param size: bytes of the call and its answer
        :param last: whom to take before all others, if it is there; empty for nobody
        """
        while True:
            now, there = time.monotonic(), self._there(stage)
            fit = [
                client
                for client in there
                if client.step == step
                and client.hop.calls < CALLS_AT_A_TIME
                and now > self._avoided.get(client.peer, 0.0)
                and (last not in {other.peer for other in there} or client.peer == last)
            ]
            if fit:
                chosen = hops.choose([client.hop for client in fit], size, now, random.random())
                return self._clients[chosen.name]
            if there and all(client.step > step for client in there):
                raise Stale(f"stage {stage.number} is further than step {step}")
            await self._changes.wait(BUSY_SECONDS)

    async def meet(self, tasks: asyncio.TaskGroup, driving: Driving) -> None:
        """Follow everyone who holds a stage."""
        while True:
            now = time.monotonic()
            self._avoided = {peer: until for peer, until in self._avoided.items() if until > now}
            self._barred = {peer: until for peer, until in self._barred.items() if until > now}
            offers = self._offers()
            self._lost = {peer: lost for peer, lost in self._lost.items() if peer in offers}
            self._again = {peer: at for peer, at in self._again.items() if at > now}
            for peer, offer in offers.items():
                known = peer in self._clients or peer in self._again
                if offer.stage is None or offer.stage >= len(self._stages) or known or offer.state == "joining":
                    continue
                stage, gone = self._stages[offer.stage], self._lost[peer].session if peer in self._lost else ""
                client = self._clients[peer] = StageClient(self._opener, peer, stage, gone)
                tasks.create_task(self._follow(client, driving))
            await self._changes.wait(TICK_SECONDS)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    def _there(self, stage: Cut) -> list[StageClient]:
        """Who is, and may get work."""
        return [client for client in self._heard(stage) if client.peer not in self._astray]

    def _heard(self, stage: Cut) -> list[StageClient]:
        """Who has said what it holds, and has answered nothing wrong."""
        known = list(self._clients.values())  # at once: other threads ask
        clients = [client for client in known if client.stage is stage and client.step >= 0]
        return [client for client in clients if client.peer not in self._barred]

    def _compare(self, stage: Cut) -> None:
        """Find out who of a stage holds another state than it should, at the step that it names."""
        heard = self._heard(stage)
        sketches: dict[int, dict[str, tuple[float, ...]]] = {}
        for client in heard:
            sketches.setdefault(client.step, {})[client.peer] = client.sketch
        found = {peer for held in sketches.values() for peer in astray(held, self._me)}
        for peer in found - self._astray:
            self._wrong.add("state")
            _log.warning("stage %d: %s holds another state than others, and gets no work", stage.number, peer)
        self._astray = (self._astray - {client.peer for client in heard}) | found
        self._changes.tell()

    async def _follow(self, client: StageClient, driving: Driving) -> None:
        def heard() -> None:
            self._lost.pop(client.peer, None)
            self._compare(client.stage)
            driving.heard(client)

        try:
            await client.follow(lambda: driving.begun, heard)
        except CallFailed as failed:
            _log.info("stage %d: %s is gone: %s", client.stage.number, client.peer, failed)
            if client.step >= 0 or client.peer in self._lost:
                before = self._lost.get(client.peer, _Lost(float(get_dht_time()), reset=False, session=client.session))
                self._lost[client.peer] = before._replace(reset=isinstance(failed, PeerGone))
        del self._clients[client.peer]
        self._astray.discard(client.peer)
        self._compare(client.stage)
        self.avoid(client.peer, AVOIDED_SECONDS)
        self._again[client.peer] = time.monotonic() + FOLLOWED_SECONDS
        await client.close()
        if client.step >= 0:
            driving.lost(client)
