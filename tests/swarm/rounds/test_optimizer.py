"""What a device does beside a round, and what becomes of its samples; the averager does what it is told."""

import hashlib
import math
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hivemind.utils import get_dht_time

from dedloc_kit.learning.tasks.batches import ORIGIN
from dedloc_kit.learning.train.computing.card import Computed
from dedloc_kit.learning.train.gradients.gradients import Gradients
from dedloc_kit.learning.train.gradients.local_steps import LocalSteps
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.state.replica import Replica
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.steps import Contribution, GlobalStep, LeftOut, Receipt
from dedloc_kit.swarm.audits.recomputing import line_of
from dedloc_kit.swarm.averaging.entries import new_entry, piece_of
from dedloc_kit.swarm.averaging.result import RoundResult
from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.chain.anchor import Anchor
from dedloc_kit.swarm.chain.branch import Anchored, Branch, Head
from dedloc_kit.swarm.consensus.electorate import Electorate
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.records import Commit, Entry, Epoch, PartReset, Reset, Voter
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.incidents import Incidents
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.kinds import PROGRESS
from dedloc_kit.swarm.rounds import optimizer
from dedloc_kit.swarm.rounds.optimizer import Caller, CollaborativeOptimizer
from dedloc_kit.swarm.trust.pledge import Work
from dedloc_kit.swarm.trust.weight import claimed
from tests.identities import an_identity
from tests.learning.train.by_hand import give
from tests.swarm.harness import PlainDHT, belief, profile, progress, wait_until
from tests.swarm.rounds.local_averager import LocalAverager
from tests.tiny import TinyTask, tiny_run

BATCH, MICROBATCH = 10, 2


class Averager(LocalAverager):
    """Whoever is expected comes at once; a round lasts until a test ends it."""

    def end(self, outcome: RoundResult) -> None:
        with self.vector.held() as flat:
            if outcome.outcome == "complete":
                self._left_out = flat.clone()
                flat.fill_(1.0)  # what the others had
        super().end(outcome)

    def put_back(self) -> None:
        with self.vector.held() as flat:
            flat.copy_(self._left_out)


class Host:
    """Of a branch that believes whatever it is told. :ivar voters: of the next step"""

    def __init__(self, run_id: str, organizer: str) -> None:
        self._run_id, self._organizer = run_id, organizer
        self.voters = frozenset({organizer})
        self.head = self._at(1, "", None)

    def is_alive(self) -> bool:
        return True

    def _at(self, step: int, link: str, commit: Commit | None) -> Head:
        voters = {Voter(peer, 1): 1 for peer in self.voters}
        electorate = Electorate(voters, None)
        where = Instance(self._run_id, "", step, link, (0, ""), self._organizer, self._organizer, electorate)
        coordinator, part = Voter(self._organizer, 1), PartReset(part="", previous="", state="0" * 64)
        reset = Reset(run_id=self._run_id, term=0, step=1, parts=(part,), coordinator=coordinator)
        anchor = Anchor(part="", reset=reset, coordinator=coordinator)
        return Head(where, files.encode(Anchored(anchor=anchor, commit=commit)), 1)

    def call(self, method: Any, *arguments: Any, **_: Any) -> Future[Any]:
        if method is Branch.take:
            ((commit,),) = arguments
            self.head = self._at(commit.after, commit.link, commit)
        done = Future[Any]()
        done.set_result(self.head if method in (Branch.take, Branch.load) else None)
        return done

    def commit(self, contributions: Mapping[str, Contribution]) -> Commit:
        """The next step, with these."""
        instance = self.head.instance
        entries = [new_entry(instance, Voter(peer, 1), given) for peer, given in contributions.items()]
        first = instance.value(entries[:1], (entries[0].samples,), "7" * 64)
        value = first.changed(counted=tuple(_other_names(entries)), weights=tuple(each.samples for each in entries))
        accepted = instance.accepted(Voter(self._organizer, 1), Epoch(1, self._organizer, "0" * 64), value)
        return Commit(value=value, accepted=(accepted,))


def _other_names(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Each brings gradients of its own; the first one under the name that follows from its contribution."""
    yield from entries[:1]
    for entry in entries[1:]:
        name = hashlib.sha256(entry.peer.encode()).hexdigest()
        yield entry.changed(pieces=tuple(piece.model_copy(update={"hash": name}) for piece in entry.pieces))


class Volunteer:
    """The only one of its swarm that computes; the organizer follows."""

    def __init__(self, folder: Path, **averaging: Any) -> None:
        self.at = 0.0
        """Of the clock by which it knows who is there, and when it may gather."""
        run = tiny_run(global_batch=BATCH, averaging=averaging)
        dht = cast(Any, PlainDHT())
        dht.is_alive, dht.run_coroutine = lambda: True, lambda *_, **__: None
        state = TrainingState(TinyTask(run).model(), lambda m: Lamb(m.parameters(), lr=0.1), run)
        self._replica = replica = Replica(state, torch.device("cpu"))
        self._parameters = list(replica.model.parameters())
        self.gradients: Gradients | LocalSteps = Gradients([replica])
        if run.averaging.mode == "local-steps":
            local = Lamb(self._parameters, lr=0.1)
            self.gradients = LocalSteps(
                [replica], local, local_batch=MICROBATCH, max_norm=1.0, learning_rate=lambda _: 0.1
            )
        me, self.organizer = (Signer(an_identity(folder / name)) for name in ("me", "organizer"))
        self.averager = Averager(me.peer, state.layout)
        self.peer, self._directory = me.peer, Directory(dht, PROGRESS, run.run_id, reject=pytest.fail)
        believed = belief(me.peer, organizer=self.organizer.peer)
        self.tracker = Tracker(dht, me, run, (), Incidents(), believed, now=lambda: self.at)
        transfers = SimpleNamespace(share=lambda _: None)
        self.host = Host(run.run_id, self.organizer.peer)
        exchange: Any = SimpleNamespace(averager=self.averager, weigh=claimed, host=self.host, transfers=transfers)
        caller = Caller(threading.Event(), 1000, lambda *_: None, lambda *_: None)
        self.optimizer = CollaborativeOptimizer(
            state, [replica], self.gradients, exchange, self.tracker, me, profile(), caller
        )
        self.averager.hear = self.optimizer.rounds.hear
        self.averager.here = lambda: {
            peer: told.position for peer, told in self.tracker.at(*self.optimizer.state.position).items()
        }
        self.optimizer.branch.begin()
        self.batch: dict[str, torch.Tensor] = {}
        """What it computes."""
        self.hear()

    def hear(self, seconds: float = 1.0) -> None:
        """The organizer holds the same state, so many seconds later."""
        step, round_id = self.optimizer.state.position
        told = progress(
            run_id=self.optimizer.run.run_id,
            step=step,
            round=round_id,
            samples=0,
            samples_per_second=0.0,
            sketch=self.optimizer.state.sketch,
            follower=True,
            incarnation=1,
            time=get_dht_time(),
        )
        self._directory.store(self.organizer, told, peers=1)
        self.at += seconds
        self.tracker.refresh()

    @property
    def weights(self) -> torch.Tensor:
        """What its device holds."""
        return torch.cat([parameter.detach().flatten() for parameter in self._parameters])

    def compute(self, gradient: float = 0.0) -> None:
        """A microbatch, each of whose gradients is this number."""
        self.take(gradient)
        self.optimizer.boundary()

    def take(self, gradient: float) -> None:
        """The same, before the device looks what is due."""
        step = self._replica.step
        give(self._replica, gradient, MICROBATCH, step=step, work=line_of(self.batch, step))
        self.optimizer.count([Computed(0, MICROBATCH, 1.0, MICROBATCH)])

    def compute_until_ahead(self, gradient: float = 0.0) -> None:
        self.optimizer.boundary()  # what the background is quicker with than the device
        for _ in range(20):
            if self.optimizer.ahead:
                return
            self.compute(gradient)
        pytest.fail("it never waits")

    def await_beginning(self) -> Contribution:
        """What it brings to the next round."""
        before = len(self.averager.brought)
        for _ in range(3):  # look for a group; begin
            self.optimizer.boundary()
            if len(self.averager.brought) > before:
                return self.averager.brought[-1]
        pytest.fail("it does not begin")

    def end_round(self, outcome: Any, *authors: str, followers: Collection[str] = (), **more: Any) -> None:
        mine = self.averager.brought[-1]
        contributions = dict.fromkeys(sorted(authors, key=lambda peer: peer != self.peer), mine)
        contributions |= dict.fromkeys(followers, mine.model_copy(update={"samples": 0}))
        weights = {peer: given.samples for peer, given in contributions.items()}
        given = {self.peer: mine.model_copy(update={"samples": 0}), **contributions}  # the first one's name is its own
        commit = self.host.commit(given) if outcome == "complete" else None
        offered = piece_of(mine.model_dump_json()) if mine.samples else ""
        self.averager.end(RoundResult(outcome, commit, contributions, weights, offered, **more))
        self.optimizer.boundary()
        self.optimizer.refresh(0)
        self.hear(0.0 if outcome == "failed" else 1.0)


@pytest.fixture(autouse=True)
def _waits_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "AHEAD_SECONDS", 0.0)


def test_a_device_computes_one_batch_beside_a_round_and_then_waits_for_the_step_so_that_each_step_holds_one(
    tmp_path: Path,
) -> None:
    me = Volunteer(tmp_path)
    for _ in range(3):
        me.compute_until_ahead()
        assert (me.gradients.counter.in_flight, me.gradients.counter.pending) == (BATCH, BATCH)
        me.end_round("complete", me.peer)
        assert not me.optimizer.ahead
    assert [mine.samples for mine in me.averager.brought] == [BATCH] * 3
    assert me.optimizer.step == 3


def test_a_round_begins_with_a_line_for_each_microbatch_and_the_step_whose_parameters_it_was_computed_with(
    tmp_path: Path,
) -> None:
    me = Volunteer(tmp_path)
    me.batch = {ORIGIN: torch.tensor([[3, 1, 40], [3, 1, 41]])}
    while not me.averager.brought:
        me.compute()
    assert me.averager.work == (Work(3, 1, 40, MICROBATCH, 0).content,) * (BATCH // MICROBATCH)
    me.batch = {ORIGIN: torch.tensor([[4, -1, 0], [4, -1, 1]])}
    me.compute()
    me.end_round("complete", me.peer)
    while len(me.averager.brought) == 1:
        me.compute()
    late, *rest = map(Work.read, me.averager.work)
    assert (late, {*rest}) == (Work(4, None, 0, MICROBATCH, 0), {Work(4, None, 0, MICROBATCH, 1)})
    assert MICROBATCH * len(me.averager.work) == me.averager.brought[1].samples


def test_where_microbatches_have_no_names_a_round_begins_without_lines(tmp_path: Path) -> None:
    me = Volunteer(tmp_path)
    me.compute_until_ahead()
    assert (me.averager.brought[-1].samples, list(me.averager.work)) == (BATCH, [])


def test_the_first_word_after_a_step_tells_of_what_was_computed_beside_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me, told = Volunteer(tmp_path), list[Progress]()
    me.compute_until_ahead()
    monkeypatch.setattr(me.tracker, "report", lambda mine, *_, **__: told.append(mine))
    me.end_round("complete", me.peer)
    assert [(each.samples, each.fixed) for each in told if each.step == 1][:1] == [(BATCH, False)]


@pytest.mark.parametrize(("overlap", "brings", "mean"), [(True, 2 * BATCH, 2.0), (False, BATCH, 3.0)])
def test_who_is_left_out_of_a_round_keeps_its_samples_for_the_next_one_unless_they_are_too_old_by_then(
    tmp_path: Path, warned: list[str], overlap: bool, brings: int, mean: float
) -> None:
    me = Volunteer(tmp_path, overlap=overlap)
    while not me.averager.brought:
        me.compute(1.0)
        me.optimizer.boundary()
    if overlap:
        me.compute_until_ahead(3.0)
    else:
        assert me.optimizer.ahead, "exact training has no use for more"
    me.end_round("complete", me.organizer.peer)
    assert me.optimizer.step == 1
    while len(me.averager.brought) == 1:
        me.compute(3.0) if not overlap else None
        me.optimizer.boundary()
    assert me.averager.brought[1].samples == brings
    with me.averager.vector.held() as flat:
        assert flat.tolist() == pytest.approx([mean] * len(flat))
    assert [f"{BATCH} samples were computed on parameters that are too old; dropped" in warned] == [not overlap]


@pytest.mark.parametrize("overlap", [True, False])
def test_after_a_round_that_failed_a_device_goes_on_until_the_next_one_which_takes_in_what_it_computed(
    tmp_path: Path, overlap: bool
) -> None:
    me = Volunteer(tmp_path, overlap=overlap)
    while not me.averager.brought:
        me.compute(1.0)
        me.optimizer.boundary()
    assert me.optimizer.ahead != overlap
    me.end_round("failed")
    for _ in range(5):
        assert not me.optimizer.ahead, "the batch is full, but nothing is under way"
        me.compute(3.0)
    assert len(me.averager.brought) == 1
    me.at += 60.0
    me.hear()
    while len(me.averager.brought) == 1:
        me.optimizer.boundary()
    assert me.averager.brought[1].samples == 2 * BATCH
    assert me.optimizer.ahead != overlap
    with me.averager.vector.held() as flat:
        assert flat.tolist() == pytest.approx([2.0] * len(flat))


def test_local_steps_go_on_beside_a_round_and_from_its_average_on_however_soon_a_device_takes_that_over(
    tmp_path: Path,
) -> None:
    me = Volunteer(tmp_path, mode="local-steps")
    state = me.optimizer.state
    state.listen(lambda: me.optimizer.refresh(0))  # a device that has waited for it
    for step in range(1, 4):
        me.optimizer.boundary()  # what the background is quicker with than the device
        while not me.optimizer.closed:
            me.compute(1.0)
        fixed = me.weights
        me.compute_until_ahead(1.0)
        late = me.weights - fixed
        assert bool(late.any())
        assert len(me.averager.brought) == step
        me.end_round("complete", me.peer)
        shared = torch.cat([parameter.detach().flatten() for parameter in state.parameters])
        assert torch.allclose(me.weights, shared + late, atol=1e-6)
    assert [mine.samples for mine in me.averager.brought] == [BATCH] * 3


@pytest.mark.parametrize("mode", ["global-batch", "local-steps"])
def test_a_round_begins_beside_the_microbatch_of_a_slow_device_which_counts_for_the_samples_that_it_has(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = Volunteer(tmp_path, mode=mode)
    fast = progress(
        run_id=me.optimizer.run.run_id,
        step=0,
        round="",
        samples=BATCH - MICROBATCH,
        sketch=me.optimizer.state.sketch,
        fixed=True,
        time=get_dht_time(),
    )
    me._directory.store(Signer(an_identity(tmp_path / "fast")), fast, peers=2)
    me.tracker.refresh()
    monkeypatch.setattr(me.tracker, "start", lambda: None)
    me.optimizer.begin()
    me.take(0.0)  # and the device is at its next one from now on
    wait_until(lambda: bool(me.averager.brought), "it waits for the device")
    assert me.averager.brought[-1].samples == MICROBATCH
    me.optimizer._leaving.set()


@pytest.mark.parametrize("overlap", [True, False])
def test_who_waits_much_is_told_what_a_larger_batch_would_do_unless_waiting_is_what_was_asked_for(
    tmp_path: Path, warned: list[str], overlap: bool
) -> None:
    me = Volunteer(tmp_path, overlap=overlap)
    me.optimizer._idling = cast(Any, SimpleNamespace(limited=lambda *_, **__: True))
    me.compute_until_ahead()
    me.optimizer.boundary()
    assert (optimizer.IDLING in warned) == overlap


def test_a_step_says_who_was_left_out_of_it(tmp_path: Path) -> None:
    me, told = Volunteer(tmp_path), list[GlobalStep]()
    me.optimizer._on_step = lambda step, _: told.append(step)
    me.compute_until_ahead()
    me.end_round("complete", me.peer, absent={"QmGone": "fell silent"})
    assert [(step.step, step.left_out) for step in told] == [(1, LeftOut(count=1, some={"QmGone": "fell silent"}))]


def test_that_somebody_did_not_come_is_told_of_who_gave_to_the_step_before_and_not_of_who_followed(
    tmp_path: Path,
) -> None:
    me, told = Volunteer(tmp_path), list[GlobalStep]()
    me.optimizer._on_step = lambda step, _: told.append(step)
    me.compute_until_ahead()
    me.end_round("complete", me.peer, "QmGave", followers=["QmFollowed", me.organizer.peer])
    me.compute_until_ahead()
    me.end_round("complete", me.peer, absent={"QmGave": "did not come", "QmFollowed": "did not come"})
    assert [step.left_out for step in told] == [None, LeftOut(count=1, some={"QmGave": "did not come"})]


def test_an_order_to_go_back_that_was_done_before_a_restart_is_not_done_again(tmp_path: Path) -> None:
    """The others have gone back; the organizer's peer, with an older checkpoint, has learned of it from them."""
    me = Volunteer(tmp_path)
    state = me.optimizer.state
    earlier = state.copy()
    me.optimizer.go_back(earlier, 0.5, 3)
    state.go_back(*earlier, Receipt(step=4, round="4" * 64, time=1.0, seconds=0.0, record=b""), 0.5)
    me.optimizer.boundary()
    assert not me.optimizer.goes_back
    assert (state.step, state.rate) == (4, 0.5)


@pytest.mark.parametrize(("voters", "begins"), [(1, True), (3, False)])
def test_whoever_goes_on_with_a_state_begins_only_with_most_voters_of_its_last_step(
    tmp_path: Path, voters: int, begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = Volunteer(tmp_path, overlap=False)
    me.host.voters = frozenset({me.organizer.peer, *(f"Qm{number}" for number in range(1, voters))})
    me.compute_until_ahead()
    me.end_round("complete", me.peer)
    before = len(me.averager.brought)
    while me.optimizer.samples < BATCH:
        me.compute()
    for _ in range(3):
        me.optimizer.boundary()
    assert len(me.averager.brought) - before == begins


def test_where_somebody_says_how_much_a_batch_holds_no_round_begins_with_less_or_before_that_is_known(
    tmp_path: Path,
) -> None:
    me, wanted = Volunteer(tmp_path, overlap=False), [math.inf]
    me.optimizer.fills(lambda: wanted[0])
    for _ in range(2 * BATCH // MICROBATCH):
        me.compute(1.0)
    assert (me.averager.brought, me.optimizer.closed) == ([], False)
    me.averager.group.called = True  # by one that may turn away from whoever brings less than it knows of
    me.optimizer.boundary()
    assert not me.averager.brought
    wanted[0] = 2 * BATCH + MICROBATCH
    me.optimizer.boundary()
    assert (me.averager.brought, me.optimizer.closed) == ([], False)
    me.compute(1.0)
    me.optimizer.boundary()
    assert me.optimizer.closed
    assert (me.averager.brought[-1].samples, me.averager.brought[-1].batch) == (wanted[0], wanted[0])


def test_what_others_compute_is_forgotten_though_it_is_fixed_unless_it_is_on_its_way_to_a_round(tmp_path: Path) -> None:
    me = Volunteer(tmp_path, overlap=False)
    me.compute(1.0)
    me.optimizer.rounds.batch.fix()
    assert me.optimizer.closed
    assert me.optimizer.forget()
    assert (me.optimizer.closed, me.optimizer.samples) == (False, 0)
    while not me.averager.brought:
        me.compute(1.0)
        me.optimizer.boundary()
    assert not me.optimizer.forget()
    assert me.optimizer.samples == me.averager.brought[0].samples


def test_samples_that_are_not_among_those_of_the_batch_do_not_fill_it_and_go_into_the_step(tmp_path: Path) -> None:
    me, beside = Volunteer(tmp_path, overlap=False), [MICROBATCH]
    me.optimizer.fills(lambda: BATCH, lambda: beside[0])
    while me.optimizer.samples < BATCH - MICROBATCH:
        me.compute(1.0)
    me.optimizer.boundary()
    assert (me.averager.brought, me.optimizer.closed) == ([], False)
    me.compute(1.0)
    me.optimizer.boundary()
    assert me.optimizer.closed
    assert (me.averager.brought[-1].samples, me.averager.brought[-1].batch) == (BATCH + MICROBATCH, BATCH)


def test_a_step_that_is_said_to_hold_nothing_is_taken_and_proves_nothing(tmp_path: Path) -> None:
    """A stage's whose only driver has died before that one got anything."""
    me = Volunteer(tmp_path, overlap=False)
    belief, wanted = me.tracker.belief, [math.inf]
    belief.took(0, get_dht_time(), {"asha": 10})
    me.optimizer.fills(lambda: wanted[0])
    me.optimizer.boundary()
    assert not me.averager.brought
    wanted[0] = 0
    for _ in range(2):  # it looks for its group, then begins
        me.optimizer.boundary()
    (mine,) = me.averager.brought
    assert (mine.samples, mine.loss, mine.batch) == (0, None, 0)
    me.host.voters = frozenset()
    me.averager.end(RoundResult("complete", me.host.commit({me.peer: mine}), {me.peer: mine}))
    with me.averager.vector.held() as average:
        average.zero_()
    me.optimizer.boundary()
    assert (me.optimizer.step, belief.taken.step, belief.taken.samples) == (1, 1, {"asha": 10})
    me.optimizer.refresh(0)
    assert me.weights.isfinite().all()


@pytest.mark.parametrize("wanted", [BATCH, BATCH - MICROBATCH], ids=["full without it", "short"])
def test_a_group_without_somebody_who_has_the_rest_of_a_batch_is_called_off_for_nobody_computes_that_again(
    tmp_path: Path, wanted: int
) -> None:
    """Also where the batch is short, for a driver seems to have died: whoever knows of few drivers may be mistaken."""
    me = Volunteer(tmp_path, overlap=False)
    me.optimizer.fills(lambda: wanted)
    while me.optimizer.samples < BATCH - 2 * MICROBATCH:
        me.compute(1.0)
    other = Signer(an_identity(tmp_path / "other"))
    told = progress(
        run_id=me.optimizer.run.run_id,
        step=0,
        round="",
        samples=MICROBATCH,
        sketch=me.optimizer.state.sketch,
        fixed=True,
        time=get_dht_time(),
    )
    group = me.averager.group
    assert me.organizer.peer in group.members
    assert not group.done
    me._directory.store(other, told, peers=2)
    me.tracker.refresh()
    me.compute(1.0)
    me.optimizer.boundary()
    assert group.done
    assert all(other.peer in group.peers for group in me.averager.groups[1:])
