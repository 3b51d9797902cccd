"""What a peer knows of the other rows; the DHT is a dictionary that counts what a look returns."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

import pytest
from hivemind.utils import MSGPackSerializer, get_dht_time

from dedloc_kit.records.progress import RowSummary
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.directory.rows import Division
from dedloc_kit.swarm.directory.summaries import MOST_PEERS, SPEAKERS, STALE_SECONDS, speakers
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.incidents import Incidents
from dedloc_kit.swarm.network.kinds import SUMMARIES
from dedloc_kit.swarm.trust.weight import Counting
from tests.swarm.directory.many import BATCH, LIVES, NOW, SIGNATURE, STEP, Many, a_summary_by
from tests.swarm.harness import RUN_ID, PlainDHT, a_signer, belief, progress


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedloc_kit.swarm.directory.tracker.TIME_TO_LIVE", LIVES)
    monkeypatch.setattr("dedloc_kit.swarm.directory.sightings.SILENT_SECONDS", LIVES)  # whoever misses one looks again


def test_what_a_look_returns_hardly_grows_with_the_number_of_peers_and_everybody_counts() -> None:
    usual = {}
    for members in (256, 1000):
        many = Many(members)
        looks = []
        for signer in many.volunteers():
            mine = many.tracker(signer)
            looks.append(many.dht.bytes)
            near, far = mine.row_at(*NOW), mine.rows_at(*NOW)
            row = many.division.row_of(signer.peer)
            assert near.keys() | {signer.peer} == {s.peer for s in many.row(row)}
            assert far.keys() == set(many.rows) - {row}
            assert sum(p.samples for p in near.values()) + sum(r.samples for r in far.values()) + 1 == members - 1
            assert 1 + len(near) + sum(r.peers for r in far.values()) == members
            assert many.organizer.peer in mine.others()
            assert {len(r.speakers) for r in far.values()} == {1}
            assert {len(r.able) for r in far.values()} == {SPEAKERS}
        usual[members] = median(looks)
    all_of_them = sum(len(MSGPackSerializer.dumps(said.model_dump())) + 388 + SIGNATURE for said in many.says.values())
    assert usual[1000] < 1.7 * usual[256], "there are more rows, and they are not all alike"
    assert usual[1000] < all_of_them / 6


@pytest.mark.parametrize("rows", [4, 8])
def test_what_all_ask_for_lies_in_copies_where_they_are_many(rows: int) -> None:
    many = Many(64, rows=rows)
    asked: Counter[str] = Counter()
    for signer in many.signers[1:]:
        many.dht.of_keys.clear()
        mine = many.tracker(signer)
        many.dht.of_keys.clear()
        mine.refresh()
        of_all = {key for key in many.dht.of_keys if "cell" not in key}
        assert {key.partition(".")[0] for key in of_all} == {f"{RUN_ID}_row-summary", f"{RUN_ID}_progress"}
        assert all(("copy" in key) is (rows == 8) for key in of_all)
        asked.update(of_all)
        assert len(mine.rows_at(*NOW)) == rows - 1
        assert many.organizer.peer in mine.others()
    assert max(asked.values()) < (63 / 3 if rows == 8 else 64)
    assert len(asked) == (2 * 8 if rows == 8 else 2)


def test_who_was_away_while_most_left_hears_those_who_no_longer_lie_in_copies() -> None:
    few = Many(64, rows=4)
    late = a_summary_by(few.dht, few.signers[1])
    late.look(1.0, None, copy=5)
    assert {summary.rows for summary in late.told().values()} == {4}


def test_the_organizer_and_who_looks_on_follow_all() -> None:
    many = Many(128, rows=8)
    coordinator = many.tracker(many.organizer)
    assert len(coordinator.others()) == 127
    assert coordinator.row_at(*NOW).keys() < coordinator.others().keys()
    observer = Tracker(many.dht, a_signer(10**6), RUN_ID, BATCH, (), Incidents(), belief())
    observer.refresh()
    observer.refresh()
    assert len(observer.others()) == 128


def test_a_row_alone_proves_no_step_while_others_are_there_of_whom_it_sees_nothing_but_a_summary() -> None:
    many = Many(128, rows=8)
    me = many.volunteers()[0]
    mine = many.tracker(me)
    now, near = float(get_dht_time()), mine.row_at(*NOW)
    mine.belief.took(STEP, now, {signer.peer: 1 for signer in many.signers})
    for later in range(0, 121, 5):
        mine.belief.see(near.keys() | mine._following.said_to_be_there(mine.belief.taken.samples), now + later)
    assert not mine.belief.proves(near, now + 120.0)


def believed(told: Sequence[tuple[Any, RowSummary]], peer: Any, division: Division) -> dict[int, Any]:
    dht: Any = PlainDHT()
    directory = Directory(dht, SUMMARIES, RUN_ID, reject=lambda _: None, seconds=LIVES)
    for signer, summary in told:
        directory.store(signer, summary, peers=1)
    mine = a_summary_by(dht, peer)
    mine.look(1.0, None)
    return mine.believed(division, NOW, lambda _peer, _told: True)


def say(division: Division, signer: Any, **values: Any) -> tuple[Any, RowSummary]:
    usual = {"run_id": RUN_ID, "step": STEP, "round": "ab", "rows": division.rows, "samples": 10, "peers": 16}
    usual |= {
        "row": division.row_of(signer.peer),
        "samples_per_second": 1.0,
        "boundary_seconds": 0.0,
        "addresses": (),
        "able": (),
    }
    return signer, RowSummary(**{**usual, "time": get_dht_time(), **values})


@pytest.fixture(scope="module")
def rows() -> dict[int, list[Any]]:
    """Peers of four rows."""
    found = defaultdict(list)
    for number in range(100):
        signer = a_signer(number)
        found[Division(4, STEP).row_of(signer.peer)].append(signer)
    return found


@pytest.mark.parametrize(
    ("first_says", "second_speaks"),
    [({}, False), (None, True), ({"samples": 10**6}, True), ({"peers": 1}, True), ({"time": 0.0}, True)],
    ids=["the same", "nothing", "too much", "too few", "nothing new"],
)
def test_a_second_one_speaks_for_a_row_only_if_the_first_is_silent_or_wrong(
    rows: dict[int, list[Any]],
    first_says: dict[str, Any] | None,
    second_speaks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dht: Any = PlainDHT()
    division = Division(4, STEP)
    row = {signer.peer: progress(step=STEP, round="ab", samples=2, time=get_dht_time()) for signer in rows[1][:8]}
    first, second = speakers(row, STEP)[:2]
    by_peer = {signer.peer: signer for signer in rows[1]}
    mine = a_summary_by(dht, by_peer[second])
    if first_says is not None:
        told = say(division, by_peer[first], **{"peers": 8, "samples": 16} | first_says)[1]
        if told.time == 0.0:
            told = told.model_copy(update={"time": get_dht_time() - 2 * STALE_SECONDS})
        Directory(dht, SUMMARIES, RUN_ID, reject=pytest.fail, seconds=LIVES).store(by_peer[first], told, peers=1)
    mine.look(1.0, None)
    others = {peer: said for peer, said in row.items() if peer != second}
    assert mine.tell(row[second], others, division, Counting()) is None, "the first has not had the time to speak"
    monkeypatch.setattr("dedloc_kit.swarm.directory.summaries.LATER_SECONDS", 0.0)
    assert (mine.tell(row[second], others, division, Counting()) is not None) is second_speaks


@pytest.mark.parametrize(
    "wrong",
    [{"samples": 10**6, "peers": 2**20}, {"samples": 0, "peers": 1}, {"samples": 10**6, "time": -1.0}],
    ids=["much", "few", "much, of tomorrow"],
)
def test_one_of_three_speakers_cannot_say_what_a_row_is(rows: dict[int, list[Any]], wrong: dict[str, float]) -> None:
    division, me = Division(4, STEP), rows[0][0]
    speaking = {row: [signer for signer in rows[row] if signer.peer in speakers([s.peer for s in rows[row]], STEP)]
                for row in (1, 2, 3)}  # fmt: skip
    honest = [say(division, signer) for row in (1, 2, 3) for signer in speaking[row]]
    for liar in range(SPEAKERS):
        lie = wrong if "time" not in wrong else wrong | {"time": get_dht_time() + LIVES / 2}
        told = [*honest, say(division, speaking[1][liar], **lie)]
        found = believed(told, me, division)
        assert [(row.peers, row.samples) for row in found.values()] == [(16, 10)] * 3
        assert set(found[1].speakers) == {signer.peer for signer in speaking[1]}


def test_a_row_whose_speakers_all_lie_is_a_whole_batch_and_twice_the_usual_size_at_most(
    rows: dict[int, list[Any]],
) -> None:
    division, me = Division(4, STEP), rows[0][0]
    honest = [say(division, signer) for row in (2, 3) for signer in rows[row][:3]]
    lies = [say(division, signer, samples=10**6, peers=2**20) for signer in rows[1][:3]]
    found = believed(honest + lies, me, division)
    assert (found[1].samples, found[1].peers) == (BATCH, MOST_PEERS * 16)
    assert (found[2].samples, found[2].peers) == (10, 16)


@pytest.mark.parametrize(
    "other",
    [{"step": STEP + 1}, {"round": "cd"}, {"rows": 8}, {"time": get_dht_time() - 2 * LIVES}],
    ids=["step", "round", "rows", "time"],
)
def test_what_is_said_of_another_state_or_division_or_long_ago_does_not_count(
    rows: dict[int, list[Any]], other: dict[str, Any]
) -> None:
    division = Division(4, STEP)
    told = [say(division, rows[1][0], **other), say(division, rows[0][1]), say(division, rows[2][0])]
    assert believed(told, rows[0][0], division).keys() == {2}, "nor what is said of the own row"
