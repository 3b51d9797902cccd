"""When a peer that gathers begins, and when it gives its group up; the DHT is a dictionary."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hivemind.utils import get_dht_time

from dedloc_kit.learning.train.gradients.accumulator import MAX_STALENESS
from dedloc_kit.learning.train.gradients.gradients import Gradients
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.state.replica import Replica
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.orders import Instructions
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.steps import MAX_LOSS, Absence, Contribution, LeftOut, Receipt
from dedloc_kit.swarm.averaging.result import RoundResult
from dedloc_kit.swarm.consensus.electorate import Electorate
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.records import Voter
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.directory.tracker import TIME_TO_LIVE, Tracker
from dedloc_kit.swarm.gathering.timing import FIRST_WINDOW
from dedloc_kit.swarm.incidents import Incidents
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.kinds import PROGRESS
from dedloc_kit.swarm.rounds.rounds import Rounds
from dedloc_kit.swarm.trust.weight import Weigh, allowed, claimed
from tests.identities import an_identity
from tests.learning.train.by_hand import give
from tests.swarm.harness import PlainDHT, belief, profile, progress
from tests.swarm.rounds.local_averager import LocalAverager
from tests.tiny import TinyTask, tiny_run


class Peer:
    """One that trains, and what it does when another one tells the directory something."""

    def __init__(
        self,
        folder: Path,
        schedule: str = "linear",
        weigh: Weigh = claimed,
        checks: str = "off",
        *,
        follower: bool = False,
        led: bool = False,
        **averaging: Any,
    ) -> None:
        settings = {"learning_rate": 0.01, "schedule": schedule, "warmup_steps": 0, "total_steps": 1000}
        self.run = run = tiny_run(global_batch=10, averaging=averaging, optimizer=settings, trust={"checks": checks})
        self.dht, self.at = cast(Any, PlainDHT()), 0.0
        """`at`: seconds of the clock by which it knows who is there."""
        self._run_id, self.follower = run.run_id, follower
        self.state = state = TrainingState(TinyTask(run).model(), lambda m: Lamb(m.parameters(), lr=0.1), run)
        self.replica = Replica(state, torch.device("cpu"))
        self.gradients = Gradients([self.replica])
        me, self.other = (Signer(an_identity(folder / name)) for name in ("me", "other"))
        self.averager = LocalAverager(me.peer, state.layout)
        exchange: Any = SimpleNamespace(averager=self.averager, weigh=weigh)
        believed = belief(me.peer, self.other.peer if led else "organizer")
        self.tracker = Tracker(self.dht, me, run, (), Incidents(), believed, now=lambda: self.at)
        self.peer = me.peer
        electorate = Electorate({Voter(me.peer, 1): 1}, None)
        organizer = believed.organizer
        head = Instance(run.run_id, "", 1, "", (0, ""), organizer, organizer, electorate)
        self.end: Any = SimpleNamespace(head=head, last=None)
        branch: Any = SimpleNamespace(needed=lambda _: frozenset(), end=self.end)
        shown, self.speed = replace(profile(), follower=follower), 0.0
        self.rounds = Rounds(
            *(state, self.gradients, exchange, self.tracker, me, shown, branch), lambda: self._progress().position
        )
        self.averager.hear = self.rounds.hear
        self.averager.here = lambda: {
            peer: told.position for peer, told in self.tracker.at(*self.state.position).items()
        }

    def _progress(self) -> Progress:
        return progress(
            run_id=self._run_id,
            step=self.state.step,
            round=self.state.round,
            samples=self.rounds.samples,
            samples_per_second=self.speed,
            follower=self.follower,
            incarnation=1,
        )

    def gather(self, speed: float) -> None:
        """Look whether it is time to, of a peer that computes so many samples per second."""
        self.speed = speed
        self.rounds.gather_if_due()
        if self.rounds.under_way and (self.averager.group is None or self.averager.group.done):
            self.averager.come()
            self.at += 1.0
            self.rounds.hear([])

    def round(self, result: RoundResult) -> RoundResult | None:
        """What comes of a round with this result."""
        self.gather(1.0)
        self.rounds.advance()
        self.averager.end(result)
        return self.rounds.advance()

    def begin_alone(self) -> Contribution:
        """What it brings to a group of its own."""
        before = len(self.averager.groups)
        self.gather(1.0)
        assert [group.peers for group in self.averager.groups[before:]] == [{self.peer}]
        self.rounds.advance()
        return self.averager.brought[-1]

    def hear(self, samples: int | None, time: float, who: Signer | None = None, **more: Any) -> None:
        """The other one (or who else it is) has so many samples, as of then; none: it leaves."""
        told = progress(
            **{"run_id": self._run_id, "step": 0, "round": "", "samples": samples or 0, "time": time} | more
        )
        directory = Directory(self.dht, PROGRESS, self._run_id, reject=pytest.fail)
        directory.store(who or self.other, told if samples is not None else None, peers=1)
        self.at += 1.0
        self.tracker.refresh()

    def hear_nothing_new(self, seconds: float) -> None:
        """In looks of so long."""
        for _ in range(math.ceil(seconds)):
            self.at += 1.0
            self.tracker.refresh()


def a_receipt(step: int) -> Receipt:
    return Receipt(step=step, round="ab" * 32, time=get_dht_time(), seconds=0.0, record=b"")


@pytest.mark.parametrize(("leaves", "asked"), [(False, "begin"), (True, "call off")])
def test_a_group_begins_though_a_member_is_slow_to_report_but_not_after_one_has_left(
    tmp_path: Path, leaves: bool, asked: str
) -> None:
    me = Peer(tmp_path)
    me.hear(5, time=get_dht_time())
    give(me.replica, samples=4)
    me.gather(100.0)
    assert me.rounds.under_way
    me.rounds.advance()
    assert me.averager.asked == [], "the batch is not full yet"

    if leaves:
        me.hear(None, time=get_dht_time())
    else:
        me.hear_nothing_new(5.0)
    give(me.replica, samples=6)
    me.rounds.advance()
    assert me.averager.asked == [asked]


def test_a_group_gathers_when_the_batch_is_probably_nearly_full_and_begins_when_it_is(tmp_path: Path) -> None:
    early, me = Peer(tmp_path), Peer(tmp_path)
    give(early.replica, samples=2)
    early.hear(0, time=get_dht_time(), samples_per_second=2.0)
    early.gather(0.1)
    assert not early.rounds.under_way, "eight samples are missing"
    give(me.replica, samples=2)
    me.hear(0, time=get_dht_time(), samples_per_second=2.0)
    me.at += 3.0
    me.gather(0.1)
    assert me.rounds.under_way, "by now it has six more, and the last two come in a second"
    me.rounds.advance()
    assert me.averager.asked == [], "nobody has told of a full batch"
    me.hear(8, time=get_dht_time(), samples_per_second=2.0)
    me.rounds.advance()
    assert me.averager.asked == ["begin"]


def test_what_a_member_tells_of_another_step_does_not_fill_this_batch(tmp_path: Path) -> None:
    me = Peer(tmp_path)
    give(me.replica, samples=4)
    me.hear(5, time=get_dht_time())
    me.gather(100.0)
    me.hear(9, time=get_dht_time(), step=1, round="cd")
    me.rounds.advance()
    assert me.averager.asked == []
    me.hear(6, time=get_dht_time())
    me.rounds.advance()
    assert me.averager.asked == ["begin"]


@pytest.mark.parametrize(("weigh", "begins"), [(claimed, True), (allowed, False)])
def test_who_claims_too_much_fills_no_batch(tmp_path: Path, weigh: Weigh, begins: bool) -> None:
    """Else all would go to one round after the other that is then refused."""
    me, liar = Peer(tmp_path, weigh=weigh), Signer(an_identity(tmp_path / "liar"))
    give(me.replica, samples=1)
    me.hear(1, time=get_dht_time())
    me.hear(600, time=get_dht_time(), who=liar)
    me.gather(100.0)
    me.rounds.advance()
    assert (me.averager.asked == ["begin"]) == me.rounds.batch.fixed == begins
    assert me.rounds.swarm_samples() == (602 if begins else 3)
    give(me.replica, samples=3)
    me.hear(2, time=get_dht_time())
    me.rounds.advance()
    assert me.averager.asked == ["begin"]
    assert me.rounds.swarm_samples() >= 10


def test_a_peer_that_has_long_said_nothing_does_not_fill_the_batch(tmp_path: Path) -> None:
    me = Peer(tmp_path)
    me.hear(0, time=get_dht_time() - TIME_TO_LIVE + 3.0, samples_per_second=1.0)
    me.gather(0.1)
    assert not me.rounds.under_way


def test_a_peer_that_never_saw_anyone_is_a_group_of_its_own(tmp_path: Path) -> None:
    me = Peer(tmp_path)
    give(me.replica, samples=10)
    me.gather(1.0)
    assert not me.rounds.under_way, "it has not looked yet"
    me.tracker.refresh()
    me.gather(1.0)
    assert [group.peers for group in me.averager.groups] == [{me.peer}]
    me.rounds.advance()
    assert me.averager.asked == ["begin"]


def test_a_machine_that_slept_takes_no_step_alone_before_it_has_looked_for_the_others_for_a_while(
    tmp_path: Path,
) -> None:
    me = Peer(tmp_path)
    me.hear(5, time=get_dht_time())
    give(me.replica, samples=10)
    me.at += 3600.0
    me.dht.keys.clear()  # its connections are dead: it finds nobody
    me.averager.comes = False
    for _ in range(int(TIME_TO_LIVE / 2)):
        me.hear_nothing_new(1.0)
        me.gather(1.0)
        me.rounds.call_off()
    assert me.averager.groups == []
    me.averager.comes = True
    me.hear(5, time=get_dht_time())
    me.gather(1.0)
    assert [group.peers for group in me.averager.groups] == [{me.peer, me.other.peer}]


def test_a_peer_whose_others_are_gone_goes_on_alone_in_the_end(tmp_path: Path) -> None:
    me = Peer(tmp_path)
    me.hear(5, time=get_dht_time())
    give(me.replica, samples=10)
    me.averager.comes = False
    while not me.averager.groups and me.at < 10 * TIME_TO_LIVE:
        me.gather(1.0)
        me.rounds.call_off()
        me.hear_nothing_new(4.0)
    assert [group.peers for group in me.averager.groups] == [{me.peer}]
    assert me.at > 1.5 * TIME_TO_LIVE, "it was looked for after its record had lapsed"


@pytest.mark.parametrize(("overlap", "oldest"), [(True, 4), (False, 0)])
def test_gradients_of_parameters_that_are_too_old_are_dropped_and_exact_training_takes_none_that_is_old(
    tmp_path: Path, warned: list[str], overlap: bool, oldest: int
) -> None:
    me = Peer(tmp_path, overlap=overlap)
    give(me.replica, samples=7)
    me.state.step = oldest
    me.rounds.batch.drop_stale()
    assert (me.gradients.counter.samples, warned) == (7, [])
    me.state.step = oldest + 1
    me.rounds.batch.drop_stale()
    assert me.gradients.counter.samples == 0
    assert warned == ["7 samples were computed on parameters that are too old; dropped"]


@pytest.mark.parametrize(("overlap", "seconds", "limit"), [(True, 35.0, 20), (True, 19.0, None), (False, 6.0, 5)])
def test_who_is_too_slow_for_the_others_is_told_how_long_a_microbatch_may_take(
    tmp_path: Path, warned: list[str], overlap: bool, seconds: float, limit: int | None
) -> None:
    me = Peer(tmp_path, overlap=overlap)
    now = get_dht_time()
    me.state.receipts = tuple(a_receipt(step).model_copy(update={"time": now + 5.0 * step}) for step in (5, 6, 7))
    told = progress(run_id=me.run.run_id, step=7, round="", samples=0, time=now, boundary_seconds=seconds)
    me.tracker.report(told, period=60.0)
    give(me.replica, samples=2)
    me.state.step = 7
    me.rounds.batch.drop_stale()
    (text,) = warned
    assert text.startswith("2 samples were computed on parameters that are too old; dropped")
    slow = f": a microbatch takes {seconds:.0f} s here and a global step 5.0 s, and what takes longer than "
    assert (slow in text) == (limit is not None)
    assert limit is None or f"longer than {limit} s hardly ever counts; let one sample go at once" in text


def test_old_samples_that_did_not_count_do_not_spoil_new_ones(tmp_path: Path, warned: list[str]) -> None:
    me = Peer(tmp_path)
    me.tracker.refresh()
    give(me.replica, samples=4)
    me.rounds.batch.fix()
    me.rounds.batch.open()
    me.state.step = MAX_STALENESS + 1
    give(me.replica, samples=10, step=me.state.step)
    assert me.begin_alone().samples == 10
    assert warned == ["4 samples were computed on parameters that are too old; dropped"]


def test_a_round_that_has_begun_is_not_called_off_for_until_it_ends_the_vector_is_the_averagers(tmp_path: Path) -> None:
    me = Peer(tmp_path)
    me.hear(5, time=get_dht_time())
    give(me.replica, samples=5)
    me.gather(100.0)
    me.rounds.call_off()
    assert (me.averager.asked, me.rounds.under_way) == (["call off"], False)
    me.gather(100.0)
    me.rounds.advance()
    me.rounds.call_off()
    assert (me.averager.asked, me.rounds.begun) == (["call off", "begin"], True)


def test_the_organizers_order_to_decay_is_brought_also_when_it_is_gone_until_a_step_has_begun_it(
    tmp_path: Path,
) -> None:
    me = Peer(tmp_path, schedule="warmup-stable-decay")
    me.tracker.belief.organizer = me.other.peer

    def brings(order: str | None) -> str:
        """:param order: what the organizer says; none if it is gone"""
        told = Instructions(paused=False, last_step=None, announcement="", decay_order=order or "")
        me.hear(0 if order is not None else None, time=get_dht_time(), instructions=told)
        return me.rounds._contribution().decay_order

    assert [brings(order) for order in ("", "abcd", None, "")] == ["", "abcd", "abcd", ""]
    assert brings("abcd") == "abcd"
    me.state.apply(torch.zeros(me.state.layout.size), a_receipt(1), 4)
    assert brings("abcd") == "", "it has begun"


def test_what_hosts_of_experts_have_answered_is_brought_to_each_step(tmp_path: Path) -> None:
    me = Peer(tmp_path)
    assert me.rounds._contribution().answered == {}
    me.rounds.confirms(lambda step: {"QmHost": 100 * step})
    assert me.rounds._contribution().answered == {"QmHost": 100}


@pytest.mark.parametrize(("loss", "said"), [(2.5, 2.5), (1e12, MAX_LOSS), (-1e12, -MAX_LOSS)])
def test_a_loss_beyond_all_bounds_is_told_as_the_bound_and_ends_nobody(
    tmp_path: Path, loss: float, said: float
) -> None:
    me = Peer(tmp_path)
    me.tracker.refresh()
    give(me.replica, samples=10, loss=loss)
    assert me.begin_alone().loss == said


def test_what_a_peer_says_it_gave_in_its_session_grows_with_each_step(tmp_path: Path) -> None:
    me, said = Peer(tmp_path), []
    me.tracker.refresh()
    for step, samples in enumerate((10, 12)):
        give(me.replica, samples=samples, step=step)
        mine = me.begin_alone()
        said.append((mine.samples, mine.session_samples))
        me.averager.end(RoundResult("complete"))
        me.rounds.advance()
        me.gradients.mark_applied()
        me.state.step += 1
        me.end.head = replace(me.end.head, step=me.state.step + 1, previous=f"{step:064x}")
        me.rounds.stepped({})
    assert said == [(10, 10), (12, 22)]


@pytest.mark.parametrize(
    ("why", "gave_before", "follower", "told"),
    [
        ("fell silent", False, False, True),
        ("did not come", True, False, True),
        ("did not come", False, False, False),
        ("fell silent", True, True, False),
    ],
)
def test_who_was_left_out_is_told_by_no_single_peers_word(
    tmp_path: Path, why: Absence, gave_before: bool, follower: bool, told: bool
) -> None:
    me = Peer(tmp_path)
    me.averager.strangers = frozenset({"QmStranger"})
    result = RoundResult("complete", absent={"QmStranger": "did not come", me.other.peer: why})
    me.rounds.stepped({me.other.peer: 5} if gave_before else {})
    me.hear(5, time=get_dht_time(), follower=follower)
    give(me.replica, samples=10)
    assert me.round(result) is result
    assert me.rounds.left_out == (LeftOut(count=1, some={me.other.peer: why}) if told else None)


@pytest.mark.parametrize("known", [True, False])
def test_who_gave_to_the_step_before_and_comes_to_no_group_is_left_out(tmp_path: Path, known: bool) -> None:
    me = Peer(tmp_path)
    me.averager.absent, me.averager.strangers = frozenset({me.other.peer}), frozenset({"QmOther"})
    me.rounds.stepped({me.other.peer: 5} if known else {})
    me.hear(5, time=get_dht_time())
    give(me.replica, samples=10)
    me.gather(1.0)
    assert me.averager.groups == []
    me.at += 2 * FIRST_WINDOW
    assert me.round(RoundResult("complete")) is not None
    assert [group.peers for group in me.averager.groups] == [{me.peer, "QmOther"}]
    assert me.rounds.left_out == (LeftOut(count=1, some={me.other.peer: "did not come"}) if known else None)


def test_a_step_for_which_a_round_was_refused_before_tells_who_was_missing_then(tmp_path: Path) -> None:
    me = Peer(tmp_path)
    some: dict[str, Absence] = {"QmGone": "fell silent", "QmBack": "left in the middle"}
    for result in (
        RoundResult("refused", absent=some),
        RoundResult("complete", None, {"QmBack": cast(Any, SimpleNamespace(samples=0))}),
    ):
        me.hear(5, time=get_dht_time())
        give(me.replica, samples=10)
        me.round(result)
    assert me.rounds.left_out == LeftOut(count=1, some={"QmGone": "fell silent"})
    me.state.apply(torch.zeros(me.state.layout.size), a_receipt(1))
    me.end.head = replace(me.end.head, step=2, previous=me.state.round)
    me.rounds.stepped({})
    me.hear(5, time=get_dht_time(), step=1, round=me.state.round)
    assert me.round(RoundResult("complete")) is not None
    assert me.rounds.left_out is None, "it was the step before that went on without it"


def test_of_hundreds_that_are_left_out_some_are_named() -> None:
    left_out = LeftOut.of({f"Qm{number}": "fell silent" for number in range(300)})
    assert left_out is not None
    assert (left_out.count, len(left_out.some)) == (300, 16)
    assert LeftOut.of({}) is None


def test_who_cannot_know_what_a_batch_holds_begins_when_all_say_that_it_is_full_though_nobody_calls(
    tmp_path: Path,
) -> None:
    me, another = Peer(tmp_path, follower=True), Signer(an_identity(tmp_path / "another"))
    me.rounds.batch.holds(lambda: math.inf, lambda: 0)
    for who, fixed in ((me.other, True), (another, False)):
        me.hear(8, time=get_dht_time() - 1.0, who=who, fixed=fixed)
    me.gather(0.0)
    me.rounds.advance()
    assert me.averager.asked == []
    for _ in range(2):  # what was asked before may lack somebody
        me.hear(8, time=get_dht_time(), who=another, fixed=True)
    me.rounds.advance()
    assert me.averager.asked == ["begin"]
