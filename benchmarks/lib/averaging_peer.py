"""One member of a bare all-reduce, for allreduce.py: with ours, hivemind's averager or gloo, or as bare TCP traffic.

After the job, a line `{"do": "meet", "addresses": {ID: ADDRESSES}}` tells it who the others are, `{"do": "gather"}`
makes it look for the group, and `{"do": "average"}` begins the all-reduce.
"""

import hashlib
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import hivemind
import numpy as np
import psutil
import torch
from hivemind import DHT
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.compression import CompressionBase, Float16Compression, NoCompression, Uniform8BitQuantization
from hivemind.compression.quantization import Quantization
from hivemind.dht import DHTNode
from torch import Tensor, distributed

from benchmarks.lib.baseline import Role, play
from benchmarks.lib.entering import way_in
from benchmarks.lib.task import shapes, simulated_run
from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.chain.branch import Branch
from dedloc_kit.swarm.gathering.messages import Attempt, Member
from dedloc_kit.swarm.network.connections import dial
from dedloc_kit.swarm.network.node import addresses_of
from dedloc_kit.swarm.peer import exchange_of
from dedloc_kit.swarm.transfer.service import StateSource

HIVEMIND_COMPRESSIONS: dict[str, type[CompressionBase]] = {
    "none": NoCompression,
    "float16": Float16Compression,
    "8bit": Uniform8BitQuantization,
}
BITS = {"none": 32, "float16": 16, "8bit": 8, "4bit": 4}
_WINDOW_SECONDS = 10.0
_LIMIT_SECONDS = 600.0
_CONNECT_SECONDS = 60.0


class Averaging(Protocol):
    """An all-reduce in two halves."""

    peer: str
    addresses: tuple[str, ...]
    anchor: str
    """Where the agreement on steps begins, as the first peer says; in hexadecimal."""

    def meet(self, peers: dict[str, list[str]]) -> None:
        """Connect to the others, as far as the system does that ahead; returns when that is done."""
        ...

    def gather(self) -> None:
        """Find a group; returns also if there was none."""
        ...

    def average(self) -> tuple[int, str]:
        """Average with it: how many peers took part (0 if it failed), and what happened."""
        ...


async def _connected(_dht: DHT, node: DHTNode) -> set[str]:
    return {info.peer_id.to_base58() for info in await node.p2p.list_peers()}


class Ours:
    def __init__(self, job: dict[str, Any], gradients: list[Tensor]) -> None:
        self._run = simulated_run(
            "allreduce", 1, 0.0, global_batch=int(job["peers"]), averaging={"compression": job["compression"]}
        )
        entry = way_in(self._run, job)
        node, signer = entry.start(entry.surroundings()), entry.signer
        self._node, self.peer, self.addresses = node, signer.peer, addresses_of(node)
        layout, info = FlatLayout.of(gradients), StateInfo(run_id=self._run.run_id, step=0, rounds=())
        source = StateSource(lambda: nullcontext(({}, [])), lambda: info)
        exchange = exchange_of(node, signer, self._run, layout, source, Path(job["folder"]))
        self._averager, self._host = exchange.averager, exchange.host
        if job["anchor"]:
            self._head = self._host.call(Branch.load, bytes.fromhex(job["anchor"])).result()
        else:
            self._head = self._host.call(Branch.begin, 0, "", "0" * 64).result()
        self.anchor = self._head.anchor.hex()
        with self._averager.vector.held() as flat:
            for view, gradient in zip(layout.views(flat), gradients, strict=True):
                view.copy_(gradient)

    def meet(self, peers: dict[str, list[str]]) -> None:
        self._others = peers.keys() - {self.peer}
        deadline = time.monotonic() + _CONNECT_SECONDS
        while missing := self._others - self._node.run_coroutine(_connected):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no connection to {missing}")
            # Only one of two: libp2p dials from the port that it listens on, and two that dial each other within
            # a round trip meet in one TCP connection of which neither is the server; both fail, and wait then.
            dial(self._node, {peer: peers[peer] for peer in missing if peer > self.peer})
            time.sleep(1.0)

    def gather(self) -> None:
        peers = sorted(self._others | {self.peer})
        previous = self._head.instance.previous
        nonce = hashlib.sha256(f"{previous} {peers}".encode()).hexdigest()[:32]
        members = tuple(Member(peer=peer) for peer in peers)
        self._group = self._averager.stand(Attempt(nonce=nonce, previous=previous, members=members))

    def average(self) -> tuple[int, str]:
        mine = Contribution(
            run_id=self._run.run_id,
            step=self._head.instance.step,
            session="ab",
            samples=1,
            session_samples=self._head.instance.step,
            loss=1.0,
            name="",
            time=time.time(),
        )
        self._averager.begin(self._group, mine, Patience(60.0, 60.0), _LIMIT_SECONDS)
        outcome = self._group.result()
        if outcome.commit is not None:
            self._head = self._host.call(Branch.take, [outcome.commit]).result()
        return len(outcome.contributions) if outcome.outcome == "complete" else 0, outcome.detail


class Hivemind:
    anchor = ""

    def __init__(self, job: dict[str, Any], gradients: list[Tensor]) -> None:
        node = hivemind.DHT(
            initial_peers=job["addresses"],
            host_maddrs=[f"/ip4/{job['host']}/tcp/0"],
            startup_timeout=60.0,
            start=True,
        )
        self.peer = node.peer_id.to_base58()
        self.addresses = tuple(str(address) for address in node.get_visible_maddrs())
        self._averager = hivemind.DecentralizedAverager(
            gradients,
            node,
            prefix="allreduce",
            start=True,
            compression=HIVEMIND_COMPRESSIONS[job["compression"]](),
            target_group_size=int(job["peers"]),
            min_matchmaking_time=_WINDOW_SECONDS,
            request_timeout=3.0,
            sender_timeout=60.0,
            reducer_timeout=120.0,
        )

    def meet(self, peers: dict[str, list[str]]) -> None:
        pass  # it looks for the way to a member when it needs it

    def gather(self) -> None:
        self._control: StepControl = self._averager.step(
            timeout=_LIMIT_SECONDS, wait=False, require_trigger=True, allow_retries=False
        )
        while self._control.stage == AveragingStage.LOOKING_FOR_GROUP or self._control.stage == AveragingStage.IDLE:
            time.sleep(0.01)

    def average(self) -> tuple[int, str]:
        self._control.allow_allreduce()
        return len(self._control.result(timeout=_LIMIT_SECONDS) or ()), ""


class Gloo:
    """What a data center would take: a fixed group, full precision, and nobody may leave."""

    addresses: tuple[str, ...] = ()  # they find each other in a file
    anchor = ""

    def __init__(self, job: dict[str, Any], gradients: list[Tensor]) -> None:
        folder = Path(job["folder"])
        self.peer, self._file, self._host = folder.name, folder.with_name("gloo"), job["host"]
        self._flat = torch.cat([gradient.flatten() for gradient in gradients])

    def meet(self, peers: dict[str, list[str]]) -> None:
        lines = psutil.net_if_addrs().items()
        os.environ["GLOO_SOCKET_IFNAME"] = next(
            line for line, addresses in lines if self._host in {address.address for address in addresses}
        )
        rank = sorted(peers).index(self.peer)
        distributed.init_process_group("gloo", f"file://{self._file}", rank=rank, world_size=len(peers))

    def gather(self) -> None:
        pass

    def average(self) -> tuple[int, str]:
        distributed.all_reduce(self._flat)
        self._flat /= distributed.get_world_size()
        return distributed.get_world_size(), ""


class PlainTcp:
    """As many bytes over plain TCP connections, all at once and without any arithmetic: what TCP makes of the lines."""

    anchor = ""

    def __init__(self, job: dict[str, Any], gradients: list[Tensor]) -> None:
        self._server = socket.create_server((job["host"], 0))
        self.addresses: tuple[str, ...] = (":".join(map(str, self._server.getsockname())),)
        self.peer = self.addresses[0]
        values = 2 * sum(gradient.numel() for gradient in gradients) // int(job["peers"])  # gradients and averages
        self._bytes = values * BITS[job["compression"]] // 8
        self._connections: list[socket.socket] = []

    def meet(self, peers: dict[str, list[str]]) -> None:
        for peer in peers:
            if peer < self.peer:
                host, _, port = peer.partition(":")
                self._connections.append(socket.create_connection((host, int(port))))
        while len(self._connections) < len(peers) - 1:
            self._connections.append(self._server.accept()[0])

    def gather(self) -> None:
        pass

    def average(self) -> tuple[int, str]:
        with ThreadPoolExecutor(2 * len(self._connections)) as pool:
            for exchange in [pool.submit(go, each) for each in self._connections for go in (self._send, self._receive)]:
                exchange.result()
        return 1 + len(self._connections), ""

    def _send(self, connection: socket.socket) -> None:
        connection.sendall(bytes(self._bytes))

    def _receive(self, connection: socket.socket) -> None:
        left, place = self._bytes, bytearray(2**18)
        while left:
            left -= connection.recv_into(place, min(left, len(place)))


KINDS: dict[str, Callable[[dict[str, Any], list[Tensor]], Averaging]] = {
    "ours": Ours,
    "hivemind": Hivemind,
    "gloo": Gloo,
    "tcp": PlainTcp,
}


def _read_with_numpy_2(self: Quantization, serialized_tensor: Any) -> Tensor:
    """hivemind 1.1.12 cannot read its own 8-bit tensors with numpy 2.4: what it meant."""
    buffer = serialized_tensor.buffer
    size = int(np.frombuffer(buffer, count=1, dtype=np.int64)[0])
    codebook = torch.as_tensor(np.frombuffer(buffer, offset=8, count=size, dtype=np.float32).copy())
    indices = np.frombuffer(buffer, offset=8 + 4 * size, dtype=np.uint8)
    return codebook[torch.as_tensor(indices, dtype=torch.int64)].reshape(tuple(serialized_tensor.size))


def member(role: Role) -> None:
    job = role.job
    torch.set_num_threads(1)
    Quantization.extract = _read_with_numpy_2
    generator = torch.Generator().manual_seed(os.getpid())
    gradients = [torch.randn(shape, generator=generator) * 1e-3 for shape in shapes(int(job["parameters"]))]
    averaging = KINDS[job["role"]](job, gradients)
    role.tell("joined", peer=averaging.peer, addresses=averaging.addresses, anchor=averaging.anchor)
    while (command := role.commands.get()) is not None:
        if command["do"] == "meet":
            averaging.meet(command["addresses"])
            role.tell("met")
        elif command["do"] == "gather":
            averaging.gather()
            role.tell("gathered")
        else:
            try:
                members, detail = averaging.average()
            except Exception as error:  # as hivemind reports that there is no group
                members, detail = 0, repr(error)
            role.tell("averaged", members=members, detail=detail)


if __name__ == "__main__":
    play(dict.fromkeys(KINDS, member))
