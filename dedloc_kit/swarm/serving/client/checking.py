"""A small part of what servers compute is computed a second time by others: who answers wrongly is found and avoided.

This is no proof. Machines differ in their last digits and in the format of their weights, so answers are compared with
a tolerance, and whoever changes little enough is not found.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dedloc_kit.blocks.adapters.adapters import Adapter
from dedloc_kit.blocks.plans.plan import LayerRange, Server
from dedloc_kit.blocks.plans.routes import Hop, NoRoute, route
from dedloc_kit.serving.config import WeightFormat
from dedloc_kit.swarm.remote.lines import Opener
from dedloc_kit.swarm.remote.tensors import Form
from dedloc_kit.swarm.serving.client.leg import Leg, LegFailed, part_of
from dedloc_kit.swarm.serving.protocol import Neighbours, Open, Pass, call

SHARE = 0.02
"""Of the steps of a server that are checked, beside its first ones."""
FIRST = 2
"""Steps of a server that is new to this client."""
AT_ONCE = 2
"""Checks that may be under way; each costs others a prompt."""
MAX_TOKENS = 4096
"""Of a text; longer ones are not checked."""
AVOIDED = 3600.0
"""Seconds for which whoever answered wrongly is not asked."""
TOLERANCE: Mapping[WeightFormat, float] = {"float32": 0.1, "bfloat16": 0.15, "int8": 0.3, "int4": 0.8}
"""How far the changes that layers make may be apart, relative to their size, with weights in these formats."""
_LARGEST = 0.02
"""The share of the channels that is left out: a few are a hundred times as large as the rest, and hide it."""

_log = logging.getLogger(__name__)


class Distrusting(Protocol):
    """A session whose servers are checked."""

    async def distrust(self, server: str) -> None:
        """Go on without this server, and without what came of it."""


@dataclass(frozen=True)
class Work:
    """What a server has done in one row of a text.

    :ivar hidden: all that went into its layers, [1, tokens, hidden]
    :ivar mask: [1, tokens], or None
    :ivar positions: [1, tokens]
    :ivar output: what it answered for the last tokens, [1, new, hidden]
    :ivar adapter: the client's, with which it was computed
    """

    server: str
    layers: LayerRange
    hidden: Tensor
    mask: Tensor | None
    positions: Tensor
    output: Tensor
    adapter: Adapter | None = None


class Checker:
    """One client's, for all its sessions.

    :param servers: who is ready now with a version
    :param form: in which format a server holds its weights
    :param avoided: gets those who answer wrongly, and until when they are not asked
    :param told: what came of a check that went wrong, in words
    """

    def __init__(
        self,
        opener: Opener,
        me: str,
        servers: Callable[[str], Sequence[Server]],
        form: Callable[[str], WeightFormat],
        avoided: dict[str, float],
        told: Callable[[str], None],
        share: float = SHARE,
    ) -> None:
        self._opener, self._me, self._servers, self._form = opener, me, servers, form
        self._avoided, self._told, self._share = avoided, told, share
        self._draw = secrets.SystemRandom()  # nobody may know which of its steps is checked
        self._steps = Counter[str]()
        self.agreed, self.wrong = Counter[str](), Counter[str]()
        """How often a server's answers were found right, and wrong."""
        self.doubtful = 0
        """Checks in which two differed and nobody else could decide."""
        self._under_way: set[asyncio.Task[None]] = set()

    def wants(self, server: str) -> bool:
        """Is the step that this server has just done to be checked?"""
        self._steps[server] += 1
        due = self._steps[server] <= FIRST or self._draw.random() < self._share
        return due and len(self._under_way) < AT_ONCE

    def check(self, session: Distrusting, work: Work, version: str, form: Form) -> None:
        """In the background."""
        if work.hidden.shape[1] <= MAX_TOKENS:
            task = asyncio.create_task(self._check(session, work, version, form))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        """End what is under way."""
        for task in tuple(self._under_way):
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _check(self, session: Distrusting, work: Work, version: str, form: Form) -> None:
        try:
            second, said = await self._again(work, version, form, {work.server})
        except (NoRoute, LegFailed) as error:
            _log.info("a check came to nothing: %s", error)
            return
        if self._agree(work, work.output, {work.server}, said, second):
            self.agreed.update({work.server, *second})
            return
        try:
            third, also_said = await self._again(work, version, form, {work.server, *second})
        except (NoRoute, LegFailed):
            self.doubtful += 1
            return
        if self._agree(work, said, second, also_said, third):
            await self._found(session, work.server, work.layers)
        elif self._agree(work, work.output, {work.server}, also_said, third) and len(second) == 1:
            await self._found(session, next(iter(second)), work.layers)
        else:
            self.doubtful += 1

    async def _found(self, session: Distrusting, server: str, layers: LayerRange) -> None:
        self.wrong[server] += 1
        self._avoided[server] = time.monotonic() + AVOIDED
        self._told(f"a server (...{server[-6:]}) answered wrongly for the layers {layers}; it is not asked any more")
        await session.distrust(server)

    def _agree(self, work: Work, one: Tensor, of: set[str], other: Tensor, by: set[str]) -> bool:
        tolerance = max(TOLERANCE[self._form(server)] for server in of | by)
        return difference(one, other, work.hidden[:, -one.shape[1] :]) <= tolerance

    async def _again(self, work: Work, version: str, form: Form, without: set[str]) -> tuple[set[str], Tensor]:
        """Let others do the same; raises NoRoute if nobody else can, LegFailed if they fail."""
        avoided = {server for server, until in self._avoided.items() if until > time.monotonic()}
        hops = route(work.layers, self._servers(version), self._me, {}, without | avoided)
        hidden = work.hidden
        for hop in hops:
            hidden = await self._passed(hop, hidden, work, version, form)
        return {hop.server for hop in hops}, hidden[:, -work.output.shape[1] :]

    async def _passed(self, hop: Hop, hidden: Tensor, work: Work, version: str, form: Form) -> Tensor:
        adapter = part_of(work.adapter, hop.span)
        opened = Open(
            session=secrets.token_hex(16),
            version=version,
            begin=hop.span.begin,
            end=hop.span.end,
            length=hidden.shape[1],
            rows=1,
            form=form,
            neighbours=Neighbours(),
            adapter="" if adapter is None else adapter.digest,
        )
        leg = await Leg.open(self._opener, hop.server, opened, adapter)
        try:
            await leg.ask(Pass(**call(hidden, work.mask, work.positions)), hidden)
            output, _ = await leg.answer(0, hidden.shape)
            assert output is not None
            return output
        finally:
            await leg.close()


def difference(one: Tensor, other: Tensor, before: Tensor) -> float:
    """Between what two have made of the same hidden states, relative to the change that the second one made.

    All [1, tokens, hidden]. The channels with the largest values count for nothing.
    """
    one, other, before = (tensor.float()[0] for tensor in (one, other, before))
    kept = max(1, int(other.shape[-1] * (1 - _LARGEST)))
    channels = other.abs().amax(0).argsort()[:kept]
    change = (other - before)[:, channels].norm()
    return float((one - other)[:, channels].norm() / change.clamp_min(1e-12))
