"""The directory with a DHT that is a dictionary; tests/swarm/test_node.py has real ones."""

from types import SimpleNamespace
from typing import Any

from hivemind.utils.timed_storage import ValueWithExpiration

from dedloc_kit.swarm import directory
from dedloc_kit.swarm.directory import MANY, Directory


class Plain:
    """As hivemind.DHT, and what is stored is there at once."""

    def __init__(self) -> None:
        self.keys: dict[str, dict[bytes, ValueWithExpiration[Any]]] = {}
        self.asked = 0

    def store(self, key: str, subkey: bytes, value: object, expiration_time: float, **_how: object) -> Any:
        self.keys.setdefault(key, {})[subkey] = ValueWithExpiration(value, expiration_time)
        return SimpleNamespace(result=lambda timeout: None)

    def get(self, key: str, **_how: object) -> Any:
        self.asked += 1
        found = self.keys.get(key)
        value = None if found is None else ValueWithExpiration(dict(found), 0.0)
        return SimpleNamespace(result=lambda timeout: value)


def a_signer(number: int) -> Any:
    return SimpleNamespace(peer=f"Qm{number}", subkey=b"%d" % number)


def test_a_thousand_peers_spread_over_some_keys_and_are_all_found() -> None:
    dht: Any = Plain()
    kind = Directory(dht, "progress", 15.0)
    for number in range(1000):
        kind.store(a_signer(number), number, peers=999)
    found = kind.look(peers=999, timeout=1.0)
    assert sorted(entry.value for entry in found.values()) == list(range(1000))
    assert max(len(records) for records in dht.keys.values()) < 100


def test_a_few_peers_share_one_key_and_ask_for_no_other() -> None:
    dht: Any = Plain()
    kind = Directory(dht, "progress", 15.0)
    for number in range(50):
        kind.store(a_signer(number), number, peers=49)
    kind.look(peers=49, timeout=1.0)  # the first time nobody knows how many there are
    dht.asked = 0
    assert len(kind.look(peers=49, timeout=1.0)) == 50
    assert dht.asked == 1


def test_nobody_is_missed_while_peers_do_not_agree_how_many_there_are() -> None:
    dht: Any = Plain()
    kind = Directory(dht, "progress", 15.0)
    for number in range(MANY):
        kind.store(a_signer(number), "old", peers=MANY - 1)
        if number % 2:  # has seen one more than the others
            kind.store(a_signer(number), "new", peers=MANY)
    kind.look(peers=0, timeout=1.0)
    found = kind.look(peers=MANY // 2, timeout=1.0)
    values = [entry.value for entry in found.values()]
    assert (len(values), values.count("new")) == (MANY, MANY // 2)


def test_a_newcomer_finds_the_many_at_once() -> None:
    dht: Any = Plain()
    Directory(dht, "progress", 15.0).store(a_signer(1), "here", peers=MANY)
    newcomer = Directory(dht, "progress", 15.0)
    assert len(newcomer.look(peers=0, timeout=1.0)) == 1


def test_who_sees_few_looks_for_the_many_now_and_then_and_who_sees_nobody_each_time() -> None:
    dht: Any = Plain()
    kind = Directory(dht, "progress", 15.0)
    kind.look(peers=0, timeout=1.0)
    Directory(dht, "progress", 15.0).store(a_signer(1), "here", peers=MANY)
    for _ in range(directory.FULL_LOOK - 1):
        assert kind.look(peers=1, timeout=1.0) == {}
    assert len(kind.look(peers=1, timeout=1.0)) == 1
    assert kind.look(peers=1, timeout=1.0) == {}
    assert len(kind.look(peers=0, timeout=1.0)) == 1
