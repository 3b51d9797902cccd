"""Who can be reached, who is found again, and what a peer does for those who ask it; real nodes on loopback."""

import asyncio
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hivemind import DHT
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
from hivemind.utils import MSGPackSerializer

from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.errors import UserError
from dedloc_kit.machine.dialling import answering, host_and_port, in_own_loop
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.network import reach
from dedloc_kit.swarm.network.bootstrap import Surroundings, _listening, look_around, start_node
from dedloc_kit.swarm.network.connections import dial
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.kinds import PROGRESS
from dedloc_kit.swarm.network.node import Node, addresses_of
from dedloc_kit.swarm.network.port import HeldPort
from dedloc_kit.swarm.network.reach import Question, Reachability, Reply
from dedloc_kit.swarm.network.service import Endpoint
from tests.hang import HANG
from tests.identities import an_identity
from tests.swarm.harness import RUN_ID, Stranger, gate_of, open_node, progress, wait_until

Start = Callable[..., Node]
NOBODY = "QmcFKvU2EFGisLXRffTz31yXF3vWgZjKM4d1myqspfDYFi"
# Who listens here cannot be reached at 127.0.0.1, from where the others see it.
ELSEWHERE = "127.0.0.2"


signers: dict[DHT, Signer] = {}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    nodes: list[Node] = []

    def start_node(
        peers: tuple[str, ...] = (), name: str = "", *, may_start_alone: bool = False, **settings: Any
    ) -> Node:
        folder = tmp_path / (name or str(len(nodes)))
        config = PeerConfig(folder=folder, **{"swarm_host": "127.0.0.1", **settings})
        identity = an_identity(folder / "identity.key")
        node = open_node(config, identity, peers, may_start_alone=may_start_alone)
        signers[node] = Signer(identity)
        nodes.append(node)
        return node

    yield start_node
    for node in reversed(nodes):
        node.shutdown()
    signers.clear()


def port(node: Node) -> int:
    return host_and_port(addresses_of(node)[0])[1]


def shared(writer: DHT, reader: DHT) -> bool:
    """Does what one node stores now reach the other?"""
    there, here = (Directory(node, PROGRESS, RUN_ID, reject=pytest.fail) for node in (writer, reader))
    record = progress(name=secrets.token_hex(8))
    there.store(signers[writer], record, peers=1).result(HANG)
    return here.look(peers=1, timeout=HANG).get(signers[writer].peer) == record


@contextmanager
def listener(host: str = "127.0.0.1", port: int = 0, gives: bytes = b"") -> Iterator[tuple[int, list[str]]]:
    """A listener in a thread: its port, and from where somebody has come; each visitor is given these bytes."""
    visitors: list[str] = []
    with closing(socket.create_server((host, port))) as server:

        def serve() -> None:
            with suppress(OSError):  # the end
                while True:
                    connection, (visitor, _) = server.accept()
                    visitors.append(visitor)
                    with connection:
                        connection.sendall(gives)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], visitors
        server.shutdown(socket.SHUT_RDWR)
        thread.join(HANG)


@contextmanager
def silent_address() -> Iterator[str]:
    """Where a connection is neither accepted nor refused, as behind many firewalls: a listener whose queue is full."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as server:
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(server.getsockname())
        yield f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{NOBODY}"
        for one in waiting:
            one.close()


def refusing_address() -> str:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{NOBODY}"


def question(port: Any, secret: str = "0" * 32, **more: str) -> bytes:
    return bytes(MSGPackSerializer.dumps({"port": port, "secret": secret, **more}))


def ask(node: Node, *questions: bytes) -> list[Reply | None]:
    """What the node answers to each; none if it refuses. The asker is seen at 127.0.0.1."""

    async def ask_one(endpoint: Endpoint, question: bytes) -> Reply | None:
        with suppress(ConnectionError, EOFError):
            async with endpoint.open(str(node.peer_id), Reachability, question) as stream:
                return await asyncio.wait_for(stream.receive_record(Reply), HANG)
        return None

    async def ask_all() -> list[Reply | None]:
        p2p = await Stranger.create(initial_peers=addresses_of(node), no_listen=True, startup_timeout=HANG)
        answers = [await ask_one(Endpoint(p2p, RUN_ID), question) for question in questions]
        await p2p.shutdown()
        return answers

    return in_own_loop(ask_all())


@pytest.mark.soak
def test_two_that_begin_at_once_on_one_machine_listen_at_two_ports(tmp_path: Path) -> None:
    def begin(name: str, preferred: int = 0) -> tuple[Surroundings, Callable[[], Node]]:
        config, identity = PeerConfig(folder=tmp_path / name, swarm_host="127.0.0.1"), an_identity(tmp_path / name)
        gate = gate_of(identity)
        around = look_around(config, identity, (), gate=gate, may_start_alone=True, preferred_port=preferred)
        return around, partial(start_node, config, identity, around, gate=gate, may_start_alone=True)

    around, start = begin("one")
    beside, _ = begin("other", preferred=around.port)
    assert beside.port != around.port
    node = start()
    assert port(node) == around.port
    node.shutdown()
    HeldPort("127.0.0.1", around.port).let_go()  # nobody holds it any more
    assert beside.held is not None
    beside.held.let_go()


@pytest.mark.soak
def test_who_can_be_reached_is_a_full_peer(start: Start) -> None:
    first = start()
    second = start(addresses_of(first))
    assert not second.client_mode
    assert addresses_of(second)[0].startswith("/ip4/127.0.0.1/tcp/")
    assert second.reach.text == f"others can reach this machine at 127.0.0.1, port {port(second)}"
    third = start(addresses_of(second))
    assert not third.client_mode, "a volunteer answers as well as a coordinator"


@pytest.mark.soak
def test_who_cannot_be_reached_is_a_client_and_takes_part(start: Start) -> None:
    first = start()
    second = start(addresses_of(first), host=ELSEWHERE)
    assert second.client_mode
    assert not addresses_of(second)
    assert "others cannot reach this machine" in second.reach.text
    assert not second.reach.uncertain
    assert shared(second, first)
    assert shared(first, second)


@pytest.mark.soak
def test_the_first_peer_and_a_coordinator_with_known_peers_are_full_peers_without_a_test(start: Start) -> None:
    first = start()
    assert not first.client_mode
    coordinator = start(addresses_of(first), host=ELSEWHERE, may_start_alone=True)
    assert not coordinator.client_mode
    assert not coordinator.reach.text


@pytest.mark.soak
def test_what_the_configuration_says_needs_no_test(start: Start) -> None:
    first = start()
    assert start(addresses_of(first), client_mode=True).client_mode
    assert not start(addresses_of(first), client_mode=False, host=ELSEWHERE).client_mode
    announced = start(addresses_of(first), host=ELSEWHERE, announce_host="192.0.2.7")
    assert addresses_of(announced)[0].startswith("/ip4/192.0.2.7/tcp/")


@pytest.mark.soak
def test_where_nobody_can_tell_the_peer_is_a_client_and_says_so(start: Start) -> None:
    older = DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], startup_timeout=HANG)
    try:
        peer = start(tuple(map(str, older.get_visible_maddrs())))
        assert peer.client_mode
        assert peer.reach.uncertain
        assert "--reachable" in peer.reach.text
    finally:
        older.shutdown()


@pytest.mark.soak
def test_a_peer_that_is_asked_too_often_is_busy(start: Start) -> None:
    node = start()
    closed = host_and_port(refusing_address())[1]
    answers = ask(node, *[question(closed)] * (reach.PER_MINUTE_AND_HOST + 1))
    verdicts = [answer and answer.verdict for answer in answers]
    assert verdicts == ["unreached"] * reach.PER_MINUTE_AND_HOST + ["busy"]
    late = start(addresses_of(node))
    assert late.client_mode
    assert late.reach.uncertain


@pytest.mark.soak
def test_an_asked_peer_connects_to_nobody_but_the_asker(start: Start) -> None:
    node = start()
    with listener(ELSEWHERE) as (port, visitors):
        answers = ask(node, question(port), question(port, host=ELSEWHERE))
    assert answers == [Reply(verdict="unreached", host="127.0.0.1"), None]
    assert not visitors


@pytest.mark.soak
def test_an_asked_peer_tells_nothing_about_ports_where_its_asker_does_not_listen(start: Start) -> None:
    node = start()
    secret = secrets.token_hex(16)
    with (
        listener(gives=secret.encode()) as (mine, visitors),
        listener(gives=b"220 mail ready" + bytes(64)) as (other, _),
        listener() as (closing_at_once, _),
        silent_address() as silent,
    ):
        ports = (mine, other, closing_at_once, host_and_port(silent)[1])
        answers = ask(node, *(question(port, secret) for port in ports))
    assert [answer and answer.verdict for answer in answers] == ["reached", "unreached", "unreached", "unreached"]
    assert visitors == ["127.0.0.1"], "it tries once"


@pytest.mark.soak
def test_no_peer_carries_what_strangers_send_each_other(start: Start) -> None:
    relays = "/libp2p/circuit/relay/0.2.0/hop"

    async def ask_all() -> list[bool]:
        """Which of hivemind's peer and ours offers to be a relay."""
        other = await P2P.create(startup_timeout=HANG)
        known = [*addresses_of(node), *map(str, await other.get_visible_maddrs())]
        stranger = await P2P.create(initial_peers=known, startup_timeout=HANG)
        try:
            return [await offers(stranger, other.peer_id), await offers(stranger, node.peer_id)]
        finally:
            await stranger.shutdown()
            await other.shutdown()

    async def offers(asker: P2P, peer: PeerID) -> bool:
        with suppress(ControlFailure):
            (await asker._client.stream_open(peer, (relays,)))[2].close()
            return True
        return False

    node = start()
    assert in_own_loop(ask_all()) == [True, False]


@pytest.mark.soak
def test_nonsense_is_refused_and_does_no_harm(start: Start) -> None:
    node = start()
    nonsense = (
        b"\xff\x00",
        b"\x90",  # an empty list
        b"\x80",  # nothing said
        b"\x91" * 400,  # lists in lists
        bytes(100_000),
        question(0),
        question(65_536),
        question(80, "0" * 31),
        question(80, "\n" + "0" * 31),
        question("80"),
    )
    assert ask(node, *nonsense) == [None] * len(nonsense)
    assert not start(addresses_of(node)).client_mode, "it still answers"


@pytest.mark.soak
def test_a_peer_that_claims_to_have_come_is_not_believed() -> None:
    class Lying(Reachability):
        async def answer(self, peer: str, question: Question) -> Reply:
            return Reply(verdict="reached", host="192.0.2.9")

    async def ask_the_liar() -> reach.Reach:
        liar = await Stranger.create(startup_timeout=HANG)
        await Endpoint(liar, RUN_ID).add(Lying(liar, lambda *_: ""))
        try:
            addresses = [str(address) for address in await liar.get_visible_maddrs()]
            return await reach.find_out(RUN_ID, "127.0.0.1", host_and_port(refusing_address())[1], addresses)
        finally:
            await liar.shutdown()

    found = in_own_loop(ask_the_liar())
    assert found.client_mode
    assert found.host is None


@pytest.mark.soak
def test_one_address_that_answers_is_enough_whatever_the_others_do(start: Start) -> None:
    node = start()
    (living,) = addresses_of(node)
    with silent_address() as silent:
        several = [silent, refusing_address(), living, "/ip4/127.0.0.1/udp/9/p2p/x", "nonsense"]
        # The long limit is not waited for, or this would fail.
        found = in_own_loop(asyncio.wait_for(answering(several, seconds=3600), HANG))
        assert found == [living]
        newcomer = start((silent, refusing_address(), living))
        assert shared(newcomer, node)
        with pytest.raises(UserError, match=rf"nobody answers at {silent}, nor at the 1 other addresses"):
            start((silent, refusing_address()))


@pytest.mark.soak
def test_a_peer_does_not_look_for_itself(start: Start, tmp_path: Path) -> None:
    first = start(name="first")
    known = addresses_of(first)
    me = f"/ip4/127.0.0.1/tcp/9/p2p/{an_identity(tmp_path / 'second' / 'identity.key').peer_id}"
    second = start((me, *known), name="second")
    assert shared(second, first)
    with pytest.raises(UserError, match="nobody answers"):
        start((me,), name="second")


@pytest.mark.soak
def test_a_node_that_comes_back_has_its_address_and_place_and_a_client_finds_it_again(start: Start) -> None:
    first = start(name="first")
    addresses, peer = addresses_of(first), str(first.peer_id)
    client = start(addresses, client_mode=True)
    assert shared(client, first)
    place = known_nodes(client)
    first.shutdown()

    def forgotten() -> bool:
        client.get(secrets.token_hex(8), latest=True)
        dial(client, {peer: addresses})
        return not known_nodes(client)

    wait_until(forgotten, "the client still counts on the node that is gone", HANG)

    back = start(name="first", port=host_and_port(addresses[0])[1])
    assert addresses_of(back) == addresses

    def found_again() -> bool:
        dial(client, {peer: addresses})
        return shared(client, back) and shared(back, client)

    wait_until(found_again, "the client does not find the node that came back", HANG)
    assert known_nodes(client) == place


def known_nodes(node: Node) -> dict[int, PeerID]:
    return node.run_coroutine(_known_nodes)  # type: ignore[no-any-return]


async def _known_nodes(_dht: DHT, node: Any) -> dict[int, PeerID]:
    return {int(key): peer for key, peer in node.protocol.routing_table.uid_to_peer_id.items()}


@pytest.mark.soak
def test_a_preferred_port_is_taken_if_it_is_free(tmp_path: Path) -> None:
    config = PeerConfig(folder=tmp_path, swarm_host="127.0.0.1")
    identity = an_identity(tmp_path / "identity.key")
    free = host_and_port(refusing_address())[1]
    for preferred, given in ((free, True), (free, False)):
        with closing(socket.socket()) as other:
            if not given:
                other.bind(("127.0.0.1", preferred))
                other.listen()
            node = open_node(config, identity, preferred_port=preferred)
            try:
                assert (port(node) == preferred) is given
            finally:
                node.shutdown()


def test_behind_a_router_both_its_address_and_the_inner_one_are_announced(tmp_path: Path) -> None:
    config = PeerConfig(folder=tmp_path, swarm_host="192.0.2.5")
    routed = _listening(config, 31337, reach.Reach(client_mode=False, host="198.51.100.7"))
    assert routed["announce_maddrs"] == ["/ip4/198.51.100.7/tcp/31337", "/ip4/192.0.2.5/tcp/31337"]
    direct = _listening(config, 31337, reach.Reach(client_mode=False, host="192.0.2.5"))
    assert direct["announce_maddrs"] == ["/ip4/192.0.2.5/tcp/31337"]


@pytest.mark.soak
def test_two_nodes_never_share_a_port(start: Start) -> None:
    taken = port(start())
    with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{taken}"):
        start(port=taken)


@pytest.mark.soak
def test_connections_of_an_earlier_session_do_not_take_the_port(start: Start) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        earlier = server.getsockname()[1]
        with closing(socket.create_connection(("127.0.0.1", earlier))):
            server.accept()[0].close()  # whoever closes first lingers on the port
    assert port(start(port=earlier)) == earlier
