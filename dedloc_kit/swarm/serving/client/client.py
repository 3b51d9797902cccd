"""A client's side of a session: through servers that may die at any moment, with the same result."""

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dedloc_kit.blocks.adapters.adapters import Adapter
from dedloc_kit.blocks.past import Past
from dedloc_kit.blocks.plans.plan import LayerRange, Server
from dedloc_kit.blocks.plans.routes import Hop, NoRoute, route
from dedloc_kit.swarm.remote.lines import Opener
from dedloc_kit.swarm.remote.tensors import Form, in_form
from dedloc_kit.swarm.serving.client.checking import Checker, Work
from dedloc_kit.swarm.serving.client.history import History
from dedloc_kit.swarm.serving.client.leg import Leg, LegFailed, part_of
from dedloc_kit.swarm.serving.protocol import Backward, Neighbours, Open, Pass, Step, call

FAILURES = 6
"""Of servers in one step; then it is given up."""
NEWS_SECONDS = 4.0
"""For so long a server is waited for that has just come: who looks every two seconds knows it by then."""
AVOIDED = 60.0
"""Seconds for which a server that has failed is not asked, if there is another."""

Inputs = dict[int, Tensor]
"""Hidden states, by the layer that they go into."""


@dataclass(frozen=True)
class SessionConfig:
    """What is asked for.

    :ivar version: digest of the model's manifest
    :ivar length: how many tokens it may have in all
    :ivar adapter: with which all is computed
    """

    version: str
    layers: int
    hidden_size: int
    length: int
    form: Form = "float16"
    adapter: Adapter | None = None


class SessionFailed(Exception):
    """Too many servers failed, one after the other."""


class RemoteSession:
    """One call at a time. Each raises NoRoute if nobody serves some layers, SessionFailed if too many servers fail.

    :param me: our peer's id
    :param servers: who is ready now
    :param round_trips: seconds between two peers
    :param avoided: servers that have failed, and until when they are not asked; sessions may share it
    :param checker: has some of what servers answer computed again by others
    """

    def __init__(
        self,
        opener: Opener,
        me: str,
        servers: Callable[[], Sequence[Server]],
        round_trips: Callable[[], Mapping[tuple[str, str], float]],
        config: SessionConfig,
        avoided: dict[str, float] | None = None,
        checker: Checker | None = None,
    ) -> None:
        self.config, self._checker = config, checker
        self.recoveries = 0
        """How often a part of the route was replaced."""
        self._opener, self._me = opener, me
        self._servers, self._round_trips = servers, round_trips
        self._avoided = {} if avoided is None else avoided
        self._lock = asyncio.Lock()
        self._legs: list[Leg] = []
        self._number = 0
        self._past = _Remembered()

    @property
    def route(self) -> tuple[Hop, ...]:
        """Who computes which layers now."""
        return tuple(Hop(leg.server, LayerRange(leg.begin, leg.end)) for leg in self._legs)

    async def step(self, hidden: Tensor, mask: Tensor | None, positions: Tensor | None, past: Past) -> Tensor:
        """Hidden states after all layers, which remember them; as `blocks.ends.Through` with a past."""
        if not past.tokens <= self._past.tokens:
            raise ValueError(f"a past of {self._past.tokens} tokens, not of {past.tokens}")
        async with self._lock:
            self._past.keep(past.tokens)
            self._number += 1
            rows = b"" if past.rows is None else np.array(past.rows, "<u2").tobytes()
            fields = call(hidden, mask, positions, past.tokens)
            step = Step(**fields, number=self._number, past_rows=rows, undoable=past.undoable)
            step.check(step.rows, self.config.length)
            inputs = {0: in_form(hidden, self.config.form)}
            await self._insisting(lambda: self._through(step, inputs), step.rows)
            begins = [leg.begin for leg in self._legs]
            self._past.add({begin: inputs[begin] for begin in begins}, mask, positions, past)
            if self._checker is not None:
                self._have_checked(inputs)
            return inputs[self.config.layers]

    async def forward(self, hidden: Tensor, mask: Tensor | None, positions: Tensor | None) -> tuple[Tensor, Inputs]:
        """The same without a past, and what `backward` needs."""
        inputs = {0: in_form(hidden, self.config.form)}
        async with self._lock:
            asked = Pass(**call(hidden, mask, positions))
            asked.check(asked.rows, self.config.length)
            await self._insisting(lambda: self._ahead(asked, inputs, self.config.layers), asked.rows, grow=True)
        return inputs[self.config.layers], inputs

    async def backward(
        self, inputs: Inputs, mask: Tensor | None, positions: Tensor | None, gradient: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradient of what went into the first layer, and those of the adapter's tensors by their names.

        :param inputs: of `forward`
        :param gradient: of what came out of the last one
        """
        gradients, of_adapter = {self.config.layers: gradient}, dict[str, Tensor]()
        fields = call(inputs[0], mask, positions)
        async with self._lock:
            work = partial(self._back, fields, inputs, gradients, of_adapter)
            await self._insisting(work, fields["rows"], grow=True)
        return gradients[0], of_adapter

    async def close(self) -> None:
        legs, self._legs = self._legs, []
        await asyncio.gather(*(leg.close() for leg in legs))

    async def distrust(self, server: str) -> None:
        """Go on without this server, and without what came of it: of the layers after it nothing is remembered."""
        async with self._lock:
            wrong = [leg for leg in self._legs if leg.server == server]
            if wrong:
                after = [leg for leg in self._legs if leg.begin >= wrong[0].begin]
                self._past.forget(after=wrong[0].begin)
                await self._drop(after)

    def _have_checked(self, inputs: Inputs) -> None:
        """Of a step that is done, perhaps: the first row of what one of the servers has computed."""
        assert self._checker is not None
        for leg in self._legs:
            if self._checker.wants(leg.server):
                hidden, mask, positions = self._past.into(leg.begin)
                work = Work(
                    leg.server,
                    LayerRange(leg.begin, leg.end),
                    hidden[:1].clone(),
                    None if mask is None else mask[:1],
                    positions[:1],
                    inputs[leg.end][:1],
                    self.config.adapter,
                )
                self._checker.check(self, work, self.config.version, self.config.form)

    async def _insisting(self, work: Callable[[], Coroutine[Any, Any, None]], rows: int, grow: bool = False) -> None:
        """Do it, if need be again by other servers. What is broken off begins anew next time, by what is remembered."""
        failures = Counter[str]()
        last: LegFailed | None = None
        try:
            if grow:
                await self._drop([leg for leg in self._legs if leg.opened.rows < rows])
            while failures.total() < FAILURES:
                try:
                    await self._connect(rows, failures)
                    await work()
                    return
                except LegFailed as failed:
                    last = failed
                    await self._failed(failed, failures)
                except NoRoute as missing:
                    raise missing from last
            raise SessionFailed(f"{failures.total()} servers have failed, the last one: {last}")
        except BaseException:
            await self.close()
            raise

    async def _failed(self, failed: LegFailed, failures: Counter[str]) -> None:
        legs = [leg for leg in self._legs if leg.server == failed.server]
        if failed.why == "push" and legs:  # the server before it has pushed what cannot be right
            legs = [leg for leg in self._legs if leg in legs or leg.server == legs[-1].neighbours.previous]
            failed = LegFailed(legs[0].server, "it pushes nonsense")
        failures[failed.server] += 1
        if failed.why not in ("past", "order"):
            until = time.monotonic() + AVOIDED
            self._avoided[failed.server] = max(until, self._avoided.get(failed.server, until))
        await self._drop(legs)

    async def _drop(self, legs: Sequence[Leg]) -> None:
        self._legs = [leg for leg in self._legs if leg not in legs]
        for leg in legs:
            await leg.close()

    async def _connect(self, rows: int, failures: Mapping[str, int]) -> None:
        """Have a server for each layer, with the past and the right neighbours."""
        if missing := self._missing():
            self.recoveries += bool(self._legs or self._past.tokens)
            hops = [hop for span in missing for hop in await self._awaited_route(span, failures)]
            await self._open(hops, rows)
        for leg, neighbours in zip(
            self._legs, _neighbours([(x.server, x.opened.session) for x in self._legs]), strict=True
        ):
            if leg.neighbours != neighbours:
                await leg.redirect(neighbours)

    def _missing(self) -> list[LayerRange]:
        edges = [0, *(edge for leg in self._legs for edge in (leg.begin, leg.end)), self.config.layers]
        return [LayerRange(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]

    async def _awaited_route(self, span: LayerRange, failures: Mapping[str, int]) -> tuple[Hop, ...]:
        """The same, perhaps by a server of which nothing has been heard yet."""
        until = time.monotonic() + NEWS_SECONDS
        while True:
            try:
                return self._route(span, failures)
            except NoRoute:
                if time.monotonic() >= until:
                    raise
            await asyncio.sleep(NEWS_SECONDS / 10)

    def _route(self, span: LayerRange, failures: Mapping[str, int]) -> tuple[Hop, ...]:
        now, servers, trips = time.monotonic(), self._servers(), self._round_trips()
        avoided = {server for server, until in self._avoided.items() if until > now}
        wrong = {server for server, until in self._avoided.items() if until > now + AVOIDED}
        for without in (avoided, wrong | set(failures)):
            with suppress(NoRoute):
                return route(span, servers, self._me, trips, without)
        # a line may have broken whose server is well; who has answered wrongly never is
        failed = {server for server, times in failures.items() if times > 1}
        return route(span, servers, self._me, trips, wrong | failed)

    async def _open(self, hops: Sequence[Hop], rows: int) -> None:
        """Sessions for these hops, with the past."""
        new = {hop.span.begin: (hop, secrets.token_hex(16)) for hop in hops}
        places = {leg.begin: (leg.server, leg.opened.session) for leg in self._legs}
        places |= {begin: (hop.server, session) for begin, (hop, session) in new.items()}
        around = dict(zip(sorted(places), _neighbours([places[begin] for begin in sorted(places)]), strict=True))
        config, rows = self.config, self._past.rows or rows
        opening = list[asyncio.Task[Leg]]()
        for hop, session in new.values():
            begin, end = hop.span.begin, hop.span.end
            adapter = part_of(config.adapter, hop.span)
            question = Open(
                session=session,
                version=config.version,
                begin=begin,
                end=end,
                length=config.length,
                rows=rows,
                form=config.form,
                neighbours=around[begin],
                adapter="" if adapter is None else adapter.digest,
            )
            opening.append(asyncio.create_task(Leg.open(self._opener, hop.server, question, adapter)))
        try:
            await asyncio.wait(opening)
        finally:
            for task in opening:
                task.cancel()
        opened = sorted((task.result() for task in opening if task.exception() is None), key=lambda leg: leg.begin)
        try:
            while opened and all(task.exception() is None for task in opening):
                await self._catch_up(opened[0])
                self._legs = sorted([*self._legs, opened.pop(0)], key=lambda leg: leg.begin)
        finally:
            for leg in opened:
                await leg.close()
        for task in opening:
            task.result()

    async def _catch_up(self, leg: Leg) -> None:
        """Let a new server compute what the session remembers."""
        if not self._past.tokens:
            return
        hidden, mask, positions = self._past.into(leg.begin)
        wanted = leg.end < self.config.layers and not self._past.knows(leg.end)
        await leg.ask(Step(**call(hidden, mask, positions), number=0, output=wanted), hidden)
        output, _ = await leg.answer(0, hidden.shape if wanted else None)
        if output is not None:
            self._past.learn(leg.end, output)

    async def _through(self, step: Step, inputs: Inputs) -> None:
        """Let the servers compute what is still missing of a step."""
        pushed = False
        for leg in self._legs:
            if leg.end in inputs:
                continue
            if not pushed:
                await leg.ask(step, inputs[leg.begin])
            output, pushed = await leg.answer(step.number, inputs[0].shape)
            assert output is not None
            inputs[leg.end] = output

    async def _ahead(self, asked: Pass, inputs: Inputs, until: int) -> None:
        for leg in self._legs:
            if leg.end not in inputs and leg.end <= until:
                await leg.ask(asked, inputs[leg.begin])
                output, _ = await leg.answer(0, inputs[0].shape)
                assert output is not None
                inputs[leg.end] = output

    async def _back(
        self, fields: dict[str, Any], inputs: Inputs, gradients: dict[int, Tensor], of_adapter: dict[str, Tensor]
    ) -> None:
        await self._ahead(Pass(**fields), inputs, self._legs[-1].begin)
        for leg in reversed(self._legs):
            if leg.end in gradients and leg.begin not in gradients:
                given, scale = _scaled(gradients[leg.end])
                await leg.ask(Backward(**fields), inputs[leg.begin], in_form(given, self.config.form))
                output, own = await leg.gradients(inputs[0].shape)
                gradients[leg.begin] = output.float() / scale
                of_adapter |= {name: each / scale for name, each in own.items()}


class _Remembered:
    """What has gone into the layers at which servers of the route begin, and what belonged to it."""

    def __init__(self) -> None:
        self.tokens = 0
        self.rows = 0
        self._hidden: dict[int, History] = {}
        self._mask: Tensor | None = None
        self._positions = torch.zeros((0, 0), dtype=torch.int32)

    def keep(self, tokens: int) -> None:
        """Forget what comes after the first tokens."""
        for history in self._hidden.values():
            history.keep(tokens)
        self.tokens = tokens
        self.rows = self.rows if tokens else 0

    def knows(self, layer: int) -> bool:
        return layer in self._hidden

    def into(self, layer: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """Hidden states, mask and positions."""
        mask = None if self._mask is None else self._mask[:, : self.tokens]
        return self._hidden[layer].all(), mask, self._positions[:, : self.tokens]

    def forget(self, after: int) -> None:
        """What has gone into later layers than this one."""
        self._hidden = {layer: history for layer, history in self._hidden.items() if layer <= after}

    def learn(self, layer: int, hidden: Tensor) -> None:
        """What has gone into a layer at which a server begins now."""
        self._hidden[layer] = History()
        self._hidden[layer].add(hidden)

    def add(self, inputs: Inputs, mask: Tensor | None, positions: Tensor | None, past: Past) -> None:
        """A step that all have done, and that follows this past."""
        rows, new = inputs[0].shape[:2]
        self._hidden = {layer: self._hidden.get(layer, History()) for layer in inputs}
        for layer, history in self._hidden.items():
            history.follow(past)
            history.add(inputs[layer])
        if positions is None:
            positions = torch.arange(past.tokens, past.tokens + new)[None]
        before = self._positions[:, : past.tokens] if past.tokens else torch.zeros((rows, 0), dtype=torch.int32)
        before = before if past.rows is None else before[list(past.rows)]
        self._positions = torch.cat([before, positions.to("cpu", torch.int32).expand(rows, new)], 1)
        self._mask = None if mask is None else mask.to("cpu", torch.bool)
        self.tokens, self.rows = past.tokens + new, rows


def _neighbours(places: Sequence[tuple[str, str]]) -> list[Neighbours]:
    """Of servers and their sessions, in the order of the route."""
    before = ["", *(server for server, _ in places[:-1])]
    after = [*places[1:], ("", "")]
    return [
        Neighbours(previous=previous, next=server, next_session=session)
        for previous, (server, session) in zip(before, after, strict=True)
    ]


def _scaled(gradient: Tensor) -> tuple[Tensor, float]:
    """By a power of two, so that small ones do not vanish in float16; the way back is linear."""
    largest = float(gradient.abs().amax())
    scale = 2.0 ** -math.frexp(largest)[1] if 0 < largest < math.inf else 1.0
    return gradient * scale, scale
