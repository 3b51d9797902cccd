"""Nested and truncated bytes at every door where a peer's bytes are read; a process of its own, which must live.

`python -m tests.swarm.hostile.nested_bytes`; run by `test_nested_bytes.py`.
"""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hivemind.dht.crypto import DHTRecord
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer, get_dht_time
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.network.identity import Identity, Signer
from dedloc_kit.swarm.network.keeper import DHTProtocol, Keeper
from dedloc_kit.swarm.network.kinds import PROGRESS
from dedloc_kit.swarm.network.names import Names
from dedloc_kit.swarm.network.unpacking import unpack
from tests.swarm.harness import RUN_ID

KEY = DHTID.generate(PROGRESS.key(Names(RUN_ID))).to_bytes()


def wrapped(kind: int, data: bytes) -> bytes:
    """In a list, a map, or an extension type of this number."""
    if kind < 0:
        return (b"\x91" if kind == -1 else b"\x81\xa1x") + data
    return b"\xc9" + len(data).to_bytes(4, "big") + bytes([kind]) + data


@st.composite
def nested(draw: st.DrawFn) -> bytes:
    data = draw(st.sampled_from([b"\x90", b"\x80", b"\xc0", b"\x01", b"\xa1x"]))
    kinds = draw(st.lists(st.sampled_from([-1, -2, 0x40, 0x50, 0x51]), min_size=1, max_size=4))
    for level in range(draw(st.integers(1, 300))):
        data = wrapped(kinds[level % len(kinds)], data)
    return data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data


class Answering(DHTProtocol):
    """The directory of a peer whose neighbour answers with these bytes."""

    answer = b""

    def get_stub(self, peer: PeerID) -> Any:
        async def rpc_find(request: Any, timeout: float | None) -> dht_pb2.FindResponse:
            found = dht_pb2.FindResult(
                type=dht_pb2.FOUND_DICTIONARY, value=self.answer, expiration_time=get_dht_time() + 60.0
            )
            return dht_pb2.FindResponse(results=[found])

        return SimpleNamespace(rpc_find=rpc_find)


def main(folder: Path) -> None:
    signer = Signer(Identity(folder / "key"))
    keeper = Keeper(signer, RUN_ID, signer.peer)
    subkey = MSGPackSerializer.dumps(signer.subkey)

    async def attacked(data: bytes) -> None:
        directory = await Answering.create(
            None, DHTID.generate(), 20, 5, 3, 3.0, client_mode=True, record_validator=keeper
        )
        later = get_dht_time() + 60.0
        for tag in (b"", data):  # a whole dictionary, or one subkey
            asked = {"keys": [KEY], "subkeys": [tag], "values": [data], "expiration_time": [later], "in_cache": [False]}
            with suppress(Exception):
                await directory.rpc_store(dht_pb2.StoreRequest(**asked), None)
        directory.answer = data
        await directory.call_find(signer_id, [DHTID.from_bytes(KEY)])

    signer_id = PeerID.from_base58(signer.peer)

    @seed(0)
    @settings(max_examples=200, deadline=None, database=None)
    @given(nested())
    def every_door(data: bytes) -> None:
        with suppress(ValueError):
            unpack(data)
        with suppress(ValueError):
            signer.open(Progress, data)
        record = DHTRecord(KEY, subkey, data, get_dht_time() + 15.0)
        keeper.validate(record)
        keeper.validate(DHTRecord(KEY, data, data, get_dht_time() + 15.0))
        keeper.validate(DHTRecord(KEY, subkey, signer.signed(record), get_dht_time() + 15.0))
        asyncio.run(attacked(data))

    every_door()
    sys.stdout.write("alive\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
