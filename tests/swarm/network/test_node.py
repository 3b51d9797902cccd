"""Identity, signatures and the directory, with real nodes on loopback."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hivemind import DHT
from hivemind.dht import DHTNode
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer, get_dht_time
from hivemind.utils.crypto import RSAPublicKey

from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.errors import UserError
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.directory.contributions import collect, publish
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.incidents import Incidents
from dedloc_kit.swarm.network.connections import Connections, avoid, dial
from dedloc_kit.swarm.network.identity import Identity, Signer, author
from dedloc_kit.swarm.network.keeper import Keeper
from dedloc_kit.swarm.network.kinds import CONTRIBUTIONS, PROGRESS
from dedloc_kit.swarm.network.names import Names
from dedloc_kit.swarm.network.node import Node, addresses_of
from tests.swarm.harness import RUN_ID as RUN
from tests.swarm.harness import belief, open_node, progress, run_of, wait_until

Start = Callable[..., tuple[Node, Signer]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    nodes: list[Node] = []

    def start_node(peers: tuple[str, ...] = (), **settings: Any) -> tuple[Node, Signer]:
        folder = tmp_path / str(len(nodes))
        identity = Identity(folder / "identity.key")
        config = PeerConfig(folder=folder, swarm_host="127.0.0.1", **settings)
        nodes.append(open_node(config, identity, peers))
        return nodes[-1], Signer(identity)

    yield start_node
    for node in reversed(nodes):
        node.shutdown()


def contribution(**values: Any) -> Contribution:
    defaults = {"run_id": RUN, "step": 1, "session": "ab", "samples": 3, "session_samples": 3, "loss": 1.0}
    return Contribution(**{**defaults, "name": "x", "time": get_dht_time(), **values})


def test_an_identity_is_the_same_in_the_next_session_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    first = Identity(path)
    assert Identity(path).peer_id == first.peer_id
    assert path.stat().st_mode & 0o077 == 0, "nobody else may read it"
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    with pytest.raises(UserError, match="is not a peer identity"):
        Identity(path)


def test_a_signed_record_opens_with_its_author_and_any_change_is_noticed(tmp_path: Path) -> None:
    mine, other = Signer(Identity(tmp_path / "a.key")), Signer(Identity(tmp_path / "b.key"))
    record = contribution(name="abc")
    signed = mine.sign(record)
    assert other.open(Contribution, signed) == (mine.peer, record)
    assert author(mine.subkey) == mine.peer
    for forged in (
        signed.replace(b"abc", b"abd"),
        signed[:-9],
        signed.replace(mine.subkey, other.subkey),
        b"",
        b"\xc1",
    ):
        with pytest.raises(ValueError, match="Contribution"):
            other.open(Contribution, forged)
    with pytest.raises(ValueError, match="the signature is not valid"):
        other.open(Progress, signed)


def test_a_record_that_comes_again_is_verified_once_and_a_changed_one_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[bytes] = []
    verify = RSAPublicKey.verify

    def counted(key: RSAPublicKey, data: bytes, signature: bytes) -> bool:
        verified.append(data)
        return bool(verify(key, data, signature))

    monkeypatch.setattr(RSAPublicKey, "verify", counted)
    signer = Signer(Identity(tmp_path / "a.key"))
    validator, value = Keeper(signer, RUN, ""), MSGPackSerializer.dumps(contribution(name="abc").model_dump())
    key, subkey = DHTID.generate(CONTRIBUTIONS.key(Names(RUN))).to_bytes(), MSGPackSerializer.dumps(signer.subkey)
    record = DHTRecord(key, subkey, value, get_dht_time() + 60.0)
    signed = replace(record, value=validator.sign_value(record))
    assert [validator.validate(signed) for _ in range(3)] == [True] * 3
    assert len(verified) == 1
    for changed in (
        replace(signed, value=signed.value.replace(b"abc", b"abd")),
        replace(signed, expiration_time=record.expiration_time + 1.0),
    ):
        assert [validator.validate(changed) for _ in range(3)] == [False] * 3
    assert len(verified) == 3


@pytest.mark.soak
def test_who_holds_the_records_asks_nobody_to_look_at_them(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "asked"
    log.touch()
    call_find = DHTProtocol.call_find

    async def logged(self: DHTProtocol, *args: Any) -> Any:
        with log.open("a") as lines:  # the node's process is forked from this one
            lines.write("x\n")
        return await call_find(self, *args)

    monkeypatch.setattr(DHTProtocol, "call_find", logged)
    holder, _ = start()
    other, signer = start(addresses_of(holder))
    there, here = (Directory(n, PROGRESS, RUN, reject=pytest.fail, seconds=15.0) for n in (other, holder))
    there.store(signer, progress(), peers=1).result(10.0)

    def look(age: float | None) -> tuple[list[str], int]:
        """What the holder sees, and how often it asks for that."""
        before = len(log.read_text())
        found = here.look(peers=1, timeout=10.0, age=age)
        return list(found), len(log.read_text()) - before

    look(None)  # the first one asks for all keys
    assert look(10.0) == ([signer.peer], 0)
    found, asked = look(None)
    assert found == [signer.peer]
    assert asked > 0


@pytest.mark.soak
def test_peers_that_know_only_a_third_one_connect_at_the_addresses_they_announce(start: Start) -> None:
    middle, _ = start()
    known = addresses_of(middle)
    one, _ = start(known)
    other, signer = start(known)
    dial(one, {signer.peer: addresses_of(other)})

    def connected() -> bool:
        return signer.peer in one.run_coroutine(partial(_connections))

    wait_until(connected, "they are not connected")


@pytest.mark.soak
def test_who_accepts_connections_and_is_too_busy_to_answer_is_asked_once_more(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, _ = start()
    asked, create = tmp_path / "asked", DHTNode.create

    async def late(**options: Any) -> DHTNode:
        if not asked.exists():
            asked.touch()  # in a process of its own
            raise RuntimeError("DHTNode bootstrap failed: none of the initial_peers responded to a ping.")
        return await create(**options)

    monkeypatch.setattr(DHTNode, "create", late)
    second, _ = start(addresses_of(first))
    assert asked.exists()
    assert second.is_alive()


@pytest.mark.soak
def test_one_peer_with_a_wrong_clock_keeps_no_newcomer_out(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as wrong:
        wrong.setattr("hivemind.dht.protocol.get_dht_time", lambda: get_dht_time() + 5.0)
        late, _ = start(client_mode=False)  # its process keeps this clock
    newcomer, signer = start(addresses_of(late), client_mode=True)
    publish(newcomer, signer, contribution())
    wait_until(lambda: bool(collect(late, RUN, 64, lambda _: None)), "nothing came")


@pytest.mark.soak
def test_a_peer_that_has_just_fallen_silent_is_not_asked_for_a_while(start: Start) -> None:
    silent, signer = start()
    one, _ = start(addresses_of(silent), client_mode=True)
    publish(silent, signer, contribution())
    wait_until(lambda: bool(collect(silent, RUN, 64, lambda _: None)), "it does not hold what it published")
    avoid(one, [signer.peer])
    assert not collect(one, RUN, 64, lambda _: None)
    wait_until(lambda: bool(collect(one, RUN, 64, lambda _: None)), "it is never asked again")


async def _connections(_dht: DHT, node: Any) -> list[str]:
    return [info.peer_id.to_base58() for info in await node.p2p.list_peers()]


@pytest.mark.soak
def test_contributions_are_collected_from_the_directory_and_foreign_ones_are_not(start: Start) -> None:
    first, signer = start()
    second, other = start(addresses_of(first), client_mode=True)
    publish(first, signer, contribution(step=2))
    publish(second, other, contribution(samples=5, session_samples=8))
    rejected: list[str] = []
    wait_until(lambda: len(collect(first, RUN, 64, rejected.append)) == 2, "not all contributions arrived")
    found = collect(second, RUN, 64, rejected.append)
    assert found[signer.peer].step == 2
    assert found[other.peer].session_samples == 8
    assert not rejected
    # A record under the key of somebody else is refused by every node that is asked to keep it.
    second.store(
        f"{RUN}_contribution",
        subkey=signer.subkey,
        value=contribution(samples=99).model_dump(),
        expiration_time=get_dht_time() + 7200,
    )
    assert collect(first, RUN, 64, rejected.append)[signer.peer].samples == 3


@pytest.mark.soak
def test_the_tracker_counts_the_living_ignores_nonsense_and_forgets_who_left(start: Start, warned: list[str]) -> None:
    first, signer = start()
    second, other = start(addresses_of(first))
    mine, theirs = (
        Tracker(node, who, run_of(RUN, 64), (), Incidents(), belief(who.peer))
        for node, who in ((first, signer), (second, other))
    )
    try:
        theirs.report(progress(run_id=RUN), 0.1)
        for tracker in (mine, theirs):
            tracker.start()
        wait_until(lambda: other.peer in mine.others(), "the other's progress did not arrive")
        assert mine.others()[other.peer].samples == 3

        mine.peers.suspect({other.peer})
        assert other.peer not in mine.others()
        assert mine.anyone(), "it is still alive"
        theirs.report(progress(run_id=RUN, samples=4), 0.1)
        wait_until(lambda: other.peer in mine.others(), "who speaks again is counted again")

        failed = time.monotonic() + 1.0
        mine.peers.suspect({other.peer}, since=failed)
        for samples in range(5, 15):
            theirs.report(progress(run_id=RUN, samples=samples), 0.1)
            time.sleep(0.05)
            counted = other.peer in mine.others()
            assert not counted or time.monotonic() > failed, "what it said before it failed does not count"
        wait_until(lambda: time.monotonic() > failed, "time stands still")
        theirs.report(progress(run_id=RUN, samples=15), 0.1)
        wait_until(lambda: other.peer in mine.others(), "what it says after it failed counts")

        theirs.leave()
        wait_until(lambda: not mine.anyone(), "who left is still waited for")
        assert mine.peers.table.left({other.peer, "another"}) == {other.peer}
        second.store(
            f"{RUN}_progress",
            subkey=other.subkey,
            value={"samples": -5},
            expiration_time=get_dht_time() + 30,
        )
        wait_until(lambda: any("a record was ignored" in text for text in warned), "no word about nonsense")
        assert not mine.anyone()
    finally:
        mine.leave()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port of this machine that does not answer: who waits there to be let in already fills its queue."""
    with ExitStack() as stack:
        door = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(door.getsockname())
        yield door.getsockname()[1]


@pytest.mark.soak
def test_who_hears_nothing_from_any_machine_is_cut_off_and_who_hears_no_is_alone(
    start: Start, silent_port: int
) -> None:
    node, me = start()
    peer = "QmcFKvU2EFGisLXRffTz31yXF3vWgZjKM4d1myqspfDYFi"
    silent, closed = f"/ip4/127.0.0.1/tcp/{silent_port}/p2p/{peer}", f"/ip4/127.0.0.1/tcp/9/p2p/{peer}"

    def cut_off(*known: str) -> bool:
        return Connections(node, me.peer, known, node.gate).cut_off()

    assert cut_off(silent)
    assert not cut_off(silent, closed)
    assert not cut_off(), "who knows nobody cannot be cut off from them"
