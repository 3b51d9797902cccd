"""One donor or newcomer of joining.py: with ours or with hivemind's averager.

After the job, a line `{"do": "fetch", "donors": {ID: ADDRESSES}}` makes it load the state from others; ours also puts
it into a folder (`put`), and takes it from there over HTTP (`take`).
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import hivemind
import torch
from torch import Tensor

from benchmarks.lib.baseline import Role
from benchmarks.lib.entering import way_in
from benchmarks.lib.task import shapes, simulated_run
from dedloc_kit.bucket.contents import Index, Stored
from dedloc_kit.bucket.reading import Bucket
from dedloc_kit.bucket.writing import LocalFolder, digest_of, put_whole
from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.optim.lamb8bit import Lamb8Bit
from dedloc_kit.records.state import StateInfo
from dedloc_kit.swarm.network.connections import dial
from dedloc_kit.swarm.network.node import addresses_of
from dedloc_kit.swarm.peer import exchange_of
from dedloc_kit.swarm.transfer.contents import StateLayout, shared_bytes
from dedloc_kit.swarm.transfer.service import StateSource

_RUN = "joining"


class Sharing(Protocol):
    """Gives its state to others, or fetches theirs."""

    peer: str
    addresses: tuple[str, ...]

    def fetch(self, donors: dict[str, list[str]]) -> Sequence[Tensor] | None: ...


class Ours:
    def __init__(self, job: dict[str, Any], state: list[Tensor]) -> None:
        run = simulated_run(_RUN, 1, 0.0, global_batch=1)
        entry = way_in(run, job)
        self._node = entry.start(entry.surroundings())
        self.peer, self.addresses = self._node.peer_id.to_base58(), addresses_of(self._node)
        info = StateInfo(run_id=run.run_id, step=1, rounds=("ab",))
        self._state, self._run_id = state, run.run_id
        source = StateSource(lambda: nullcontext(({"info": info.model_dump(), "receipts": []}, state)), lambda: info)
        nothing = FlatLayout.of([torch.zeros(1)])  # is averaged
        self._transfers = exchange_of(self._node, entry.signer, run, nothing, source, Path(job["folder"])).transfers
        self._transfers.share(bool(job["donor"]))

    def fetch(self, donors: dict[str, list[str]]) -> Sequence[Tensor] | None:
        dial(self._node, donors)
        while True:  # until a place is free
            found = self._transfers.download_state(
                list(donors),
                self._state,
                on_version=lambda _: True,
                on_progress=lambda _received, _total: None,
                stop=threading.Event(),
            )
            if found is not None:
                return found[1]

    def put(self, folder: str) -> str:
        """Put the state into this folder as the coordinator does; returns the hash of the index."""
        writer, layout = LocalFolder(Path(folder), self._run_id), StateLayout(self._state)
        metadata = put_whole(memoryview(b"{}"), writer.put)
        content = put_whole(layout.pack(self._state).numpy().data, writer.put)
        text = Index(
            run_id=self._run_id, states=(Stored(step=1, round="ab", metadata=metadata, content=content),)
        ).write()
        writer.put({digest_of(text): text})
        return digest_of(text)

    def take(self, url: str, digest: str) -> Sequence[Tensor]:
        """Take it from there as a newcomer does."""
        bucket, layout, stop = Bucket(url, self._run_id, trusted=[url]), StateLayout(self._state), threading.Event()
        flat = shared_bytes(layout.size)
        (stored,) = bucket.index(digest, stop).states
        bucket.read(stored.content, flat.numpy().data, stop)
        return layout.views(flat)


class _HivemindAverager(hivemind.DecentralizedAverager):  # type: ignore[misc]
    state: list[Tensor]

    def get_current_state(self) -> tuple[Any, Sequence[Tensor], None]:
        return {"step": 1}, self.state, None


class Hivemind:
    def __init__(self, job: dict[str, Any], state: list[Tensor]) -> None:
        node = hivemind.DHT(
            initial_peers=job["addresses"],
            host_maddrs=[f"/ip4/{job['host']}/tcp/0"],
            startup_timeout=60.0,
            start=True,
        )
        self.peer = node.peer_id.to_base58()
        self.addresses = tuple(str(address) for address in node.get_visible_maddrs())
        self._averager = _HivemindAverager(
            [torch.zeros(1)], node, prefix=_RUN, start=True, allow_state_sharing=bool(job["donor"])
        )
        self._averager.state = state

    def fetch(self, donors: dict[str, list[str]]) -> Sequence[Tensor] | None:
        found = self._averager.load_state_from_peers()  # it finds the donors by itself
        return None if found is None else found[1]


KINDS: dict[str, Callable[[dict[str, Any], list[Tensor]], Sharing]] = {"ours": Ours, "hivemind": Hivemind}


def state_of(parameters: int, kept: str) -> list[Tensor]:
    """So many parameters and the state of LAMB, as it is kept, after a step with gradients at random."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator) for shape in shapes(parameters)]
    for each in values:
        each.grad = torch.randn(each.shape, generator=generator)
    optimizer = (Lamb8Bit if kept == "8bit" else Lamb)(values, lr=0.01)
    optimizer.step()
    return [*values, *optimizer.state_tensors()]


def main() -> None:
    role = Role()
    torch.set_num_threads(1)
    state = state_of(int(role.job["parameters"]), role.job["state"])
    sharing = KINDS[role.job["kind"]](role.job, state)
    role.tell("joined", peer=sharing.peer, addresses=sharing.addresses)
    while (command := role.commands.get()) is not None:
        if command["do"] == "put" and isinstance(sharing, Ours):
            role.tell("put", digest=sharing.put(command["folder"]))
            continue
        began = time.monotonic()
        if command["do"] == "take" and isinstance(sharing, Ours):
            fetched: Sequence[Tensor] | None = sharing.take(command["url"], command["digest"])
        else:
            fetched = sharing.fetch(command["donors"])
        seconds = time.monotonic() - began
        exact = fetched is not None and all(torch.equal(a, b) for a, b in zip(fetched, state, strict=True))
        role.tell("fetched", seconds=seconds, exact=exact)
    os._exit(0)  # whatever hivemind has left behind ends with the session


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
