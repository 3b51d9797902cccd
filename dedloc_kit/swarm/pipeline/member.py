"""A peer's place in a pipeline: what it says of itself, how it answers others and drives microbatches of its own."""

import asyncio
import logging
import math
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hivemind.p2p import P2P
from hivemind.utils import get_dht_time

from dedloc_kit.blocks.plans.stages import Move
from dedloc_kit.config.run import MAX_BATCHES, RunConfig
from dedloc_kit.records.stages import Begun, StageMove, StageOffer
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.directory.twin import Twin
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.kinds import STAGES
from dedloc_kit.swarm.network.node import Node
from dedloc_kit.swarm.network.service import Endpoint
from dedloc_kit.swarm.pipeline.begun import Batches, Drivers
from dedloc_kit.swarm.pipeline.computing import StageComputer
from dedloc_kit.swarm.pipeline.driver import Driver, Settings
from dedloc_kit.swarm.pipeline.protocol import Batch, Cut
from dedloc_kit.swarm.pipeline.service import BACKWARD, Limits, StageService
from dedloc_kit.swarm.remote.calling import Caller
from dedloc_kit.swarm.remote.forwarded import ForwardedService
from dedloc_kit.swarm.remote.forwarding import ForwardingService
from dedloc_kit.swarm.remote.greeting import Greeter
from dedloc_kit.swarm.remote.loop import Loop
from dedloc_kit.swarm.remote.offers import Offers
from dedloc_kit.swarm.remote.own import WithOwn
from dedloc_kit.swarm.remote.tensors import FORMS
from dedloc_kit.swarm.remote.turns import Turns

LOOK_SECONDS = 0.1
"""How often it is looked what a batch holds in all."""
STILL_SECONDS = 4.0
"""After so long between two of these looks this peer has stood still, as a computer that slept: drivers may have taken
it for gone (`client.SILENT_SECONDS`). What they heard of it last may be a second old, and what it says next be late."""
HEARD_SECONDS = 5.0
"""By then drivers that have taken this peer for gone follow it again, and it knows what they have begun."""
BESIDE = 1
"""Microbatches that a driver has on their way beside one for each stage."""

_log = logging.getLogger(__name__)


class _Full(NamedTuple):
    """What the batch of a step holds, and what this peer has beside it."""

    step: int
    wanted: float
    beside: int


class PipelineMember:
    """One peer. It answers, if it holds a stage, and drives in a loop of its own; the stage is computed in the thread
    that takes `turns`.

    :param known: addresses of the peers that this one joined through
    :param cuts: all stages, in their order
    :param held: what this peer computes; none if it only drives
    :param pinned: whether its owner has chosen the stage
    :ivar came: when it began to take this stage, by the clock of the directory
    :ivar upload: bytes per second that this peer has sent in recent rounds; none if it is not known
    :ivar twin: what is known of other sessions of this key, by what these offer, if this peer only drives; before it is
        online it offers nothing, and hides no word of theirs
    :ivar gone: peers of which a driver has seen that they are
    :ivar losses: of the microbatches that this peer has driven
    """

    def __init__(
        self,
        run: RunConfig,
        node: Node,
        signer: Signer,
        profile: Profile,
        known: Sequence[str],
        cuts: Sequence[Cut],
        held: StageComputer | None,
        *,
        pinned: bool,
    ) -> None:
        assert run.pipeline is not None
        self._run, self._node, self._signer, self._profile = run, node, signer, profile
        self._held, self._cuts, self._pinned = held, cuts, pinned
        self.came = float(get_dht_time())
        self.upload: float | None = None
        self._move: StageMove | None = None
        self._gone = False
        self._form, self._tokens = FORMS[run.pipeline.activations], run.pipeline.microbatch_tokens
        self._state: Literal["joining", "online", "moving", "leaving"] = "joining"
        self.turns = Turns()
        self.gone: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.losses: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.twin: Twin[StageOffer] | None = None if held is not None else Twin(profile.session, self.came)
        self.offers = Offers(STAGES, node, signer, known, self._said, self.twin)
        self._drivers = Drivers(self.offers.others, MAX_BATCHES * run.global_batch)
        self._driver: Driver | None = None
        self._batches = Batches(run.global_batch)
        self._full = _Full(-1, math.inf, 0)
        self._looked = self._hears = 0.0
        self._gate = node.gate.replica()

    def wanted(self) -> float:
        """How many samples the batch of the next step has in all; infinity while that is not known."""
        full = self._full
        hears = not self._stood_still() and _clock() >= self._hears
        known = self._held is not None and full.step == self._held.step and hears
        return full.wanted if known else math.inf

    def beside(self) -> int:
        """How many of this peer's samples for the next step are of drivers that are gone, or were computed elsewhere.
        These are no part of what is wanted: else a stage would be full of them before all has come that drivers have
        begun who live."""
        full = self._full
        return full.beside if self._held is not None and full.step == self._held.step else 0

    @property
    def step(self) -> int | None:
        """The global step that all stages hold, as the driver sees it; None if one has nobody."""
        return None if self._driver is None else self._driver.step

    @property
    def begun(self) -> Begun | None:
        """What is driven for the next global step."""
        return None if self._driver is None else self._driver.begun

    @property
    def problem(self) -> str:
        """Why nothing can be driven; empty if it can."""
        return "" if self._driver is None else self._driver.missing

    @property
    def absent(self) -> frozenset[str]:
        """The peers of a stage that has nobody, if the driver knows so by its own look."""
        return frozenset() if self._driver is None else self._driver.absent

    @property
    def driven(self) -> int:
        """Samples through all stages, in this session."""
        return 0 if self._driver is None else self._driver.driven

    def say(self, state: Literal["online", "leaving"]) -> None:
        """Let the others know at once."""
        self._state, self._move = state, None
        self.offers.tell()

    def announce(self, move: Move | None) -> None:
        """Let the others know which stage this peer means to go to."""
        told = None if move is None else StageMove(stage=move.stage, announced=move.announced)
        if told != self._move:
            self._move = told
            self.offers.tell()

    def move(self, move: Move) -> None:
        """Let the others know that this peer begins with that."""
        self._state, self.came = "moving", float(get_dht_time())
        self._move = StageMove(stage=move.stage, announced=move.announced, begun=True)
        self.offers.tell()

    def go(self) -> None:
        """Let the last word here be that this peer comes to that stage."""
        self._gone = True

    def follow(self) -> None:
        """Take over who may take part from the node's gate; call it now and then."""
        self.loop.soon(self._gate.mirror, self._node.gate)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Answer others, and say so."""
        with ExitStack() as stack:
            self.loop = stack.enter_context(Loop())
            self._gate.mirror(self._node.gate)
            p2p: P2P = self.loop.run(self._node.replicate_p2p(self._gate, "pipeline"))
            stack.callback(lambda: self.loop.run(p2p.shutdown()))
            endpoint, greeter = Endpoint(p2p, self._run.run_id), Greeter(self._gate, self._signer)
            own: list[Any] = []
            if self._held is not None:
                service = StageService(self._held, self.turns, Limits(self._tokens), self._form, self._drivers)
                own += [service, service.following]
            self._opener = WithOwn(Caller(endpoint, greeter, self._forwarders), self._signer.peer, tuple(own))
            own.append(ForwardedService(greeter, own))
            if self._forwards:
                own.append(ForwardingService(endpoint, self._gate))
            for each in own:
                self.loop.run(endpoint.add(each))
            if self._held is not None:
                counting = self.loop.keep(self._count(self._held))
                stack.callback(counting.cancel)
            self.offers.start()
            stack.callback(lambda: self.offers.stop(self._coming()))
            yield

    @contextmanager
    def driving(self, next_batch: Callable[[], Batch], folder: Path) -> Iterator[None]:
        """Send microbatches through all stages until this ends.

        :param next_batch: called in a thread of its own
        :param folder: on a disk with room for what may have to be sent again
        """
        in_flight = len(self._cuts) + BESIDE
        settings = Settings(self._signer.peer, self._run.global_batch, self._form, in_flight, folder)
        driver = Driver(
            *(self._opener, self._cuts, settings, self._everyone, self._drivers.told),
            gone=self.gone.put,
            done=lambda loss, _: self.losses.put(loss),
        )
        self._driver = driver

        async def batch() -> Batch:
            return await asyncio.get_running_loop().run_in_executor(None, next_batch)

        running = self.loop.keep(driver.run(batch))
        try:
            yield
        finally:
            running.cancel()
            with suppress(Exception):
                running.result(LOOK_SECONDS)

    def stop_driving(self) -> None:
        """Begin no more; what has been begun goes on."""
        if self._driver is not None:
            self.loop.soon(self._driver.stop)

    def go_on_driving(self) -> None:
        """After all."""
        if self._driver is not None:
            self.loop.soon(self._driver.resume)

    @property
    def idle(self) -> bool:
        """Is there nothing left that needs this driver?"""
        return self._driver is None or self._driver.idle

    def _stood_still(self) -> bool:
        return _clock() > self._looked + STILL_SECONDS

    async def _count(self, held: StageComputer) -> None:
        self._looked = _clock()
        while True:
            looked = _clock()  # not at the end: it may stand still in the middle
            if self._stood_still():
                _log.warning("this computer stood still; what it had of the step is computed again")
                await self.turns.run(BACKWARD, held.begin_anew)
                looked = _clock()
                self._hears = looked + HEARD_SECONDS
                if self._driver is not None:
                    self._driver.rest(HEARD_SECONDS)
            begun, step = self._drivers.told(), held.step
            if self._driver is not None:
                begun[self._signer.peer] = self._driver.begun
            closed = self._driver is not None and self._driver.is_behind(step)
            wanted = self._batches.wanted(begun.values(), step, ready=not self.problem, closed=closed)
            if wanted is None:
                self._full = _Full(step, 0 if closed else self._run.global_batch, 0)
            else:
                self._full = _Full(step, wanted, held.beside(begun))
            self._looked = looked
            await asyncio.sleep(LOOK_SECONDS)

    def _everyone(self) -> dict[str, StageOffer]:
        """This peer as well: it uses its own stage like others'."""
        return {**self.offers.others(), self._signer.peer: self.offer()}

    @property
    def _forwards(self) -> bool:
        return not self._profile.client_mode

    def _forwarders(self, _: str) -> list[str]:
        return [peer for peer, offer in self.offers.others().items() if offer.forwards]

    def _coming(self) -> StageOffer | None:
        """What is to be heard of this peer until it is at its new stage; nothing if it does not go to one."""
        if not self._gone or self._move is None:
            return None
        changed = {"stage": self._move.stage, "state": "joining", "begun": None, "microbatches_per_second": 0.0}
        return self.offer().model_copy(update={**changed, "in_flight": (), "moving": None, "step": 0, "queue": 0})

    def _said(self) -> StageOffer | None:
        return None if self.twin is not None and self._state == "joining" else self.offer()

    def offer(self) -> StageOffer:
        """What this peer says of itself."""
        profile, held = self._profile, self._held
        step = self.step if held is None else held.step
        return StageOffer(
            run_id=self._run.run_id,
            stage=None if held is None else held.stage.number,
            state=self._state,
            step=max(0, step or 0),
            microbatches_per_second=0.0 if held is None else held.microbatches_per_second,
            queue=self.turns.waiting,
            upload=self.upload,
            begun=self.begun,
            in_flight=() if self._driver is None else self._driver.in_flight_at,
            driven=self.driven,
            served=0 if held is None else held.served,
            accuses=() if self._driver is None else self._driver.accuses,
            moving=self._move,
            moved=self.came,
            pinned=self._pinned,
            forwards=self._forwards,
            **profile.offered(),
            time=get_dht_time(),
        )


def _clock() -> float:
    """Seconds, those that the computer sleeps included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
