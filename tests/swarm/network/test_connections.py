"""Whom a peer dials, and when; tests/swarm/network/test_node.py and test_reach.py have real nodes."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from dedloc_kit.swarm.network import connections
from dedloc_kit.swarm.network.connections import LATER_DIAL, REDIAL, REDIAL_LOST, Connections
from dedloc_kit.swarm.network.reach import Reach
from tests.swarm.harness import gate_of_all


class Dialling:
    """A peer's connections, whose clock stands still; only what is dialled is written down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, client_mode: bool, *known: str) -> None:
        self.now = 1000.0
        self.seen: dict[str, tuple[str, ...]] = {}
        """Who is alive, with the addresses that it names."""
        self.there: set[str] = set()
        """Who is met at the address that it names."""
        self._dialled: list[set[str]] = []
        monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(connections, "dial", self._dial)
        dht: Any = SimpleNamespace(reach=Reach(client_mode))
        self._connections = Connections(dht, "me", known, gate_of_all())

    def _dial(self, _dht: Any, peers: dict[str, tuple[str, ...]]) -> "Future[dict[str, tuple[str, ...]]]":
        self._dialled.append(set(peers))
        met: Future[dict[str, tuple[str, ...]]] = Future()
        met.set_result({peer: addresses if peer in self.there else () for peer, addresses in peers.items()})
        return met

    def after(self, seconds: float) -> list[set[str]]:
        """The calls that are made when so much time has passed."""
        self.now += seconds
        self._dialled.clear()
        said: Any = {peer: SimpleNamespace(addresses=named, reached="") for peer, named in self.seen.items()}
        self._connections.keep(said)
        return list(self._dialled)


def test_who_comes_is_dialled_at_once_and_all_together_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    me = Dialling(monkeypatch, True, "/ip4/127.0.0.1/tcp/1/p2p/coordinator")
    me.seen = {"coordinator": ("address",), "a": ("address",), "a client": ()}
    assert me.after(1.0) == [{"coordinator", "a"}]
    me.seen["b"] = ("address",)
    assert me.after(REDIAL / 2) == [{"b"}]
    assert me.after(1.0) == []
    assert me.after(REDIAL / 2) == [{"coordinator", "a", "b"}]
    assert me.after(1.0) == []


def test_who_was_met_and_is_not_seen_any_more_is_looked_for_more_often_and_who_only_said_so_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    me = Dialling(monkeypatch, True)
    me.seen = {"a": ("address",), "b": ("address",), "liar": ("address",)}
    me.there = {"a", "b"}
    assert me.after(1.0) == [{"a", "b", "liar"}]
    me.after(0.0)
    del me.seen["a"], me.seen["liar"]
    for _ in range(3):
        assert me.after(REDIAL_LOST + 0.1) == [{"a"}]


def test_of_two_that_can_be_reached_one_dials_first(monkeypatch: pytest.MonkeyPatch) -> None:
    me = Dialling(monkeypatch, False)
    me.seen = {"a": ("address",), "z": ("address",)}
    assert me.after(0.0) == [{"z"}]
    assert me.after(LATER_DIAL / 2) == []
    assert me.after(LATER_DIAL) == [{"a"}]
