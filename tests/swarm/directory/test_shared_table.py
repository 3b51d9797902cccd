"""Who is there and counts, as threads ask for it."""

from pathlib import Path

import pytest

from dedloc_kit.records.orders import Notice, shortened
from dedloc_kit.records.position import Position
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.directory.shared_table import SharedTable
from dedloc_kit.swarm.directory.twin import Twin
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.kinds import PROGRESS
from tests.identities import an_identity
from tests.swarm.harness import RUN_ID, PlainDHT, progress


class Looking:
    """One peer, and another one that tells something now and then.

    :ivar at: the time
    """

    def __init__(self, folder: Path, organizer: str = "organizer") -> None:
        self.at = 0.0
        self.other = Signer(an_identity(folder / "other"))
        self._directory = Directory(PlainDHT(), PROGRESS, RUN_ID, reject=pytest.fail)
        twin: Twin[Progress] = Twin("ab", since=0.0)
        self.peers = SharedTable("me", organizer or self.other.peer, self._directory, twin, lambda: self.at)

    def hear(self) -> set[str]:
        """Who counts after a look, one second later."""
        self.at += 1.0
        self._directory.store(self.other, progress(time=1e9 + self.at), peers=1)
        self.peers.look()
        return set(self.peers.others())


def notice(*banned: str) -> Notice:
    return Notice(run_id=RUN_ID, time=0.0, refused=shortened(banned))


def test_a_peer_that_is_banned_is_gone_at_once_and_comes_back_when_it_speaks_after_that_was_taken_back(
    tmp_path: Path,
) -> None:
    me = Looking(tmp_path)
    banned = me.other.peer
    assert me.hear() == {banned}
    me.peers.ban(notice(banned))
    assert (me.peers.others(), me.peers.alive()) == ({}, {})
    assert me.hear() == set()
    assert me.peers.table.left({banned, "another"}) == {banned}
    me.peers.ban(notice())
    assert me.peers.alive() == {}, "it has told nothing since"
    assert me.hear() == {banned}
    assert me.peers.table.left({banned}) == set()


def test_the_word_of_the_organizer_counts_though_rounds_with_it_fail(tmp_path: Path) -> None:
    for leads in (True, False):
        me = Looking(tmp_path, organizer="" if leads else "somebody")
        for _ in range(4):
            me.hear()
            me.peers.suspect({me.other.peer})
        assert not me.peers.others(), "it has failed and told nothing since"
        assert bool(me.hear()) == leads
        assert me.peers.backed_off() == {me.other.peer}


def test_a_peer_that_has_only_asked_to_be_led_is_in_the_table_of_positions(tmp_path: Path) -> None:
    me = Looking(tmp_path)
    me.hear()
    position: Position = progress(time=5.0).position
    with me.peers.lock:
        me.peers.table.tell("newcomer", position, me.at)
    assert set(me.peers.alive()) == {me.other.peer}
    assert me.peers.table.alive()["newcomer"] == position
