"""Which hosts a trainer knows, and which of them it may ask."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

import torch
from torch import Tensor

from dedloc_kit.config.parts import ExpertsConfig
from dedloc_kit.experts.calls import Cell
from dedloc_kit.records.experts import HostOffer
from dedloc_kit.records.record import MAX_ACCUSED
from dedloc_kit.swarm.experts.client import CallFailed, HostClient
from dedloc_kit.swarm.experts.deadline import FIRST_SECONDS
from dedloc_kit.swarm.experts.offer import cells_of
from dedloc_kit.swarm.experts.protocol import Answer, Call, Forward
from dedloc_kit.swarm.experts.service import STEP_SECONDS
from dedloc_kit.swarm.incidents import Rejections
from dedloc_kit.swarm.remote.lines import Opener
from dedloc_kit.swarm.remote.tensors import Packed

TICK_SECONDS = 0.2
AVOIDED_SECONDS, MAX_AVOIDED = 3.0, 60.0
"""For which a host, or one of its experts, is not asked after it has failed; for a host twice as long each time that it
fails again, and at most."""
BARRED_SECONDS = 1800.0
"""The same for a host that has answered what is wrong; so long it is said to have done so."""

_log = logging.getLogger(__name__)


class Host:
    """As a trainer knows it.

    :ivar cells: bool [rows, columns] by layer, of the experts that it keeps
    :ivar copies: the same of those that it stands in for
    :ivar there: may it be asked? It has answered since it last failed
    :ivar step: the latest that it has answered a forward call for
    """

    def __init__(self, client: HostClient) -> None:
        self.client = client
        self.cells: Mapping[int, Tensor] = {}
        self.copies: Mapping[int, Tensor] = {}
        self.there = False
        self.failures = self.step = 0
        self._avoided: dict[tuple[int, Cell], float] = {}

    def avoid(self, layer: int, cell: Cell) -> None:
        """One of its experts has failed."""
        self._avoided[layer, cell] = time.monotonic() + AVOIDED_SECONDS

    def alive(self, layer: int, *, copies: bool = False) -> Tensor | None:
        """The cells that may be asked; none if it has none.

        :param copies: of those that it stands in for
        """
        cells = (self.copies if copies else self.cells).get(layer) if self.there else None
        avoided = {key: until for key, until in self._avoided.items() if time.monotonic() < until}
        self._avoided = avoided
        if cells is not None and avoided:
            cells = cells.clone()
            for avoided_layer, cell in avoided:
                cells[cell] &= avoided_layer != layer
        return cells


class Hosts:
    """All of a run. Everything but `alive` and `owners` happens in one loop.

    :param offers: of all peers, by id
    :param failed: told which host has failed, and how
    :ivar failures: of calls, by kind
    """

    def __init__(
        self,
        opener: Opener,
        settings: ExpertsConfig,
        offers: Callable[[], Mapping[str, HostOffer]],
        failed: Callable[[str, str], object],
    ) -> None:
        self._opener, self._settings, self._offers, self._failed = opener, settings, offers, failed
        self.failures = Rejections()
        self._hosts: dict[str, Host] = {}
        self._read: dict[str, HostOffer] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._barred: dict[str, float] = {}
        self._unlike: dict[tuple[str, str], float] = {}
        """Until when it counts that these two have answered differently what they should have answered alike."""
        self._closing: set[asyncio.Task[None]] = set()

    def alive(self, layer: int) -> Tensor:
        """Which cells can be asked: bool [rows, columns]; from any thread."""
        cells = torch.zeros(self._settings.grid, dtype=torch.bool)
        for host in list(self._hosts.values()):
            for copies in (True, False):
                mine = host.alive(layer, copies=copies)
                if mine is not None:
                    cells |= mine
        return cells

    def owners(self, layer: int) -> dict[Cell, Host]:
        """Whom to ask, by cell; from any thread. Who stands in for an expert is asked where nobody who keeps it can be.
        Of several the first by its id, as all trainers do: copies that are told different things part."""
        found: dict[Cell, Host] = {}
        for copies in (True, False):
            for _, host in sorted(self._hosts.items(), reverse=True):
                mine = host.alive(layer, copies=copies)
                if mine is not None:
                    found |= dict.fromkeys((Cell(*cell) for cell in mine.nonzero().tolist()), host)
        return found

    @property
    def there(self) -> set[str]:
        """Peers that have answered since they last failed; from any thread."""
        return {peer for peer, host in self._hosts.items() if host.there}

    def others(self, host: Host, layer: int, cell: Cell) -> list[Host]:
        """Who else answers for an expert with the same bits; nobody while two say that they keep it."""
        keep, copy = (
            [
                other
                for other in self._hosts.values()
                if (cells := (other.copies if copies else other.cells).get(layer)) is not None and cells[cell]
            ]
            for copies in (False, True)
        )
        return [other for other in (*keep, *copy) if other is not host and other.there] if len(keep) < 2 else []

    @property
    def accuses(self) -> tuple[str, ...]:
        """Who answers wrongly, or unlike others, the latest ones; from any thread. Of two who differ it is who differs
        from more others, else both."""
        now = time.monotonic()
        found = {peer: until for peer, until in list(self._barred.items()) if until > now}
        pairs = {pair: until for pair, until in list(self._unlike.items()) if until > now}
        counts = Counter(peer for pair in pairs for peer in pair)
        for pair, until in pairs.items():
            most = max(counts[peer] for peer in pair)
            found |= {peer: max(until, found.get(peer, 0.0)) for peer in pair if counts[peer] == most}
        return tuple(sorted(found, key=lambda peer: (-found[peer], peer))[:MAX_ACCUSED])

    def differ(self, one: str, other: str) -> None:
        """Two that hold the same expert have answered differently, and nobody can say who is right."""
        self.failures.add("unlike")
        _log.warning("hosts %s and %s answer differently for the same expert", one, other)
        now = time.monotonic()
        self._unlike = {pair: until for pair, until in self._unlike.items() if until > now}
        self._unlike[min(one, other), max(one, other)] = now + BARRED_SECONDS

    async def call(self, host: Host, call: Call, content: Packed | None) -> tuple[Answer, list[Tensor]] | None:
        """What a host answers; none if it fails, then it is not asked for a while."""
        try:
            answered = await host.client.call(call, content, self._seconds(host, call))
        except CallFailed as failure:
            self.fail(host, failure)
            return None
        host.failures = 0
        if isinstance(call, Forward):
            host.step = max(host.step, call.step)
        return answered

    def fail(self, host: Host, failure: CallFailed) -> None:
        """A host has failed."""
        peer = host.client.peer
        self.failures.add(failure.kind)
        self._failed(peer, failure.kind)
        _log.warning("host %s fails (%s): %s", peer, failure.kind, failure)
        host.there = False
        host.failures += 1
        seconds = min(MAX_AVOIDED, AVOIDED_SECONDS * 2.0 ** (host.failures - 1))
        if failure.wrong:
            seconds = BARRED_SECONDS
            self._barred[peer] = time.monotonic() + seconds
        if self._hosts.get(peer) is host:  # else it has left meanwhile
            self._ask(host, seconds)

    def failed(self, peer: str, failure: CallFailed) -> None:
        """The same of something else than a call."""
        if (host := self._hosts.get(peer)) is not None:
            self.fail(host, failure)

    async def follow(self) -> None:
        """Keep to what the hosts say, until this is cancelled."""
        try:
            while True:
                self._look()
                await asyncio.sleep(TICK_SECONDS)
        finally:
            for task in self._asking.values():
                task.cancel()
            for host in self._hosts.values():
                with suppress(Exception):
                    await host.client.close()

    def _look(self) -> None:
        offers = {
            peer: offer
            for peer, offer in self._offers().items()
            if (offer.layers or offer.copies) and offer.state == "online"
        }
        self._barred = {peer: until for peer, until in self._barred.items() if time.monotonic() < until}
        for peer in self._hosts.keys() - offers.keys():
            self._forget(peer)
        for peer, offer in offers.items():
            if self._read.get(peer) == offer:
                continue
            self._read[peer] = offer
            try:
                grid = self._settings.grid
                cells, copies = cells_of(offer.layers, grid), cells_of(offer.copies, grid)
            except ValueError as error:
                self.failures.add("record")
                _log.warning("the record of host %s: %s", peer, error)
                self._forget(peer)
                continue
            known = self._hosts.get(peer)
            host = known or Host(HostClient(self._opener, peer, self._settings.width))
            host.cells, host.copies = cells, copies
            if known is None:
                self._hosts = {**self._hosts, peer: host}
                self._ask(host, max(0.0, self._barred.get(peer, 0.0) - time.monotonic()))
        self._read = {peer: offer for peer, offer in self._read.items() if peer in offers}

    def _forget(self, peer: str) -> None:
        if (asking := self._asking.pop(peer, None)) is not None:
            asking.cancel()
        hosts = dict(self._hosts)
        if (host := hosts.pop(peer, None)) is not None:
            self._hosts = hosts
            host.there = False
            closing = asyncio.create_task(host.client.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _ask(self, host: Host, seconds: float) -> None:
        """Find out whether a host is there, after so many seconds and again and again, before any call waits for it."""
        if (before := self._asking.get(host.client.peer)) is not None:
            before.cancel()
        self._asking[host.client.peer] = asyncio.create_task(self._back(host, seconds))

    async def _back(self, host: Host, seconds: float) -> None:
        nothing = Forward(layer=self._settings.layers[0], cells=(), tokens=(), keep=False)
        while True:
            await asyncio.sleep(seconds)
            try:
                await host.client.call(nothing, None, FIRST_SECONDS)
            except CallFailed as failure:
                _log.info("host %s is not there: %s", host.client.peer, failure)
                seconds = min(MAX_AVOIDED, max(AVOIDED_SECONDS, 2 * seconds))
                continue
            host.there = True
            return

    def _seconds(self, host: Host, call: Call) -> float:
        """As long as it usually takes; of a host that was never asked, as long as others take. It may have to wait for
        a step that it has not been asked for yet."""
        own = host.client.deadline(call)
        others = [each.client.deadline(call) for each in self._hosts.values()]
        usual = own or max((other for other in others if other is not None), default=FIRST_SECONDS)
        return usual + (STEP_SECONDS if isinstance(call, Forward) and call.step > host.step else 0.0)
