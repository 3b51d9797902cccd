"""What a peer says of itself, and when; the DHT is a dictionary."""

import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hivemind.utils import get_dht_time
from hivemind.utils.timed_storage import ValueWithExpiration

from dedloc_kit.config.run import MAX_BATCHES
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.directory import tracker
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.directory.shared_table import WIDE_LOOK, SharedTable
from dedloc_kit.swarm.directory.tracker import TIME_TO_LIVE, Tracker
from dedloc_kit.swarm.directory.twin import Twin
from dedloc_kit.swarm.gathering.peers import MISSED, SILENT
from dedloc_kit.swarm.incidents import Incidents
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.kinds import PROGRESS
from tests.identities import an_identity
from tests.swarm.harness import RUN_ID, PlainDHT, belief, progress, run_of, wait_until


class Spotty(PlainDHT):
    """One node alone has not heard everything; several asked together have."""

    def __init__(self) -> None:
        super().__init__()
        self.unheard: dict[bytes, ValueWithExpiration[Any] | None] = {}
        """What one node has instead, by subkey; None: nothing."""
        self.asked_several = 0

    def get(self, key: str, **how: object) -> Any:
        found = super().get(key).result(0.0)
        several = "latest" in how
        self.asked_several += several and key.endswith("_progress")
        if found is not None and not several:
            heard = {**found.value, **self.unheard}
            found = ValueWithExpiration({k: entry for k, entry in heard.items() if entry is not None}, 0.0)
        return SimpleNamespace(result=lambda timeout: found)


def a_tracker(dht: Any, signer: Signer, organizer: str = "organizer") -> Tracker:
    return Tracker(dht, signer, run_of(), (), Incidents(), belief(signer.peer, organizer))


def says(dht: Any, signer: Signer, ago: float = 0.0) -> ValueWithExpiration[Any]:
    """Its progress is in the directory, told so many seconds ago."""
    record = progress(run_id=RUN_ID, time=get_dht_time() - ago)
    directory = Directory(dht, PROGRESS, RUN_ID, reject=pytest.fail, seconds=TIME_TO_LIVE - ago)
    directory.store(signer, record, peers=1)
    entry: ValueWithExpiration[Any] = dht.keys[f"{RUN_ID}_progress"][signer.subkey]
    return entry


def test_a_look_asks_several_nodes_only_now_and_then_and_then_finds_who_only_others_know(tmp_path: Path) -> None:
    dht: Any = Spotty()
    mine, other, newcomer = (Signer(an_identity(tmp_path / name)) for name in ("mine", "other", "newcomer"))
    says(dht, other)
    me = a_tracker(dht, mine)
    me.refresh()
    assert (list(me.others()), dht.asked_several) == ([other.peer], 1), "the first look asks several"
    says(dht, newcomer)
    dht.unheard = {newcomer.subkey: None}
    for _ in range(WIDE_LOOK - 1):
        me.refresh()
    assert (list(me.others()), dht.asked_several) == ([other.peer], 1)
    me.refresh()
    assert set(me.others()) == {other.peer, newcomer.peer}


@pytest.mark.parametrize("ago", [MISSED + 1.0, None], ids=["an old record", "no record"])
def test_a_peer_is_not_gone_because_one_node_did_not_hear_of_it(tmp_path: Path, ago: float | None) -> None:
    dht: Any = Spotty()
    mine, other = (Signer(an_identity(tmp_path / name)) for name in ("mine", "other"))
    old = None if ago is None else says(dht, other, ago)
    says(dht, other)
    me = a_tracker(dht, mine)
    me.refresh()
    dht.unheard = {other.subkey: old}
    me.refresh()
    assert get_dht_time() - me.others()[other.peer].time < MISSED
    assert dht.asked_several == 2


def test_after_a_round_that_came_to_nothing_peers_tell_each_other_their_samples_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "HEARTBEAT", 600.0)
    dht: Any = PlainDHT()

    def says(samples: int) -> Progress:
        return progress(run_id=RUN_ID, samples=samples, time=get_dht_time())

    me, other = (a_tracker(dht, Signer(an_identity(tmp_path / name))) for name in ("me", "other"))
    other.report(says(1), period=600.0)
    other.start()
    wait_until(lambda: bool(dht.keys), "the other one says nothing")
    me.report(says(2), period=600.0)
    me.start()
    wait_until(lambda: [p.samples for p in me.others().values()] == [1], "the other one is not seen")
    for peer, samples in ((other, 3), (me, 4)):
        peer.report_now()
        peer.report(says(samples), period=600.0)
        wait_until(partial(_told, dht, samples), "it does not say it")
    wait_until(lambda: [p.samples for p in me.others().values()] == [3], "it does not look")
    for peer in (me, other):
        peer.leave()


class Hanging(PlainDHT):
    """From some moment on no look ends."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs, self.waits, self.ends = threading.Event(), threading.Event(), threading.Event()

    def get(self, key: str, **how: object) -> Any:
        found = super().get(key, **how)
        if self.hangs.is_set():
            self.waits.set()
            return SimpleNamespace(result=lambda timeout: self.ends.wait() and found.result(timeout))
        return found


def test_a_peer_tells_that_it_is_there_though_a_look_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "HEARTBEAT", 0.05)
    dht: Any = Hanging()
    me = a_tracker(dht, Signer(an_identity(tmp_path / "me")))
    me.report(progress(run_id=RUN_ID, samples=1, time=get_dht_time()), period=0.01)
    me.start()
    dht.hangs.set()
    wait_until(dht.waits.is_set, "it looks no more")
    for samples in (2, 3):
        me.report(progress(run_id=RUN_ID, samples=samples, time=get_dht_time()), period=0.01)
        wait_until(partial(_told, dht, samples), "it waits for its look", deadline=20.0)
    dht.ends.set()
    me.leave()


def test_samples_are_told_after_each_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "HEARTBEAT", 600.0)
    dht: Any = PlainDHT()
    me = a_tracker(dht, Signer(an_identity(tmp_path / "me")))
    for samples in (1, 2):
        me.report(progress(run_id=RUN_ID, samples=samples, time=get_dht_time()), period=0.1)
        if samples == 1:
            me.start()
        wait_until(partial(_told, dht, samples), "it says no more")
    me.leave()


def _told(dht: PlainDHT, samples: int) -> bool:
    entries = [entry for records in dht.keys.values() for entry in records.values()]
    return any(Progress.parse(entry.value).samples == samples for entry in entries)


def test_nobody_is_believed_that_claims_more_samples_than_a_batch_can_be_made_of(
    tmp_path: Path, warned: list[str]
) -> None:
    dht: Any = Spotty()
    mine, honest, boasts = (Signer(an_identity(tmp_path / name)) for name in ("mine", "honest", "boasts"))
    batch = 10
    me = Tracker(dht, mine, run_of(global_batch=batch), (), Incidents(), belief(mine.peer))
    directory = Directory(dht, PROGRESS, RUN_ID, reject=pytest.fail)
    for signer, samples in ((honest, MAX_BATCHES * batch), (boasts, MAX_BATCHES * batch + 1)):
        directory.store(signer, progress(samples=samples), peers=1)
    me.refresh()
    assert me.others().keys() == {honest.peer}
    assert len(warned) == 1
    assert f"claims {MAX_BATCHES * batch + 1} samples" in warned[0]


def test_a_peer_that_failed_again_and_again_is_backed_off_and_one_that_is_only_doubted_counts_when_it_speaks(
    tmp_path: Path,
) -> None:
    dht: Any = Spotty()
    mine, other = (Signer(an_identity(tmp_path / name)) for name in ("mine", "other"))
    me = a_tracker(dht, mine)
    for failing, back in ((me.peers.doubt, True), (me.peers.suspect, False)):
        for _ in range(3):
            says(dht, other)
            me.refresh()
            failing({other.peer})
        assert not me.others()
        says(dht, other)
        me.refresh()
        assert bool(me.others()) is back


def test_no_round_waits_for_an_organizer_that_failed_again_and_again_but_its_word_counts(tmp_path: Path) -> None:
    dht: Any = Spotty()
    mine, organizer = (Signer(an_identity(tmp_path / name)) for name in ("mine", "organizer"))
    me = a_tracker(dht, mine, organizer.peer)
    for _ in range(4):
        says(dht, organizer)
        me.refresh()
        me.peers.suspect({organizer.peer})
    assert not me.others(), "not what it said before"
    says(dht, organizer)
    me.refresh()
    assert me.others().keys() == me.peers.backed_off() == {organizer.peer}


def test_nobody_is_alone_because_of_looks_over_a_line_that_was_down(tmp_path: Path) -> None:
    down, at = False, 0.0
    signer = Signer(an_identity(tmp_path / "mine"))
    directory = Directory(cast(Any, Spotty()), PROGRESS, RUN_ID, reject=pytest.fail)
    peers = SharedTable(signer.peer, "organizer", directory, Twin("ab", since=0.0), lambda: at)

    def is_alone() -> bool:
        nonlocal at
        at += 1.0
        peers.look(lambda: down)
        return peers.table.lonely(at)

    assert is_alone()
    down = True
    assert not is_alone()
    down = False
    assert not is_alone(), "the line has just come back"
    assert [is_alone() for _ in range(int(SILENT))][-1]
