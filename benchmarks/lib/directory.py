"""A thousand peers that all publish at every global step, through a few real nodes of the directory."""

import asyncio
import dataclasses
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hivemind import DHT
from hivemind.dht import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer, get_dht_time
from hivemind.utils.crypto import RSAPrivateKey

from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.network.bootstrap import look_around, start_node
from dedloc_kit.swarm.network.gate import Gate
from dedloc_kit.swarm.network.identity import Identity, Signer
from dedloc_kit.swarm.network.keeper import Keeper
from dedloc_kit.swarm.network.kinds import CONTRIBUTIONS, PROGRESS, Kind
from dedloc_kit.swarm.network.node import Node, addresses_of

NODES = 4
ON_ONE_KEY = 200
"""Peers at most where all records lie under one key: the cost grows with the square."""
AT_ONCE = 2
"""Stores that one node has under way."""
RUN = "scale-0123456789abcdef"


@dataclass(frozen=True)
class Stand:
    """One kind of record, on one key or spread over several."""

    kind: str
    keys: int
    peers: int
    steps: int
    store_seconds: float
    """For all records of one global step, through all nodes; the median step."""
    collect_seconds: float
    """To read and check them all."""
    lost: int
    """Records of any step that the collector did not get."""
    largest_key_bytes: int
    """What every store and every look has to move."""


class ManyPeers(Keeper):
    """Signs with the key that a record's subkey names, as if each peer had a node of its own."""

    def __init__(self, signers: Sequence[Signer]) -> None:
        super().__init__(signers[0], RUN, "")
        self._signers = {MSGPackSerializer.dumps(signer.subkey): signer for signer in signers}

    def sign_value(self, record: DHTRecord) -> bytes:
        return self._signers[record.subkey].signed(record)


publishers: list[Signer] = []


def measure(peers: int, steps: int) -> list[Stand]:
    """Publish and collect for some global steps: with all records under one key, if not too many, and spread."""
    publishers.clear()  # before the nodes are forked: what they are told goes through a narrow pipe
    for _ in range(peers):
        publishers.append(_signer(RSAPrivateKey()))
    return [
        _stand(kind, count, known, steps)
        for kind in (PROGRESS, CONTRIBUTIONS)
        for count, known in ((min(peers, ON_ONE_KEY), 0), (peers, peers))  # who knows of no others uses one key
    ]


@contextmanager
def _open_nodes() -> Iterator[list[Node]]:
    """New ones for each stand: nodes that were too busy to answer do not ask each other again for a while."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dedloc-directory-")))
        nodes: list[Node] = []
        for number in range(NODES):
            config = PeerConfig(folder=folder / str(number), swarm_host="127.0.0.1", client_mode=False)
            known = [address for node in nodes for address in addresses_of(node)]
            identity = Identity(config.folder / "identity.key")
            gate = Gate(RUN, "", Signer(identity), restricted=False)
            around = look_around(config, identity, known, gate=gate)
            nodes.append(start_node(config, identity, around, gate=gate))
            stack.callback(nodes[-1].shutdown)
        for number, node in enumerate(nodes):
            node.run_coroutine(partial(_become, number))
        yield nodes


def _stand(kind: Kind[Any], count: int, known: int, steps: int) -> Stand:
    with _open_nodes() as nodes:
        return _measured(nodes, kind, publishers[:count], known, steps)


def _measured(nodes: Sequence[Node], kind: Kind[Any], everyone: Sequence[Signer], known: int, steps: int) -> Stand:
    collector = Directory(nodes[-1], kind, RUN, reject=print)
    keys = [collector.key(publisher.peer, known) for publisher in everyone]
    store_seconds, collect_seconds, lost, size = [], [], 0, 0
    for step in range(1, steps + 1):
        began = time.monotonic()
        futures = [
            node.run_coroutine(partial(_store, number, keys[number::NODES], kind, step), return_future=True)
            for number, node in enumerate(nodes)
        ]
        for future in futures:
            future.result()
        store_seconds.append(time.monotonic() - began)
        began = time.monotonic()
        found = collector.look(peers=max(known, 2), timeout=60.0)
        got = {peer for peer, record in found.items() if record is not None and record.step == step}
        collect_seconds.append(time.monotonic() - began)
        lost += len({publisher.peer for publisher in everyone} - got)
        size = max(nodes[0].run_coroutine(partial(_size_of, key)) for key in set(keys))
    middle = steps // 2
    return Stand(
        kind=kind.record.wire,
        keys=len(set(keys)),
        peers=len(everyone),
        steps=steps,
        store_seconds=sorted(store_seconds)[middle],
        collect_seconds=sorted(collect_seconds)[middle],
        lost=lost,
        largest_key_bytes=size,
    )


def _signer(key: RSAPrivateKey) -> Signer:
    """Without a file: making a thousand of them as a peer does takes long."""
    identity = Identity.__new__(Identity)
    identity.key = key
    return Signer(identity)


def _contribution(publisher: Signer, step: int) -> dict[str, Any]:
    return Contribution(
        run_id=RUN,
        step=step,
        session=secrets.token_hex(8),
        samples=64,
        session_samples=64 * step,
        loss=2.0,
        name="Asha from Bangalore",
        time=get_dht_time(),
    ).model_dump()


def _progress(publisher: Signer, step: int) -> dict[str, Any]:
    return Progress(
        run_id=RUN,
        step=step,
        round=secrets.token_hex(20),
        samples=64,
        samples_per_second=8.0,
        boundary_seconds=0.0,
        sketch=(1.0, 2.0, 3.0, 4.0),
        follower=False,
        client_mode=False,
        addresses=(f"/ip4/203.0.113.7/tcp/31337/p2p/{publisher.peer}",),
        device="NVIDIA T4, 15 GB",
        name="Asha from Bangalore",
        team="Delta",
        upload=1e6,
        time=get_dht_time(),
    ).model_dump()


# What follows runs in the processes of the nodes.


async def _become(number: int, _dht: DHT, node: DHTNode) -> None:
    node.protocol.record_validator = ManyPeers(publishers[number::NODES])


async def _store(number: int, keys: list[str], kind: Kind[Any], step: int, _dht: DHT, node: DHTNode) -> None:
    turn = asyncio.Semaphore(AT_ONCE)

    async def store(key: str, publisher: Signer) -> None:
        value = (_progress if kind == PROGRESS else _contribution)(publisher, step)
        async with turn:
            await node.store(key, value, get_dht_time() + kind.seconds, subkey=publisher.subkey)

    await asyncio.gather(*map(store, keys, publishers[number::NODES]))


async def _size_of(key: str, _dht: DHT, node: DHTNode) -> int:
    item = node.protocol.storage.get(DHTID.generate(source=key))
    return 0 if item is None else len(node.protocol.serializer.dumps(item.value))


def rows(stands: Sequence[Stand]) -> list[dict[str, Any]]:
    """As plain values."""
    return [dataclasses.asdict(stand) for stand in stands]
