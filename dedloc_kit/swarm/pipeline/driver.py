"""Sends microbatches through all stages, several at once, each by the peers that are quickest at the moment.

What belongs to a global step: a driver begins microbatches for it while what all drivers have begun is less than a
global batch, then it says that this is final (`begun`). What stage peers were sent is kept until their stage has taken
the step. If one is gone before, its calls are made again elsewhere.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dedloc_kit.records.stages import Begun, StageOffer
from dedloc_kit.swarm.incidents import Rejections
from dedloc_kit.swarm.pipeline.begun import Patience, begun_for
from dedloc_kit.swarm.pipeline.checking import Checks
from dedloc_kit.swarm.pipeline.client import Answered, CallFailed, CallRefused, StageClient
from dedloc_kit.swarm.pipeline.kept import MEMORY_BYTES, Backward, Kept
from dedloc_kit.swarm.pipeline.peers import AVOIDED_SECONDS, BUSY_SECONDS, TICK_SECONDS, Changes, StagePeers, Stale
from dedloc_kit.swarm.pipeline.protocol import Batch, Call, Content, Cut, answer_bytes, part_of
from dedloc_kit.swarm.remote.lines import Opener
from dedloc_kit.swarm.remote.tensors import Form, Packed, in_form, packed, scaled

HEARD_SECONDS = 1.0
"""By then what others have begun for a step is known."""
FIRST_NUMBER_BITS = 48
"""Numbers begin anywhere: before this driver its peer may have had another one, in the same step."""
AGAIN_AT_A_TIME = 8
"""Calls of one stage that are made again: what they bring is in memory then."""
FAILURES = 3
"""After so many a stage peer counts as gone that may have added a microbatch."""
REFUSALS = 3
"""After so many a microbatch is given up: who else has made it is not to be found."""

_log = logging.getLogger(__name__)


class GivenUp(Exception):
    """A microbatch is refused again and again."""


@dataclass(frozen=True)
class Settings:
    """Who drives, and how.

    :ivar me: its peer id
    :ivar form: in which hidden states travel
    :ivar in_flight: microbatches at once
    :ivar folder: where what is kept goes that memory is too small for
    """

    me: str
    global_batch: int
    form: Form
    in_flight: int
    folder: Path


class Driver:
    """One driver's microbatches. Everything is for one event loop.

    :param offers: of all peers, by id; its own, too, if it holds a stage and `opener` opens streams to that
    :param told: what all drivers have begun (`Drivers.told`)
    :param gone: told of a peer whose connection has broken, or that has fallen silent
    :param done: told the loss of a microbatch through all stages, and its samples
    :param clock: monotonic seconds
    :ivar driven: samples through all stages, in this session
    :ivar partly: samples that have counted in some stages only
    :ivar again: calls that were made again since a peer was gone
    :ivar wrong: what stage peers answer or hold unlike others, by kind: `forward`, `backward`, `state`, `undecided`
    """

    def __init__(
        self,
        opener: Opener,
        stages: Sequence[Cut],
        settings: Settings,
        offers: Callable[[], Mapping[str, StageOffer]],
        told: Callable[[], Mapping[str, Begun]],
        gone: Callable[[str], None],
        done: Callable[[float, int], None] = lambda loss, samples: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stages, self._settings = stages, settings
        self._told, self._gone, self._done = told, gone, done
        self.begun = Begun(step=0, samples=0, final=True)
        self.driven = self.partly = self.again = 0
        self._changes = Changes()
        self.wrong = Rejections()
        self._peers = StagePeers(opener, stages, offers, self._changes, settings.me, self.wrong)
        self._tasks = asyncio.TaskGroup()
        self._checks = Checks(self._peers, self._tasks, settings.me, settings.form)
        self._kept = Kept(settings.folder, MEMORY_BYTES)
        self._making_again = [asyncio.Semaphore(AGAIN_AT_A_TIME) for _ in stages]
        self._number = secrets.randbits(FIRST_NUMBER_BITS)
        self._at: dict[int, tuple[int, str]] = {}  # by microbatch: the stage where it is or goes to, and which way
        self._again: deque[Batch] = deque()
        self._stopped = False
        self._step_since = self._rests_until = 0.0
        self._clock, self._patience = clock, Patience(clock)

    # What others see

    @property
    def step(self) -> int | None:
        """The global step that all stages hold; None if one has nobody."""
        return self._peers.step

    def is_behind(self, step: int) -> bool:
        """Has a stage taken the step after this one, as all its peers say?"""
        return self._peers.is_behind(step)

    @property
    def missing(self) -> str:
        """Why nothing can be driven, as "stage 2 of 4 has nobody"; empty if it can."""
        return self._peers.missing

    @property
    def absent(self) -> frozenset[str]:
        """The peers of a stage that has nobody, if this driver knows so by its own look (`StagePeers.absent`)."""
        return self._peers.absent

    @property
    def accuses(self) -> tuple[str, ...]:
        """Stage peers that answer wrongly, as this driver has found in the last half hour, the latest ones."""
        return self._peers.accuses

    @property
    def in_flight(self) -> int:
        """Microbatches on their way."""
        return len(self._at)

    @property
    def in_flight_at(self) -> tuple[tuple[int, int], ...]:
        """Of each stage, how many of them are there, or on their way there: forward and backward."""
        here = Counter(list(self._at.values()))  # at once: other threads ask
        return tuple((here[stage.number, "forward"], here[stage.number, "backward"]) for stage in self._stages)

    @property
    def kept_bytes(self) -> int:
        """Of what may have to be sent again."""
        return self._kept.bytes

    def stop(self) -> None:
        """Begin no more. What has been begun goes on to its end, and what is kept is kept until it has counted."""
        self._stopped = True
        self._account()

    def resume(self) -> None:
        """Begin more again."""
        self._stopped = False
        self._changes.tell()

    def rest(self, seconds: float) -> None:
        """Begin none for so long: what is known of other drivers is of before."""
        self._rests_until = self._clock() + seconds

    @property
    def idle(self) -> bool:
        """Is there nothing left that needs this driver?"""
        return not self._at and not len(self._kept)

    # Its work

    async def run(self, next_batch: Callable[[], Awaitable[Batch]]) -> None:
        """Drive until it is cancelled."""
        try:
            async with self._tasks:
                self._tasks.create_task(self._peers.meet(self._tasks, self))
                self._tasks.create_task(self._keep_account())
                while True:
                    await self._changes.until(lambda: not self._stopped)
                    batch = self._again.popleft() if self._again else await next_batch()
                    await self._changes.until(self._may_begin)
                    self._begin(batch)
        finally:
            self._kept.close()
            await self._peers.close()

    def heard(self, client: StageClient) -> None:
        """What it was sent for a step before the one that it holds has counted."""
        self._kept.drop(client.peer, client.step)
        self._account()
        self._changes.tell()

    def lost(self, client: StageClient) -> None:
        """What only it had is computed again."""
        self._gone(client.peer)
        for backward in self._kept.of(client.peer):
            self._tasks.create_task(self._make_again(backward))
        self._changes.tell()

    async def _keep_account(self) -> None:
        """Also while there is no batch: others wait for what this driver says."""
        while True:
            self._account()
            await self._changes.wait(TICK_SECONDS)

    def _may_begin(self) -> bool:
        self._account()
        free = self.in_flight < self._settings.in_flight and self._clock() >= self._rests_until
        return self._peers.ready and not self.begun.final and free and self._turn() and self._kept.fits

    def _turn(self) -> bool:
        """All begin a step at the same moment: each its share, then who is quick the rest, once all have been heard."""
        drivers = len({*self._told(), self._settings.me})
        mine = self.begun.samples * drivers < self._settings.global_batch
        return mine or self._clock() > self._step_since + HEARD_SECONDS

    def _account(self) -> None:
        """Say what is final, for the step that all stages hold now."""
        step = self.step
        if step is None:  # nothing can be begun
            self.begun = self.begun.model_copy(update={"final": True})
            return
        if step != self.begun.step:
            self._step_since = self._clock()
        samples = self.begun.samples if self.begun.step == step else 0
        others = [begun for driver, begun in self._told().items() if driver != self._settings.me]
        full = samples + begun_for(others, step) >= self._settings.global_batch
        # A driver that has left counts no more; but a stage that has taken the step has had all of the batch.
        over = not self._peers.ready
        if self._patience.ended(step, full=full and not over):
            full = samples >= self._settings.global_batch  # others may claim what they never send
        self.begun = Begun(step=step, samples=samples, final=full or over or self._stopped)

    def _begin(self, batch: Batch) -> None:
        samples = _shape(batch)[0]
        self.begun = Begun(step=self.begun.step, samples=self.begun.samples + samples, final=False)
        self._account()
        self._number += 1
        self._at[self._number] = 0, "forward"
        self._tasks.create_task(self._drive(batch, self._number, self.begun.step))

    async def _drive(self, batch: Batch, number: int, step: int) -> None:
        added = list[int]()
        samples = _shape(batch)[0]
        try:
            self._done(await self._through(batch, number, step, added), samples)
            self.driven += samples
        except (Stale, GivenUp) as error:
            _log.info("microbatch %d is broken off: %s", number, error)
            self._take_back(step, samples)
            if added:
                self.partly += samples
            elif isinstance(error, Stale):
                self._again.append(batch)
        finally:
            del self._at[number]
            self._changes.tell()

    def _take_back(self, step: int, samples: int) -> None:
        """A stage will not get all that was begun for this step: none is to wait for it."""
        if self.begun.step == step:
            self.begun = self.begun.model_copy(update={"samples": max(0, self.begun.samples - samples)})

    async def _through(self, batch: Batch, number: int, step: int, added: list[int]) -> float:
        """There and back: the loss. `added` gets the stages that have taken its gradients."""
        inputs: list[Packed | None] = [None]
        for stage in self._stages[:-1]:
            self._at[number] = stage.number, "forward"
            call = self._call("forward", stage, batch, step, number)
            answered = await self._insist(stage, call, _content(batch, stage, inputs[-1]))
            assert answered.output is not None
            inputs.append(self._packed(answered.output))
        loss, gradient, exponent = 0.0, None, 0
        for stage in reversed(self._stages):
            self._at[number] = stage.number, "backward"
            call = self._call("backward", stage, batch, step, number).model_copy(update={"exponent": exponent})
            content = _content(batch, stage, inputs[stage.number], gradient)
            answered = await self._insist(stage, call, content)
            added.append(stage.number)
            loss = loss if answered.loss is None else answered.loss
            if answered.output is not None:
                gradient, exponent = scaled(answered.output, self._settings.form)
        return loss

    def _call(self, what: Any, stage: Cut, batch: Batch, step: int, number: int) -> Call:
        rows, length = _shape(batch)
        return Call(what=what, stage=stage.number, number=number, step=step, rows=rows, length=length)

    def _packed(self, hidden: Tensor) -> Packed:
        return packed(in_form(hidden, self._settings.form), self._settings.form)

    async def _insist(self, stage: Cut, call: Call, content: Content) -> Answered:
        """Have a call answered, if need be by others; raises Stale or GivenUp.

        Whoever does not answer a backward call may have added the microbatch, and is asked again: it adds it once. If
        that is of no use it counts as gone.
        """
        refusals, failures, last = 0, 0, ""
        size = content.size + answer_bytes(call, stage, self._settings.form)
        while True:
            client = await self._peers.choose(stage, call.step, size, last)
            try:
                answered = await client.call(call, content, size)
            except CallFailed as failed:
                _log.debug("stage %d: %s: %s", stage.number, client.peer, failed)
                failures += 1
                last = client.peer if call.what == "backward" and failures < FAILURES else ""
                if call.what == "backward" and not last:
                    client.give_up()
                self._peers.avoid(client.peer, BUSY_SECONDS if last else AVOIDED_SECONDS)
            except CallRefused as refused:
                if refused.why == "stale" and refused.step > call.step:
                    raise Stale(f"stage {stage.number} holds step {refused.step}") from None
                busy = refused.why in ("stale", "closed", "full")
                refusals += not busy and refused.why != "stage"
                if refusals >= REFUSALS:
                    raise GivenUp(f"stage {stage.number}: {refused}") from None
                self._peers.avoid(client.peer, BUSY_SECONDS if busy else AVOIDED_SECONDS)
            else:
                self._changes.tell()
                if call.what == "backward":
                    if not self._peers.holds(client):
                        continue  # it has gone with the answer
                    self._kept.add(Backward(client.peer, call), content)
                self._checks.look(client, call, content, answered, size)
                return answered

    async def _make_again(self, backward: Backward) -> None:
        """What the stage peer had that is gone, by another one, unless it has counted."""
        call = backward.call
        try:
            async with self._making_again[call.stage]:
                if (content := self._kept.content(backward)) is None:
                    return
                await self._insist(self._stages[call.stage], call, content)
            self.again += 1
        except Stale:
            self._kept.remove(backward)
        except (GivenUp, OSError) as error:
            _log.warning("a microbatch is lost for one stage: %s", error)
            self._kept.remove(backward)
            self._take_back(call.step, call.rows)
            self.partly += call.rows
        self._changes.tell()


def _shape(batch: Batch) -> tuple[int, int]:
    rows, length = next(iter(batch.values())).shape
    return rows, length


def _content(batch: Batch, stage: Cut, hidden: Packed | None, gradient: Packed | None = None) -> Content:
    return Content(part_of(batch, stage), hidden, gradient)
