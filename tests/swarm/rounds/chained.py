"""Training states whose chains lie in memory: a coordinator that takes steps alone, and what peers ask of it."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import torch
from hivemind.compression import serialize_torch_tensor
from hivemind.utils import MSGPackSerializer, get_dht_time

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.state.no_state import NoState
from dedloc_kit.learning.train.state.state import Position as State
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.position import Position
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.allreduce.encoding.codec import decode_all
from dedloc_kit.swarm.allreduce.parts import digest_of
from dedloc_kit.swarm.averaging.entries import new_entry
from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.chain.branch import Anchored, Branch, World
from dedloc_kit.swarm.consensus.records import Commit, Epoch, Voter
from dedloc_kit.swarm.consensus.resets import ResetOptions
from dedloc_kit.swarm.gathering.peers import PeerTable
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.p2p.adapters import KeySigner, KeyVerifier
from dedloc_kit.swarm.rounds.catchup import CatchUp
from dedloc_kit.swarm.rounds.finished_step import receipt_of
from dedloc_kit.swarm.rounds.state_branch import StateBranch
from dedloc_kit.swarm.transfer.contents import RecentAverage
from dedloc_kit.swarm.transfer.protocol import Header
from dedloc_kit.swarm.trust.pledge import contribution_kind
from dedloc_kit.swarm.trust.weight import claimed
from tests.swarm.audits.audited import pledged
from tests.swarm.harness import belief, progress
from tests.swarm.p2p import in_memory

BATCH = 32


class Chains:
    """The processes of peers that exchange messages, in memory: each has its `Branch`."""

    def __init__(self, organizer: Signer, runner: asyncio.Runner) -> None:
        self.organizer, self._runner = organizer, runner
        self._world = in_memory.World(1)

    def host(self, run: RunConfig, signer: Signer, disk: in_memory.MemoryDisk | None = None) -> Any:
        """As `network.host.Host`, with a branch."""
        network = in_memory.MemoryNetwork(self._world, signer.peer)
        clock, disk = in_memory.MemoryClock(), disk or in_memory.MemoryDisk()
        world = World(network, clock, disk, self._world.random, KeySigner(signer), KeyVerifier())
        branch = Branch(run.run_id, self.organizer.peer, world, ResetOptions(run.global_batch))
        self._runner.run(branch.serve())
        return _Host(branch, self._runner)

    def sleep(self, seconds: float) -> None:
        """In virtual time."""
        self._runner.run(asyncio.sleep(seconds))

    def branch(
        self,
        state: TrainingState | NoState,
        signer: Signer,
        tracker: Any = None,
        disk: in_memory.MemoryDisk | None = None,
    ) -> StateBranch:
        """:param tracker: of a peer that hears others"""
        tracker = tracker or SimpleNamespace(belief=belief(signer.peer, self.organizer.peer), others=dict)
        return StateBranch(self.host(state.run, signer, disk), state, tracker, signer, claimed)


class _Host:
    def __init__(self, branch: Branch, runner: asyncio.Runner) -> None:
        self._branch, self._runner = branch, runner

    def call(self, method: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(self._runner.run(method(self._branch, *arguments, **named)))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def chains(organizer: Signer) -> Iterator[Chains]:
    with asyncio.Runner(loop_factory=in_memory.Loop) as runner:
        yield Chains(organizer, runner)


def a_state(run: RunConfig, model: torch.nn.Module | None = None) -> TrainingState:
    torch.manual_seed(0)
    return TrainingState(model or torch.nn.Linear(100, 50), lambda m: Lamb(m.parameters(), lr=0.1), run)


def a_contribution(run: RunConfig, step: int, **values: Any) -> Contribution:
    """Of one batch."""
    said = {"run_id": run.run_id, "samples": BATCH, "session_samples": BATCH, "time": get_dht_time(), **values}
    whole = pledged("x", step, **said)
    kind = contribution_kind(run.trust)
    return kind.parse({name: getattr(whole, name) for name in kind.model_fields})


class Coordinator:
    """Takes steps alone. :ivar kept: the averages of its steps"""

    def __init__(
        self,
        among: Chains,
        run: RunConfig,
        model: torch.nn.Module | None = None,
        checkpoint: tuple[dict[str, torch.Tensor], StateInfo] | None = None,
        disk: in_memory.MemoryDisk | None = None,
    ) -> None:
        """:param checkpoint: with which it begins; :param disk: with its chain, if it has one"""
        self.run, self.signer, self.state = run, among.organizer, a_state(run, model)
        if checkpoint is not None:
            self.state.load_named(*checkpoint)
        self._among, self.branch = among, among.branch(self.state, self.signer, disk=disk)
        self.kept = list[RecentAverage]()
        self.branch.begin()

    def kept_average(self, after: str) -> RecentAverage | None:
        return next((average for average in self.kept if average.after == after), None)

    def commit(self, parts: tuple[bytes, ...], **values: Any) -> Commit:
        """The next step with this average."""
        assert self.branch.head is not None
        instance, signer = self.branch.head.instance, KeySigner(self.signer)
        voter = Voter(self.signer.peer, self.branch.incarnation)
        entry = new_entry(instance, voter, a_contribution(self.run, self.state.step + 1, **values)).signed(signer)
        value = instance.value((entry,), (entry.samples,), digest_of(parts))
        accepted = instance.accepted(voter, Epoch(1, voter.peer, "0" * 64), value).signed(signer)
        return Commit(value=value, accepted=(accepted,))

    def step(self, **values: Any) -> Commit:
        """:param values: of its contribution"""
        number = self.state.step + 1
        gradient = torch.randn(self.state.layout.size, generator=torch.Generator().manual_seed(number))
        parts = (serialize_torch_tensor(gradient).SerializeToString(),)
        commit = self.commit(parts, **values)
        self.kept.append(RecentAverage(commit.previous, commit.link, number, files.encode(commit), parts))
        decay = self.branch.decay_in(self.branch.reader.in_commit(commit))
        self.state.apply(decode_all(parts, gradient.numel()), receipt_of(commit, get_dht_time()), decay)
        self.branch.moved(self.branch.take(commit))
        return commit

    def roll_back(self, tensors: dict[str, torch.Tensor], info: StateInfo, rate: float) -> str:
        """Let the next step take over this earlier state; returns the link of the reset."""
        head = self.branch.take_over(self.state.step + 1, info, rate)
        reset = files.decode(head.anchor, Anchored).anchor.reset
        self.state.go_back(tensors, info, receipt_of(reset, get_dht_time()), rate)
        self.branch.moved(head)
        return reset.link

    def replace_voters(self) -> None:
        """A full batch waits, of a peer without a vote, and nobody decides on it."""
        waits = progress(step=self.state.step, round=self.state.round, samples=BATCH)
        while not self.branch.look({"waits": waits}):
            self._among.sleep(1.0)

    def forget_records(self) -> None:
        """As if they were more than anybody keeps."""
        self.branch.moved(self.branch.at(self.state.info, self.state.anchor))

    def header(self) -> Header:
        """What it answers if it is asked for its state."""
        with self.state.for_newcomer() as (metadata, _):
            return Header(answer="here", total=1, metadata=MSGPackSerializer.dumps(metadata))


class Impatient(threading.Event):
    """Waits for nothing. :ivar meanwhile: what others do then"""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def wait(self, timeout: float | None = None) -> bool:
        self.meanwhile()
        return self.is_set()


class Others(PeerTable):
    """Everybody who tells something is there. :param told: gives what others tell now"""

    def __init__(self, me: str, told: Callable[[], dict[str, Progress]]) -> None:
        super().__init__(me)
        self._told_now = told

    def alive(self) -> dict[str, Position]:
        return {peer: progress.position for peer, progress in self._told_now().items()}


def directory(me: str, told: Callable[[], dict[str, Progress]]) -> Any:
    """As `SharedTable`."""
    return SimpleNamespace(table=Others(me, told), lock=threading.Lock(), suspect=lambda _: None, doubt=lambda _: None)


class Follower:
    """A peer that hears a coordinator, and asks it for what it lacks.

    :ivar coordinator: it may be another one that has begun anew
    :ivar gives: what that gives for an average after a link
    :ivar asked: what it was asked for: "average" or "state"
    :ivar header: what it says of its state
    :ivar newest: where those say that the swarm is whose word counts for a newcomer
    :ivar reachable: whether it gives anything; `no_state`: averages at most
    :ivar stop: what it waits for
    """

    def __init__(
        self, among: Chains, coordinator: Coordinator, signer: Signer, model: torch.nn.Module | None = None
    ) -> None:
        self.coordinator, self.run = coordinator, coordinator.run
        self.state = a_state(self.run, model)
        self.asked, self.rejected = list[str](), list[str]()
        self.loading = list[tuple[int, int]]()
        self.gives: Callable[[str], RecentAverage | None] = coordinator.kept_average
        self.header: Callable[[], Header | None] = coordinator.header
        self.reachable, self.no_state, self.stop = True, False, Impatient()
        self.newest: Callable[[State], State] = lambda own: max(self.coordinator.state.position, own, key=itemgetter(0))
        self.others: Callable[[], dict[str, Progress]] = lambda: {coordinator.signer.peer: self.there()}
        transfers = SimpleNamespace(
            download_average=self._average,
            download_state=self._state,
            ask_for_state=lambda _: done(self.header()),
            ask_for_sketch=None,
        )
        averager = SimpleNamespace(forget_feedback=lambda: None)
        exchange: Any = SimpleNamespace(transfers=transfers, averager=averager)
        tracker: Any = SimpleNamespace(
            newest=lambda own: self.newest(own),
            at=lambda *position: {p: said for p, said in self.others().items() if (said.step, said.round) == position},
            others=lambda: self.others(),
            belief=belief(signer.peer, coordinator.signer.peer),
            proves=bool,
            reject=self.rejected.append,
            refresh=lambda: None,
            peers=directory(signer.peer, lambda: self.others()),
        )
        self.branch = among.branch(self.state, signer, tracker)
        profile: Any = SimpleNamespace(client_mode=False)
        self.catch_up = CatchUp(
            *(self.state, exchange, tracker, self.branch, profile, self.stop),
            lambda received, total: self.loading.append((received, total)),
        )

    @property
    def said(self) -> dict[str, Any]:
        """What the coordinator says of itself, besides where it is."""
        return {}

    def there(self) -> Progress:
        """What the coordinator says of itself."""
        state = self.coordinator.state
        told = {"step": state.step, "round": state.round, "term": self.coordinator.branch.term}
        return progress(**{**told, "sketch": state.sketch, **self.said})

    def _average(self, after: str, _donors: Sequence[str], **_how: object) -> RecentAverage | None:
        self.asked.append("average")
        return self.gives(after) if self.reachable else None

    def _state(self, *_what: object, **_how: object) -> tuple[dict[str, Any], Sequence[torch.Tensor]] | None:
        self.asked.append("state")
        if self.no_state or not self.reachable:
            return None
        with self.coordinator.state.for_newcomer() as (metadata, tensors):
            return metadata, [tensor.clone() for tensor in tensors]

    def is_there(self) -> bool:
        """Does it hold the very state of the coordinator, at the same place of the chain?"""
        pairs = zip(self.state.tensors(), self.coordinator.state.tensors(), strict=True)
        assert self.branch.head is not None
        assert self.coordinator.branch.head is not None
        same = self.branch.head.instance == self.coordinator.branch.head.instance
        return same and self.state.position == self.coordinator.state.position and all(torch.equal(*p) for p in pairs)


def done(value: Header | None) -> Future[Header | None]:
    future = Future[Header | None]()
    future.set_result(value)
    return future
