"""Held-out batches through the stages of others, forward alone: nothing is added anywhere.

A driver is one of those who fill the batch, so that steps wait for what it says. Whoever measures says nothing, and is
waited for by nobody.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from hivemind.p2p import P2P

from dedloc_kit.blocks.plans import hops
from dedloc_kit.config.run import RunConfig
from dedloc_kit.pipeline_state import HOLDING_STATES
from dedloc_kit.records.stages import StageOffer
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.node import Node
from dedloc_kit.swarm.network.service import Endpoint
from dedloc_kit.swarm.pipeline.client import Answered, CallFailed, CallRefused, StageClient
from dedloc_kit.swarm.pipeline.peers import BUSY_SECONDS
from dedloc_kit.swarm.pipeline.protocol import CALLS_AT_A_TIME, Batch, Call, Content, Cut, answer_bytes, part_of
from dedloc_kit.swarm.remote.calling import Caller
from dedloc_kit.swarm.remote.greeting import Greeter
from dedloc_kit.swarm.remote.lines import Opener
from dedloc_kit.swarm.remote.loop import Loop
from dedloc_kit.swarm.remote.tensors import FORMS, Form, Packed, in_form, packed

SECONDS = 600.0
"""For all batches together."""
BESIDE = 1
"""Batches on their way beside one for each stage."""

_log = logging.getLogger(__name__)


class NotMeasured(Exception):
    """The peers of some stage do not answer for this step, or not all in time."""


class Measuring:
    """Asks whoever holds a stage; who does not answer, or not rightly, is not asked again for the same batches.

    :param form: in which hidden states travel
    :param offers: of all peers, by id
    """

    def __init__(
        self, opener: Opener, stages: Sequence[Cut], form: Form, offers: Callable[[], Mapping[str, StageOffer]]
    ) -> None:
        self._opener, self._stages, self._form, self._offers = opener, stages, form, offers

    async def losses(self, batches: Sequence[Batch], step: int) -> list[float]:
        """Of each batch with the parameters of this step; raises NotMeasured."""
        peers: list[list[StageClient]] = [[] for _ in self._stages]
        for peer, offer in self._offers().items():
            if offer.stage is not None and offer.stage < len(peers) and offer.state in HOLDING_STATES:
                peers[offer.stage].append(StageClient(self._opener, peer, self._stages[offer.stage]))
        room = asyncio.Semaphore(len(self._stages) + BESIDE)

        async def loss(batch: Batch) -> float:
            async with room:
                return await self._through(batch, step, peers)

        try:
            async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
                found = [tasks.create_task(loss(batch)) for batch in batches]
        except TimeoutError:
            raise NotMeasured(f"it was not done in {SECONDS:.0f} s") from None
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            for client in (client for of_stage in peers for client in of_stage):
                await client.close()
        return [task.result() for task in found]

    async def _through(self, batch: Batch, step: int, peers: Sequence[list[StageClient]]) -> float:
        hidden: Packed | None = None
        rows, length = next(iter(batch.values())).shape
        for stage, there in zip(self._stages, peers, strict=True):
            call = Call(what="forward", stage=stage.number, number=0, step=step, rows=rows, length=length)
            answered = await self._answer(stage, call, Content(part_of(batch, stage), hidden, None), there)
            if answered.output is not None:
                hidden = packed(in_form(answered.output, self._form), self._form)
        assert answered.loss is not None
        return answered.loss

    async def _answer(self, stage: Cut, call: Call, content: Content, there: list[StageClient]) -> Answered:
        """:param there: the peers of the stage; those that fail are removed"""
        size = content.size + answer_bytes(call, stage, self._form)
        while there:
            free = [client.hop for client in there if client.hop.calls < CALLS_AT_A_TIME]
            if not free:
                await asyncio.sleep(BUSY_SECONDS)
                continue
            chosen = hops.choose(free, size, time.monotonic(), random.random()).name
            client = next(client for client in there if client.peer == chosen)
            try:
                return await client.call(call, content, size)
            except CallFailed as failed:
                _log.info("stage %d: %s does not measure: %s", stage.number, client.peer, failed)
            except CallRefused as refused:
                if refused.why == "stale" and refused.step > call.step:
                    raise NotMeasured(f"stage {stage.number} is at step {refused.step} already") from None
                if refused.why in ("stale", "closed", "full"):
                    await asyncio.sleep(BUSY_SECONDS)
                    continue
                _log.info("stage %d: %s does not measure: %s", stage.number, client.peer, refused)
            if client in there:
                there.remove(client)
        raise NotMeasured(f"nobody of stage {stage.number} answers")


class Swarming:
    """Measures from a thread, with a loop and streams of its own."""

    def __init__(self, loop: Loop, measuring: Measuring, follow: Callable[[], None]) -> None:
        self._loop, self._measuring, self._follow = loop, measuring, follow

    def losses(self, batches: Sequence[Batch], step: int) -> list[float]:
        """As `Measuring.losses`."""
        self._loop.soon(self._follow)
        return self._loop.run(self._measuring.losses(batches, step))


@contextmanager
def measuring(
    run: RunConfig, node: Node, signer: Signer, stages: Sequence[Cut], offers: Callable[[], Mapping[str, StageOffer]]
) -> Iterator[Swarming]:
    """For a peer of a run in stages that holds and drives none."""
    assert run.pipeline is not None
    gate = node.gate.replica()

    def forwarders(_: str) -> list[str]:
        return [peer for peer, offer in offers().items() if offer.forwards]

    with Loop() as loop:
        p2p: P2P = loop.run(node.replicate_p2p(gate, "pipeline"))
        try:
            opener = Caller(Endpoint(p2p, run.run_id), Greeter(gate, signer), forwarders)
            asks = Measuring(opener, stages, FORMS[run.pipeline.activations], offers)
            yield Swarming(loop, asks, lambda: gate.mirror(node.gate))
        finally:
            loop.run(p2p.shutdown())
