"""A round of which this peer sees only its own row, and what is said of the others; the DHT is a dictionary."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hivemind.utils import get_dht_time

from dedloc_kit.learning.train.flat import SharedVector
from dedloc_kit.learning.train.gradients.gradients import Gradients
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.state.replica import Replica
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.progress import RowSummary
from dedloc_kit.records.steps import Absence, AbsentRow, Contribution, LeftOut
from dedloc_kit.swarm.averaging.matchmaking.group import Coming, GroupRequest
from dedloc_kit.swarm.averaging.matchmaking.grouping import Rows
from dedloc_kit.swarm.averaging.result import RoundResult
from dedloc_kit.swarm.directory import following
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.directory.rows import Division
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.incidents import Incidents
from dedloc_kit.swarm.network.identity import Signer, opened
from dedloc_kit.swarm.network.kinds import PROGRESS, SUMMARIES, cells_of
from dedloc_kit.swarm.rounds.rounds import Rounds
from tests.identities import an_identity
from tests.learning.train.by_hand import give
from tests.swarm.harness import PlainDHT, a_signer, belief, profile, progress
from tests.tiny import TinyTask, tiny_run

DIVISION, BATCH = Division(4, 0), 100
LIVES = 600.0


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedloc_kit.swarm.directory.tracker.TIME_TO_LIVE", LIVES)
    monkeypatch.setattr(following, "HEARING_SECONDS", 0.0)  # those here have been there for long


class Clock:
    """By which a peer waits to hear of the other rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(following, "HEARING_SECONDS", 15.0)
        monkeypatch.setattr(following, "time", self)

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, _slow_machine: None) -> Clock:
    return Clock(monkeypatch)


class Pending:
    """A group that stands when the test says so."""

    called = False
    seconds = 0.1

    def __init__(self) -> None:
        self.members: frozenset[str] | None = None
        self.outcome: RoundResult | None = None

    @property
    def done(self) -> bool:
        return self.outcome is not None

    def result(self) -> RoundResult:
        assert self.outcome is not None
        return self.outcome


class Peer:
    """One that trains in a row of four."""

    def __init__(self, folder: Path) -> None:
        run = tiny_run(global_batch=BATCH)
        self.dht, self.run_id = cast(Any, PlainDHT()), run.run_id
        self.dht.run_coroutine = lambda *_, **__: None
        self.state = TrainingState(TinyTask(run).model(), lambda m: Lamb(m.parameters(), lr=0.1), run)
        self.replica = Replica(self.state, torch.device("cpu"))
        self.gradients = Gradients([self.replica])
        self.asked, self.begun = list[GroupRequest](), list[object]()
        averager: Any = SimpleNamespace(
            vector=SharedVector(self.state.layout),
            gather=self._gather,
            widen=lambda _, request: self.asked.append(request),
            begin=lambda *told, work: self.begun.append(told),
            call_off=lambda _: None,
        )
        exchange: Any = SimpleNamespace(averager=averager, grouping=Rows(BATCH))
        self.me = Signer(an_identity(folder / "me"))
        self.tracker = Tracker(self.dht, self.me, run.run_id, BATCH, (), Incidents(), belief(self.me.peer))
        self.rounds = Rounds(self.state, self.gradients, exchange, self.tracker, self.me, profile())
        self.hold()
        self.mine = DIVISION.row_of(self.me.peer)
        others = defaultdict[int, list[Any]](list)
        for number in range(60):
            others[DIVISION.row_of((signer := a_signer(number)).peer)].append(signer)
        self.others = {(row - self.mine) % 4: found[:4] for row, found in others.items()}
        """Four of this peer's row (0) and of each other one, counted from it on."""

    def hold(self, round: str = "") -> None:
        """It comes to this state."""
        self.tracker.report(progress(step=0, round=round), 1.0, DIVISION)

    def _gather(self, request: GroupRequest) -> Any:
        self.asked.append(request)
        self.pending = Pending()
        return self.pending

    def peers(self, *rows: int) -> list[str]:
        return [signer.peer for row in rows for signer in self.others[row]]

    def hear(self, row: int, samples: int, speakers: int = 3, round: str = "") -> None:
        """Peers of a row tell that the whole row has so many samples; of this peer's row each tells of itself."""
        now = get_dht_time()
        if row == 0:
            self.tell(self.others[0], samples // 4)
        else:
            summary = RowSummary(
                run_id=self.run_id,
                step=0,
                round=round,
                rows=4,
                row=(row + self.mine) % 4,
                able=tuple(p.peer for p in self.others[row][:3]),
                peers=4,
                samples=samples,
                samples_per_second=0.0,
                boundary_seconds=0.0,
                addresses=(),
                time=now,
            )
            summaries = Directory(self.dht, SUMMARIES, self.run_id, reject=pytest.fail)
            for signer in self.others[row][:speakers]:
                summaries.store(signer, summary, peers=1)
        self.tracker.refresh()

    def gives(self, *rows: int, each: int) -> dict[str, Contribution]:
        return {
            peer: Contribution(
                run_id=self.run_id,
                step=1,
                session="ab",
                samples=each,
                session_samples=each,
                loss=1.0,
                name="x",
                time=get_dht_time(),
            )
            for peer in self.peers(*rows)
        }

    def tell(self, signers: Iterable[Signer], samples: int | None) -> None:
        """Each of these tells that it has so many samples; none: it leaves."""
        told = progress(run_id=self.run_id, step=0, round="", samples=samples or 0, time=get_dht_time())
        directory = Directory(self.dht, PROGRESS, self.run_id, reject=pytest.fail)
        for signer in signers:
            cells = cells_of(signer.peer, 0)
            directory.store(signer, told if samples is not None else None, peers=0, cells=cells)
        self.tracker.refresh()

    def follow_all(self) -> None:
        """As one does that adds no samples."""
        self.tracker.report(progress(step=0, round="", follower=True), 1.0, DIVISION)

    def gather(self) -> GroupRequest:
        assert self.rounds.gather_if_due(samples_per_second=1.0) is None
        assert self.rounds.under_way
        return self.asked[-1]


def test_a_batch_is_what_this_row_has_and_what_is_said_of_the_others(tmp_path: Path) -> None:
    me = Peer(tmp_path)
    give(me.replica, samples=9)
    for row, samples in ((0, 20), (1, 30), (2, 20)):
        me.hear(row, samples)
    assert me.rounds.swarm_samples() == 79
    me.rounds.gather_if_due(samples_per_second=1.0)
    assert not me.rounds.under_way
    me.hear(3, 21)
    request = me.gather()
    assert request.expected == frozenset(me.peers(0))
    assert request.rows is not None
    assert request.rows.expected == {0, 1, 2, 3} - {me.mine}
    author, coming = opened(Coming, request.rows.signed)
    assert (author, coming.step, coming.member.group_size) == (me.me.peer, 1, 1 + 4 + 3 * 4)
    for row, speakers in request.rows.able.items():
        assert set(speakers) == {signer.peer for signer in me.others[(row - me.mine) % 4][:3]}


def test_a_group_begins_when_the_rows_that_have_come_fill_the_batch(tmp_path: Path) -> None:
    me = Peer(tmp_path)
    give(me.replica, samples=10)
    for row, samples in ((0, 20), (1, 30), (2, 30), (3, 30)):
        me.hear(row, samples)
    me.gather()
    me.pending.members = frozenset([me.me.peer, *me.peers(0, 1, 2)])
    me.rounds.advance()
    assert not me.begun, "ten are missing"
    me.hear(2, 40)
    me.rounds.advance()
    assert me.begun


@pytest.mark.parametrize("heard", [(1, 2), ()], ids=["but one", "none"])
@pytest.mark.parametrize("hears_the_last", [True, False])
def test_who_has_just_come_waits_for_word_of_all_rows_and_not_for_ever(
    tmp_path: Path, clock: Clock, heard: tuple[int, ...], hears_the_last: bool
) -> None:
    me = Peer(tmp_path)
    me.hear(0, 100)
    for row in heard:
        me.hear(row, 0)
    clock.now += 14.0
    me.rounds.gather_if_due(samples_per_second=1.0)
    assert not me.rounds.under_way
    if hears_the_last:
        for row in {1, 2, 3}.difference(heard):
            me.hear(row, 0)
    else:
        clock.now += 1.0
    assert me.gather().expected == frozenset(me.peers(0))


def test_a_row_of_newcomers_that_hear_of_no_other_row_takes_no_step_that_the_others_take_without_it(
    tmp_path: Path, clock: Clock
) -> None:
    me = Peer(tmp_path)
    me.rounds.stepped(dict.fromkeys(me.peers(1, 2, 3), 5), ago=10.0)
    me.hear(0, 100)
    clock.now += 15.0
    me.rounds.gather_if_due(samples_per_second=1.0)
    assert not me.rounds.under_way
    for row in (1, 2):
        me.hear(row, 0)
    request = me.gather()
    assert request.rows is not None
    assert {(row - me.mine) % 4 for row in request.rows.expected} == {1, 2}


@pytest.mark.parametrize("hears", [True, False])
def test_who_has_caught_up_waits_for_word_of_the_rows_that_it_knows_of(
    tmp_path: Path, clock: Clock, hears: bool
) -> None:
    me = Peer(tmp_path)
    clock.now += 100.0
    me.hold("bef0")
    clock.now += 100.0
    me.hear(0, 100)
    me.hear(1, 0, round="bef0")
    me.hold()
    clock.now += 14.0
    me.rounds.gather_if_due(samples_per_second=1.0)
    assert not me.rounds.under_way
    if hears:
        me.hear(1, 0)
    else:
        clock.now += 1.0
    request = me.gather()
    assert request.rows is not None
    assert {(row - me.mine) % 4 for row in request.rows.expected} == ({1} if hears else set())


def test_a_row_that_is_quick_after_a_step_does_not_think_that_it_is_all_there_is(tmp_path: Path, clock: Clock) -> None:
    me = Peer(tmp_path)
    clock.now += 100.0
    me.hold("bef0")
    me.hear(0, 100)
    for row in (1, 2):
        me.hear(row, 30, round="bef0")
    me.hold()
    me.rounds.stepped(dict.fromkeys([me.me.peer, *me.peers(0, 1, 2)], 5))
    me.hear(1, 0)
    me.rounds.gather_if_due(samples_per_second=1.0)
    assert not me.rounds.under_way, "one of the others has not said yet that it has taken the step"
    me.hear(2, 0)
    request = me.gather()
    assert request.rows is not None
    assert {(row - me.mine) % 4 for row in request.rows.expected} == {1, 2}
    member = opened(Coming, request.rows.signed)[1].member
    assert not Rows(BATCH).enough_members(1 + 4, member.group_size)
    assert Rows(BATCH).enough_members(1 + 4 + 2, member.group_size)


def test_who_speaks_for_a_row_that_brings_less_is_believed_the_less_the_more_often(tmp_path: Path) -> None:
    me = Peer(tmp_path)
    give(me.replica, samples=40)
    liars = me.peers(1)[:3]
    for again in range(4):
        me.hear(0, 20)
        me.hear(1, 10**6)
        if again == 3:
            break
        assert me.rounds.swarm_samples() == 40 + 20 + BATCH, "no more than a batch"
        me.gather()
        me.pending.members = frozenset([me.me.peer, *me.peers(0, 1)])
        me.rounds.advance()
        assert me.begun
        me.pending.outcome = RoundResult("refused", "ab", me.gives(0, each=5) | me.gives(1, each=5))
        assert me.rounds.advance() is None
        assert me.rounds.swarm_samples() == 40 + 20, "until they speak again"
    assert me.tracker.suspicion.backed_off() == frozenset(liars)
    assert me.rounds.swarm_samples() == 40 + 20
    me.hear(1, 30, speakers=4)
    assert me.rounds.swarm_samples() == 40 + 20 + 30, "another one of the row is believed"


def test_a_row_whose_members_died_is_counted_again_as_soon_as_it_speaks(tmp_path: Path) -> None:
    me = Peer(tmp_path)
    give(me.replica, samples=40)
    for _ in range(5):
        me.hear(0, 20)
        me.hear(1, 40)
        assert me.rounds.swarm_samples() == 100
        me.gather()
        me.pending.members = frozenset([me.me.peer, *me.peers(0, 1)])
        me.rounds.advance()
        me.pending.outcome = RoundResult("refused", "ab", me.gives(0, each=5) | me.gives(1, each=6))
        me.rounds.advance()
        assert me.rounds.swarm_samples() == 60
    assert not me.tracker.suspicion.backed_off()


def test_a_row_that_does_not_come_is_not_waited_for_until_somebody_speaks_for_it_again(tmp_path: Path) -> None:
    me = Peer(tmp_path)
    give(me.replica, samples=60)
    for row in (0, 1, 2):
        me.hear(row, 20)
    me.gather()
    me.pending.members = frozenset([me.me.peer, *me.peers(0, 1)])
    me.rounds.advance()
    me.pending.outcome = RoundResult("refused", "ab", detail="too few")
    me.rounds.advance()
    assert me.rounds.swarm_samples() == 100
    request = me.gather()
    assert request.rows is not None
    assert {(row - me.mine) % 4 for row in request.rows.expected} == {1}


def test_a_row_that_gets_to_the_state_of_the_others_while_a_group_is_looked_for_is_waited_for_too(
    tmp_path: Path,
) -> None:
    me = Peer(tmp_path)
    give(me.replica, samples=60)
    for row in (0, 1):
        me.hear(row, 20)
    me.gather()
    me.hear(2, 0)
    me.rounds.advance()
    request = me.asked[-1]
    assert request.rows is not None
    assert {(row - me.mine) % 4 for row in request.rows.expected} == {1, 2}
    assert opened(Coming, request.rows.signed)[1].member.group_size == 1 + 4 + 2 * 4


def test_one_that_nobody_in_its_row_can_lead_asks_those_of_the_next_row(tmp_path: Path) -> None:
    me = Peer(tmp_path)
    me.rounds._profile = SimpleNamespace(follower=False, client_mode=True)  # type: ignore[assignment]
    give(me.replica, samples=60)
    for row in (2, 3):
        me.hear(row, 20)
    assert set(me.gather().leaders) == set(me.peers(2)[:3])


def test_of_rows_that_failed_is_told_how_many_they_were_and_of_others_who_gave_to_the_step_before(
    tmp_path: Path,
) -> None:
    me = Peer(tmp_path)
    follower, stranger = me.peers(1)[3], me.peers(3)[3]
    me.rounds.stepped({peer: 5 for peer in me.peers(0, 1, 2, 3) if peer != stranger} | {follower: 0})
    give(me.replica, samples=40)
    for row in (0, 1, 2, 3):
        me.hear(row, 20)
    me.gather()
    me.pending.members = frozenset([me.me.peer, *me.peers(0, 1, 3)])
    me.rounds.advance()
    assert me.begun
    counted = me.gives(0, each=20) | dict(list(me.gives(1, each=20).items())[:2])
    absent: dict[str, Absence] = dict.fromkeys(me.pending.members - {me.me.peer} - counted.keys(), "was not counted")
    me.pending.outcome = RoundResult("complete", "ab", counted, absent=absent)
    assert me.rounds.advance() is me.pending.outcome
    rows = {2: AbsentRow(peers=4, why="did not come"), 3: AbsentRow(peers=3, why="was not counted")}
    in_order = tuple(rows[row] for row in sorted(rows, key=lambda row: (row + me.mine) % 4))
    assert me.rounds.left_out == LeftOut(count=8, some={me.peers(1)[2]: "was not counted"}, rows=in_order)


@pytest.mark.parametrize("row", [0, 2])
def test_a_row_that_has_left_is_not_told_of(tmp_path: Path, row: int) -> None:
    me = Peer(tmp_path)
    me.follow_all()
    me.rounds.stepped(dict.fromkeys(me.peers(0, 1, 2), 5))
    give(me.replica, samples=80)
    for there in {0, 1, 2} - {row}:
        me.hear(there, 20)
    me.tell(me.others[row], None)
    me.gather()
    here = me.peers(*{0, 1, 2} - {row})
    me.pending.members = frozenset([me.me.peer, *here])
    me.rounds.advance()
    me.pending.outcome = RoundResult("complete", "ab", me.gives(*{0, 1, 2} - {row}, each=20))
    me.rounds.advance()
    assert me.rounds.left_out is None


def test_one_that_follows_all_tells_who_of_another_row_did_not_come_though_it_gave_to_the_step_before(
    tmp_path: Path,
) -> None:
    me = Peer(tmp_path)
    me.follow_all()
    late, newcomer = me.peers(2)[2:]
    me.rounds.stepped(dict.fromkeys(me.peers(0, 2), 5) | {newcomer: 0})
    give(me.replica, samples=80)
    for row in (0, 2):
        me.hear(row, 20)
    me.tell(me.others[2], 5)
    me.gather()
    me.pending.members = frozenset([me.me.peer, *me.peers(0, 2)]) - {late, newcomer}
    me.rounds.advance()
    brought = {p: c for p, c in me.gives(0, 2, each=20).items() if p in me.pending.members}
    me.pending.outcome = RoundResult("complete", "ab", brought)
    me.rounds.advance()
    assert me.rounds.left_out == LeftOut(count=1, some={late: "did not come"})
