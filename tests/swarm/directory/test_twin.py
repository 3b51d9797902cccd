"""Two sessions of one key at once are told apart from one that follows the other."""

import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hivemind.utils import get_dht_time

from dedloc_kit.events import Failed, Joined, Left, State, Warned
from dedloc_kit.ledger import Ledger
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.directory.tracker import TIME_TO_LIVE, Tracker
from dedloc_kit.swarm.directory.twin import MAX_LEFT, Twin
from dedloc_kit.swarm.incidents import Incidents
from dedloc_kit.swarm.network.connections import Connections
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.kinds import PROGRESS
from tests.identities import an_identity
from tests.swarm.harness import RUN_ID, Peer, PlainDHT, Swarm, belief, progress, run_of, wait_until
from tests.tiny import tiny_run

SLOW = {"TINY_PAUSE": "0.2"}
"""A step takes some seconds: it leaves the processor to those who join, and time between its news to see a twin."""


def test_who_came_later_is_a_twin_at_once_and_who_came_before_only_if_it_goes_on_speaking() -> None:
    now = get_dht_time()
    mine: Twin[Progress] = Twin("b1", since=now)
    mine.see(None)
    mine.see(progress(session="", time=now))  # of a version that did not say it
    mine.see(progress(session="b1", since=now, time=now))
    assert not mine.certain
    for more in range(MAX_LEFT):  # one node had an old record, another one the last
        mine.see(progress(session="a1", since=now - 60.0, time=now - 5.0 + more))
        mine.see(progress(session="a1", since=now - 60.0, time=now - 5.0))
        assert not mine.certain, "a process that was killed left it"
    assert mine.there(TIME_TO_LIVE) is not None
    assert mine.there(1.0) is None
    mine.see(progress(session="a1", since=now - 60.0, time=now))
    assert mine.second
    first: Twin[Progress] = Twin("a1", since=now - 60.0)
    first.see(progress(session="b1", since=now, time=now))
    assert first.certain
    assert not first.second, "both come to one answer"


def test_two_that_began_in_the_same_moment_come_to_one_answer() -> None:
    now = get_dht_time()
    twins: dict[str, Twin[Progress]] = {name: Twin(name, since=now) for name in ("a1", "b1")}
    for name, other in (("a1", "b1"), ("b1", "a1")):
        for more in range(MAX_LEFT + 1):
            twins[name].see(progress(session=other, since=now, time=now + more))
    assert [twin.second for twin in twins.values()] == [False, True]


def a_tracker(dht: Any, signer: Signer, session: str) -> Tracker:
    mine = belief(signer.peer)
    return Tracker(dht, signer, run_of(), (), Incidents(), mine, session)


def test_a_peer_sees_what_its_twin_says_although_it_says_something_itself_before_each_look(tmp_path: Path) -> None:
    dht: Any = PlainDHT()
    signer = Signer(an_identity(tmp_path / "key"))
    me = a_tracker(dht, signer, "a1")
    me.connections = cast(Connections, SimpleNamespace(keep=lambda seen: None, cut_off=lambda: False))
    other = Directory(dht, PROGRESS, RUN_ID, reject=pytest.fail, seconds=TIME_TO_LIVE)
    me.start()
    try:
        samples = iter(range(10**6))

        def seen() -> bool:
            record = progress(run_id=RUN_ID, session="b1", since=me.twin.since + 1.0, time=get_dht_time())
            other.store(signer, record, peers=0)
            mine = record.model_copy(update={"session": "a1", "since": me.twin.since, "samples": next(samples) % 10})
            me.report(mine, period=0.1)
            return me.twin.certain

        wait_until(seen, "it never saw its twin")
    finally:
        me.leave()


def test_who_comes_back_after_a_crash_waits_only_until_its_last_record_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dedloc_kit.swarm.directory.tracker.FRESH_SECONDS", 0.01)
    dht: Any = PlainDHT()
    signer = Signer(an_identity(tmp_path / "key"))
    left = progress(run_id=RUN_ID, session="a1", since=1.0, time=get_dht_time() - TIME_TO_LIVE + 0.5)
    Directory(dht, PROGRESS, RUN_ID, reject=pytest.fail, seconds=TIME_TO_LIVE).store(signer, left, peers=0)
    a_tracker(dht, signer, "b1").await_twin(threading.Event(), lambda: pytest.fail("it is no twin"))
    assert get_dht_time() >= left.time + TIME_TO_LIVE


def test_who_has_waited_for_its_twin_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedloc_kit.swarm.directory.tracker.FRESH_SECONDS", 0.01)
    dht: Any = PlainDHT()
    signer = Signer(an_identity(tmp_path / "key"))
    me, ago = a_tracker(dht, signer, "b1"), TIME_TO_LIVE - 0.5
    for spoke in range(MAX_LEFT + 1):
        me.twin.see(progress(session="a1", since=1.0, time=get_dht_time() - ago + 0.1 * spoke))
    assert me.twin.second
    waited: list[str] = []
    me.await_twin(threading.Event(), lambda: waited.append("told"))
    assert waited == ["told"]
    assert not me.twin.certain


def test_who_waits_goes_on_telling_its_twin_ever_more_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedloc_kit.swarm.directory.tracker.FRESH_SECONDS", 0.0)
    me, now, stop = (
        a_tracker(PlainDHT(), Signer(an_identity(tmp_path / "key")), "b1"),
        get_dht_time(),
        threading.Event(),
    )
    looks, told_at = 0, list[int]()

    def look() -> None:
        nonlocal looks
        looks += 1
        me.twin.see(progress(session="a1", since=1.0, time=now + looks))
        if looks == MAX_LEFT + 70:
            stop.set()

    monkeypatch.setattr(me, "refresh", look)
    monkeypatch.setattr(me, "_tell_twin", lambda: told_at.append(looks - MAX_LEFT))
    me.await_twin(stop, lambda: None)
    assert told_at == [1, 2, 3, 4, 5, 8, 16, 32, 64]


@pytest.mark.parametrize("second", [True, False])
def test_who_gives_way_to_its_twin_does_not_sign_it_off(tmp_path: Path, second: bool) -> None:
    dht: Any = PlainDHT()
    signer = Signer(an_identity(tmp_path / "key"))
    me, now = a_tracker(dht, signer, "b1"), get_dht_time()
    me.report(progress(run_id=RUN_ID, session="b1", since=me.twin.since, time=now), period=1.0)
    since = me.twin.since + (-60.0 if second else 60.0)
    directory = Directory(dht, PROGRESS, RUN_ID, reject=pytest.fail, seconds=TIME_TO_LIVE)
    for spoke in range(MAX_LEFT + 1):
        said = progress(run_id=RUN_ID, session="a1", since=since, time=now + spoke)
        directory.store(signer, said, peers=0)
        me.twin.see(said)
    me.leave()
    stays = directory.look(peers=1, timeout=1.0, age=None)[signer.peer]
    assert (stays is not None) == second


def told(peer: Peer, what: str) -> Warned:
    return peer.wait_for(Warned, lambda event: "identity.key" in event.text and what in event.text)


def one_key(*machines: Path) -> None:
    first, *others = machines
    an_identity(first / "identity.key")
    for other in others:
        other.mkdir()
        shutil.copy(first / "identity.key", other / "identity.key")


@pytest.mark.soak
def test_with_a_copied_key_the_second_machine_waits_and_both_are_told(tmp_path: Path) -> None:
    with Swarm(tiny_run(global_batch=32), tmp_path) as swarm:
        coordinator = swarm.coordinator()
        one_key(tmp_path / "first", tmp_path / "second")
        first = swarm.volunteer("first", SLOW, client_mode=True, microbatch=4)
        came = tmp_path / "second comes"
        second = swarm.volunteer("second", {**SLOW, "TINY_JOIN": str(came)}, client_mode=True, microbatch=4)
        assert first.joined
        came.touch()
        told(second, "this one waits until the other has left; to train on both, remove identity.key")
        told(first, "this one goes on and the other waits; to train on both, remove identity.key")
        first.wait_for_step(first.steps[-1].step.step + 2)
        assert not any(isinstance(event, Joined) for event in second.events)
        assert first.worker.stop() == 0
        assert second.joined.peer == first.joined.peer
        second.wait_for_step(second.joined.step + 2)
        assert second.worker.stop() == 0
        given = [peer.wait_for(Left).session_samples for peer in (first, second)]
        assert all(given)
        assert coordinator.worker.stop() == 0
    ledger = Ledger(tmp_path / "coordinator" / "ledger.sqlite", read_only=True)
    (contributor,) = ledger.contributors()
    assert contributor.samples == sum(given), "nothing is lost"
    ledger.close()


@pytest.mark.soak
def test_of_two_with_one_key_that_start_in_the_same_moment_one_gives_way(tmp_path: Path) -> None:
    with Swarm(tiny_run(global_batch=32), tmp_path) as swarm:
        swarm.coordinator()
        one_key(tmp_path / "one", tmp_path / "two")
        twins = [swarm.volunteer(name, SLOW, client_mode=True, microbatch=4) for name in ("one", "two")]

        def gave_way(peer: Peer) -> bool:
            waits = any(isinstance(event, State) and event.text.startswith("waiting until") for event in peer.events)
            return waits or any(isinstance(event, Failed) and "gives way" in event.text for event in peer.events)

        wait_until(lambda: any(map(gave_way, twins)), "none gave way", deadline=90.0)
        (stays,) = (peer for peer in twins if not gave_way(peer))
        told(stays, "this one goes on and the other waits")
        stays.wait_for_step(stays.steps[-1].step.step + 2 if stays.steps else 2)
