"""Whom a peer follows in rows, and to whom it stays connected; the DHT is a dictionary that counts what it returns."""

import itertools
import math
from typing import Any

import pytest
from hivemind.utils import get_dht_time

from dedloc_kit.learning.train.state.state import Position
from dedloc_kit.swarm.directory import following
from dedloc_kit.swarm.directory.following import LATE_SECONDS, PROOF_SECONDS, SELDOM_SECONDS
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.incidents import Incidents
from dedloc_kit.swarm.network.kinds import AHEAD, EPOCH
from tests.swarm.directory.many import BATCH, LIVES, NOW, STEP, Many
from tests.swarm.harness import RUN_ID, a_signer, belief, progress


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedloc_kit.swarm.directory.tracker.TIME_TO_LIVE", LIVES)
    monkeypatch.setattr("dedloc_kit.swarm.directory.sightings.SILENT_SECONDS", LIVES)  # whoever misses one looks again


class Behind:
    """One of 128 in eight rows, without the organizer; the clock by which it looks stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(following, "time", self)
        self.many = Many(128, rows=8)
        self.many.says[self.many.organizer.peer] = progress(time=get_dht_time() - 2 * LIVES)
        self.many.publish(self.many.organizer)
        self.signer = self.many.volunteers()[0]
        self.tracker = self.many.tracker(self.signer)
        self.now += 100.0

    def monotonic(self) -> float:
        return self.now

    def others_take_a_step(self, *rows: int) -> None:
        for row in rows or self.many.rows:
            self.many.tell(row, step=STEP + 1, round="cd", time=get_dht_time())

    def looks_at_all(self, seconds: float) -> list[float]:
        """When it does so in these seconds, from now on, if it looks once a second."""
        began, found = self.now, list[float]()
        while self.now < began + seconds:
            self.many.dht.bytes = 0
            self.tracker.refresh()
            if self.many.dht.bytes > 120_000:
                found.append(self.now - began)
            self.now += 1.0
        return found


def test_who_is_behind_soon_finds_a_proof_where_the_organizer_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    me = Behind(monkeypatch)
    me.tracker.belief.took(STEP, get_dht_time(), {signer.peer: 1 for signer in me.many.signers})
    assert me.looks_at_all(60.0) == []
    me.others_take_a_step()
    assert me.looks_at_all(LATE_SECONDS) == [], "it may be about to take that step"
    assert me.tracker.newest(NOW) == NOW
    assert me.looks_at_all(1.0) == [0.0]
    assert me.tracker.newest(NOW) == Position(STEP + 1, "cd")
    assert len(me.tracker.others()) == 126


def test_who_finds_no_proof_looks_ever_more_seldom_and_begins_anew_when_it_gets_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    me = Behind(monkeypatch)
    me.others_take_a_step()
    found = me.looks_at_all(240.0)
    assert found[:3] == [LATE_SECONDS, LATE_SECONDS + 2 * PROOF_SECONDS, LATE_SECONDS + 6 * PROOF_SECONDS]
    assert len(found) <= 4 + 240.0 / SELDOM_SECONDS
    me.tracker.report(progress(step=STEP, round="ef"), 1.0, me.many.division)
    assert me.looks_at_all(10.0)[:1] == [LATE_SECONDS]


def test_a_few_who_say_that_they_are_ahead_make_nobody_look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    me = Behind(monkeypatch)
    me.others_take_a_step(1, 2, 3)
    found = me.looks_at_all(240.0)
    assert 1 <= len(found) <= 1 + 240.0 / SELDOM_SECONDS
    assert min(later - before for before, later in itertools.pairwise(found)) >= SELDOM_SECONDS
    me.others_take_a_step()
    assert LATE_SECONDS <= me.looks_at_all(10.0)[0] <= PROOF_SECONDS, "nor who is behind wait for long"


def dialled(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Whom a peer wants to be connected to and knows where to find."""
    wanted: list[Any] = []
    monkeypatch.setattr(tracker.connections, "keep", wanted.append)
    tracker._connect()
    return {peer for peer, told in wanted[0].items() if told.addresses}


def test_a_peer_stays_connected_to_its_row_and_to_who_speaks_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    many = Many(256, rows=16)
    for signer in many.volunteers():
        tracker = many.tracker(signer)
        near = {s.peer for s in many.row(many.division.row_of(signer.peer)) if many.says[s.peer].addresses}
        near |= {many.organizer.peer}
        told = set(tracker._summaries.told())
        client = many.says[signer.peer].client_mode
        expected = near if client and near else near | told
        assert dialled(tracker, monkeypatch) - {signer.peer} == expected - {signer.peer}
        with monkeypatch.context() as everybody:
            everybody.setattr(tracker._following, "cells", lambda *_, **__: range(32))
            tracker.refresh()
        assert len(tracker.others()) == 255
        assert dialled(tracker, monkeypatch) - {signer.peer} == expected - {signer.peer}, "it has looked at all rows"


def test_connections_grow_with_the_root_of_the_number_of_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    for members in (256, 1000):
        many = Many(members)
        most = max(len(dialled(many.tracker(signer), monkeypatch)) for signer in many.volunteers())
        assert most < 2 * math.sqrt(members)


def test_a_client_in_whose_row_nobody_can_be_reached_is_connected_to_who_speaks_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = Many(64, rows=4)
    row = next(row for row in many.rows if many.organizer not in many.row(row))
    for signer in many.row(row):
        many.says[signer.peer] = many.says[signer.peer].model_copy(update={"client_mode": True, "addresses": ()})
        many.publish(signer)
    many.dht.keys[f"{RUN_ID}_row-summary"].clear()
    many.summarise(*set(many.rows) - {row})
    tracker = many.tracker(many.row(row)[0])
    assert dialled(tracker, monkeypatch) == {many.organizer.peer, *tracker._summaries.told()}
    assert len(tracker._summaries.told()) == 3


def test_shortly_before_an_epoch_ends_a_peer_is_connected_to_its_next_row_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for step, knows in ((EPOCH - AHEAD - 1, False), (EPOCH - AHEAD, True)):
        many = Many(256, rows=8, step=step)
        me = next(s for s in many.volunteers() if many.says[s.peer].client_mode)
        tracker = many.tracker(me, step=step)
        after = type(many.division)(8, EPOCH)
        able = {s.peer for s in many.signers if many.says[s.peer].addresses}
        now, then = ({p for p in able if d.row_of(p) == d.row_of(me.peer)} for d in (many.division, after))
        assert then - now
        assert dialled(tracker, monkeypatch) == now | {many.organizer.peer} | (then if knows else set())


def test_who_looks_on_is_connected_to_who_speaks_for_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    many = Many(128, rows=8)
    observer = Tracker(many.dht, a_signer(10**6), RUN_ID, BATCH, (), Incidents(), belief(organizer=many.organizer.peer))
    observer.refresh()
    observer.refresh()
    assert dialled(observer, monkeypatch) == {many.organizer.peer, *observer._summaries.told()}
