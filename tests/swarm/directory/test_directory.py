"""The directory with a DHT that is a dictionary; tests/swarm/network/test_node.py has real ones."""

from typing import Any

import pytest

from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.directory import directory
from dedloc_kit.swarm.directory.directory import MANY, Directory
from dedloc_kit.swarm.network.kinds import PROGRESS
from tests.swarm.harness import RUN_ID, PlainDHT, a_signer, progress


def a_directory(dht: Any) -> Directory[Progress]:
    return Directory(dht, PROGRESS, RUN_ID, reject=pytest.fail)


def says(number: int) -> Progress:
    return progress(samples=number)


def samples(found: dict[str, Progress | None]) -> list[int]:
    return sorted(record.samples for record in found.values() if record is not None)


def test_a_thousand_peers_spread_over_some_keys_and_are_all_found() -> None:
    dht: Any = PlainDHT()
    kind = a_directory(dht)
    for number in range(1000):
        kind.store(a_signer(number), says(number), peers=999)
    found = kind.look(peers=999, timeout=1.0)
    assert samples(found) == list(range(1000))
    assert max(len(records) for records in dht.keys.values()) < 100


def test_a_few_peers_share_one_key_and_ask_for_no_other() -> None:
    dht: Any = PlainDHT()
    kind = a_directory(dht)
    for number in range(50):
        kind.store(a_signer(number), says(number), peers=49)
    kind.look(peers=49, timeout=1.0)  # the first time nobody knows how many there are
    dht.asked = 0
    assert len(kind.look(peers=49, timeout=1.0)) == 50
    assert dht.asked == 1


def test_nobody_is_missed_while_peers_do_not_agree_how_many_there_are() -> None:
    dht: Any = PlainDHT()
    kind = a_directory(dht)
    for number in range(MANY):
        kind.store(a_signer(number), says(1), peers=MANY - 1)
        if number % 2:  # has seen one more than the others
            kind.store(a_signer(number), says(2), peers=MANY)
    kind.look(peers=0, timeout=1.0)
    found = kind.look(peers=MANY // 2, timeout=1.0)
    assert (len(found), samples(found).count(2)) == (MANY, MANY // 2)


def test_a_newcomer_finds_the_many_at_once() -> None:
    dht: Any = PlainDHT()
    a_directory(dht).store(a_signer(1), says(1), peers=MANY)
    newcomer = a_directory(dht)
    assert len(newcomer.look(peers=0, timeout=1.0)) == 1


def test_who_sees_few_looks_for_the_many_now_and_then_and_who_sees_nobody_each_time() -> None:
    dht: Any = PlainDHT()
    kind = a_directory(dht)
    kind.look(peers=0, timeout=1.0)
    a_directory(dht).store(a_signer(1), says(1), peers=MANY)
    for _ in range(directory.FULL_LOOK - 1):
        assert kind.look(peers=1, timeout=1.0) == {}
    assert len(kind.look(peers=1, timeout=1.0)) == 1
    assert kind.look(peers=1, timeout=1.0) == {}
    assert len(kind.look(peers=0, timeout=1.0)) == 1
