"""Nine peers of one run in three rows, in one process: real optimizers and real rounds over pairs of sockets.

What is not real is the directory, which is a dictionary, and who computes when: one after the other, by turns.
"""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.learning.train.computing.card import Card
from dedloc_kit.learning.train.flat import SharedVector
from dedloc_kit.learning.train.gradients.gradients import Gradients
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.schedule import learning_rate
from dedloc_kit.learning.train.state.replica import Replica
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.steps import Contribution, GlobalStep, Receipt
from dedloc_kit.swarm.averaging.allreduce import AllReduce
from dedloc_kit.swarm.averaging.averager import Averager
from dedloc_kit.swarm.averaging.matchmaking.grouping import OneGroup
from dedloc_kit.swarm.averaging.matchmaking.row_meeting import Matchmaking, RowService
from dedloc_kit.swarm.averaging.matchmaking.search import GroupService
from dedloc_kit.swarm.averaging.service import AveragingService, Rules
from dedloc_kit.swarm.directory.rows import Division
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.incidents import Incidents
from dedloc_kit.swarm.network.identity import Identity, Signer
from dedloc_kit.swarm.network.service import Service
from dedloc_kit.swarm.rounds.exchange import Exchange
from dedloc_kit.swarm.rounds.optimizer import Caller, CollaborativeOptimizer
from dedloc_kit.swarm.transfer.donor import Donor
from dedloc_kit.swarm.transfer.service import StateSource, Transfers, TransferService
from tests.swarm.harness import PlainDHT, belief, profile
from tests.swarm.local_network import LocalNetwork
from tests.tiny import TinyTask

ROWS, PEERS = 3, 9
SECONDS = 240.0
"""Without a new step, on a machine of which this test gets a fifth of a core."""


class InRows(OneGroup):
    """However few they are."""

    def division(self, step: int, receipts: Sequence[Receipt]) -> Division:
        return Division(ROWS, step)


class View:
    """The directory as one peer reaches it."""

    def __init__(self, whole: PlainDHT) -> None:
        self.whole = whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def is_alive(self) -> bool:
        return True


class LocalHost:
    """The other side of an exchange: services in the loop of another thread instead of another process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, services: Collection[Service]) -> None:
        self._loop, self._services = loop, services

    def call(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Future[Any]:
        service = next(s for s in self._services if getattr(type(s), method.__name__, None) is method)
        return asyncio.run_coroutine_threadsafe(method(service, *arguments, **named), self._loop)

    def is_alive(self) -> bool:
        return True


class Peer:
    """One of them.

    :param microbatch: samples
    """

    def __init__(self, nine: "NineInRows", signer: Signer, microbatch: int) -> None:
        run, self._nine, self.microbatch, self.peer = nine.run, nine, microbatch, signer.peer
        state = self.state = TrainingState(nine.task.model(), partial(optimizer_of, run, nine.task), run)
        self._replica = Replica(state, torch.device("cpu"))
        self._card = Card(self._replica, nine.task.loss, prepare=nine.task.prepare)
        believed = belief(signer.peer, nine.organizer)
        self.view = View(nine.dht)
        dht: Any = self.view
        self.tracker = Tracker(dht, signer, run.run_id, run.global_batch, (), Incidents(), believed)
        grouping, vector = nine.grouping(run.global_batch), SharedVector(state.layout)
        self._services = nine.in_loop(self._serve(signer, grouping, vector))
        host: Any = LocalHost(nine.loop, self._services)
        self.optimizer = CollaborativeOptimizer(
            state,
            [self._replica],
            Gradients([self._replica]),
            Exchange(Averager(vector, host), Transfers(host, run.run_id), grouping, host),
            self.tracker,
            signer,
            replace(profile(), session=f"{microbatch:02x}"),
            Caller(threading.Event(), 1000, self._stepped, lambda *_: None),
        )
        self._batches = nine.task.batches(microbatch, seed_of(run.run_id, signer.peer), lambda _: None)
        self.computed = defaultdict[int, list[dict[str, torch.Tensor]]](list)
        """What it has computed with the parameters of each step, in this order."""
        self.steps: dict[int, dict[str, int]] = {}
        """Whose samples, and how many, are in each step that it has taken."""
        self.optimizer.refresh(0)
        self.optimizer._exchange.transfers.share(True)
        self.optimizer._report()

    async def _serve(self, signer: Signer, grouping: OneGroup, vector: SharedVector) -> list[Service]:
        run, endpoint = self._nine.run, self._nine.network.endpoint(signer.peer)
        endpoint.run_id = run.run_id

        source = StateSource(self.state.for_newcomer, lambda: self.state.info)

        async def newest(held: str) -> Any:
            return source.newest(held)

        donor = Donor(newest, source.layout)
        groups = GroupService(signer.peer, endpoint, client_mode=False)
        rows = RowService(signer.peer, endpoint, client_mode=False, followed=lambda: groups.followed)
        rules = Rules(grouping, all_reduce=self._nine.all_reduce)
        averaging = AveragingService(
            endpoint, Matchmaking(groups, rows), signer, run, vector, donor, rules, self._nine.organizer
        )
        services: list[Service] = [TransferService(endpoint, donor), groups, rows, averaging]
        for service in services:
            await endpoint.add(service)
        return services

    def _stepped(self, step: GlobalStep, contributions: dict[str, Contribution]) -> None:
        self.steps[step.step] = {peer: brought.samples for peer, brought in contributions.items()}

    @property
    def begun(self) -> bool:
        return self.optimizer._rounds.begun

    def turn(self) -> None:
        """Compute a microbatch if that is of use, and do what is due."""
        if not self.optimizer.ahead:
            batch, step = next(self._batches), self._replica.step
            assert self._card.submit(batch)
            self.computed[step].append(batch)
            self.optimizer.count(self._card.results())
        self.optimizer.boundary()
        self.optimizer.refresh(0)

    def tell(self) -> None:
        if self.tracker.mine is not None:
            self.tracker._publish(self.tracker.mine)

    def hear(self) -> None:
        self.tracker.refresh()
        self.tracker._summarise()

    async def leave(self) -> None:
        """Its streams break, in the middle of whatever it is doing, and it cannot average."""
        self._nine.network.cut(self.peer)
        for service in self._services[:-1]:
            self._nine.network.serve(self.peer, service)

    async def come_again(self) -> None:
        self._nine.network.serve(self.peer, self._services[-1])


class NineInRows:
    """All of them, and the loop that their services live in."""

    def __init__(
        self, folder: Path, run: RunConfig, loop: asyncio.AbstractEventLoop, grouping: type[OneGroup] = InRows
    ) -> None:
        self.run, self.loop, self.task, self.grouping = run, loop, TinyTask(run), grouping
        self.dht = PlainDHT()
        self.network = LocalNetwork()
        teams = self.teams = set[int]()
        """In how many rows rounds were."""

        class Noting(AllReduce):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                teams.add(len(self.plan.teams))

        self.all_reduce = Noting
        signers = in_rows_of_three(folder)
        self.organizer = signers[-1].peer  # its word proves a step to those of all rows
        self.peers = [Peer(self, signer, 1 + n % 3) for n, signer in enumerate(signers)]
        for what in (Peer.tell, Peer.hear, Peer.hear):  # of their rows they speak once they know them
            for peer in self.peers:
                what(peer)

    def in_loop(self, what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(SECONDS)

    def part(self, side: Collection[Peer]) -> None:
        """Cut all lines between these and the others; what each side knows of the other one it goes on knowing."""
        for half in (set(side), set(self.peers) - set(side)):
            apart = PlainDHT()
            apart.keys = {key: dict(found) for key, found in self.dht.keys.items()}
            for peer in half:
                peer.view.whole = apart
        self._lines_between(side)

    def join(self) -> None:
        """All reach each other again."""
        for peer in self.peers:
            for key, found in peer.view.whole.keys.items():
                kept = self.dht.keys.setdefault(key, {})
                newer = {k: v for k, v in found.items() if k not in kept or v.expiration_time > kept[k].expiration_time}
                kept.update(newer)
            peer.view.whole = self.dht
        self._lines_between(())

    def _lines_between(self, side: Collection[Peer]) -> None:
        async def part() -> None:
            self.network.part([peer.peer for peer in side])

        self.in_loop(part())

    def train(
        self,
        steps: int,
        happens: Callable[["NineInRows"], None] = lambda _: None,
        until: Callable[[], bool] | None = None,
    ) -> None:
        """Until all have taken so many, or this is so; after each turn of one this happens."""
        taken, deadline = list[int](), 0.0
        while not until() if until is not None else any(peer.optimizer.step < steps for peer in self.peers):
            now = [peer.optimizer.step for peer in self.peers]
            if now != taken:
                taken, deadline = now, time.perf_counter() + SECONDS
            assert time.perf_counter() < deadline, taken
            for peer in self.peers:
                if peer.optimizer.step < steps:
                    peer.turn()
                    happens(self)
            if all(peer.begun for peer in self.peers):
                time.sleep(0.02)  # there is nothing to tell, and the other thread has enough to do
            else:
                for what in (Peer.tell, Peer.hear):
                    for peer in self.peers:
                        what(peer)

    def plainly(self, steps: int) -> list[torch.Tensor]:
        """The parameters that one plain loop comes to with what counted in each step."""
        model = self.task.model()
        optimizer = optimizer_of(self.run, self.task, model)
        for step in range(steps):
            optimizer.zero_grad()
            brought = next(peer.steps[step + 1] for peer in self.peers if step + 1 in peer.steps)
            for peer in self.peers:
                for batch in peer.computed[step][: brought.get(peer.peer, 0) // peer.microbatch]:
                    loss = self.task.loss(model, self.task.prepare(batch), step).mean * (
                        peer.microbatch / sum(brought.values())
                    )
                    loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), self.run.optimizer.max_grad_norm)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(self.run.optimizer, step)
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]


def optimizer_of(run: RunConfig, task: TinyTask, model: torch.nn.Module) -> Any:
    return build_optimizer(run.optimizer, task.groups(model))


def in_rows_of_three(folder: Path) -> list[Signer]:
    found = defaultdict[int, list[Signer]](list)
    for number in range(1000):
        signer = Signer(Identity(folder / str(number)))
        row = found[Division(ROWS).row_of(signer.peer)]
        row += [signer] if len(row) < PEERS // ROWS else []
        if sum(map(len, found.values())) == PEERS:
            break
    return [signer for row in range(ROWS) for signer in found[row]]


async def end_all() -> None:
    """What is still going on in this loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@contextmanager
def nine_in_rows(folder: Path, run: RunConfig, grouping: type[OneGroup] = InRows) -> Iterator[NineInRows]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    nine = NineInRows(folder, run, loop, grouping)
    try:
        yield nine
    finally:
        nine.in_loop(end_all())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
