"""Two peers: in memory, and on hivemind."""

from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack

import pytest

from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.machine.dialling import run_in_loop
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.node import Node, addresses_of
from dedloc_kit.swarm.network.service import Endpoint
from dedloc_kit.swarm.p2p.adapters import DhtRecords, Libp2pNetwork
from dedloc_kit.swarm.p2p.local import SystemClock
from tests.identities import an_identity
from tests.swarm.harness import RUN_ID, open_node
from tests.swarm.p2p import in_memory
from tests.swarm.p2p.meeting import Meeting, Peer


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Node, Signer]]]:
    """Of two peers that know each other."""
    found: list[tuple[Node, Signer]] = []
    for name in ("asha", "bina"):
        folder = tmp_path_factory.mktemp(name)
        identity = an_identity(folder / "identity.key")
        known = addresses_of(found[0][0]) if found else ()
        node = open_node(PeerConfig(folder=folder, swarm_host="127.0.0.1"), identity, known)
        found.append((node, Signer(identity)))
    yield found
    for node, _ in reversed(found):
        node.shutdown()


@pytest.fixture(params=["memory", pytest.param("hivemind", marks=pytest.mark.soak)])
def meet(request: pytest.FixtureRequest) -> Callable[[Meeting], None]:
    """Runs a test between two peers."""
    process: str = request.node.name

    def in_one_world(test: Meeting) -> None:
        world = in_memory.World(1)

        def peer(name: str) -> Peer:
            clock = in_memory.MemoryClock()
            return Peer(clock, in_memory.MemoryNetwork(world, name), in_memory.MemoryRecords(world, name, clock))

        in_memory.run(test(peer("asha"), peer("bina")))

    def on_hivemind(test: Meeting) -> None:
        nodes: list[tuple[Node, Signer]] = request.getfixturevalue("nodes")

        async def run() -> None:
            async with AsyncExitStack() as stack:
                peers = []
                for node, signer in nodes:
                    p2p = await node.replicate_p2p(process=process)
                    stack.push_async_callback(p2p.shutdown)
                    network = Libp2pNetwork(Endpoint(p2p, f"{RUN_ID}::{process}"), signer.peer)
                    peers.append(Peer(SystemClock(), network, DhtRecords(node, signer)))
                await test(*peers)

        run_in_loop(run())

    return in_one_world if request.param == "memory" else on_hivemind
