"""A peer that gives and fetches states and averages, as a process of its own for test_sharing.py.

Reads JSON lines on standard input: first who it is, then what it is to do. Writes a JSON line for each.
"""

import asyncio
import contextlib
import ctypes
import hashlib
import json
import logging
import multiprocessing as mp
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from hivemind.compression import serialize_torch_tensor

from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.learning.train.state.sketch import SEED_BYTES
from dedloc_kit.machine.logs import Warnings
from dedloc_kit.records.record import Record
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Receipt
from dedloc_kit.swarm.allreduce.encoding.codec import read_part
from dedloc_kit.swarm.network.host import Host, Owner
from dedloc_kit.swarm.network.identity import Identity
from dedloc_kit.swarm.network.node import addresses_of
from dedloc_kit.swarm.network.service import Endpoint, Reader, Stream, encode
from dedloc_kit.swarm.transfer import donor as giving
from dedloc_kit.swarm.transfer import places, protocol
from dedloc_kit.swarm.transfer.contents import RecentAverage
from dedloc_kit.swarm.transfer.donor import Donor
from dedloc_kit.swarm.transfer.service import REPORT_SECONDS, StateSource, Transfers, TransferService
from tests.swarm.harness import open_node, wait_until

RUN = "sharing-0123456789abcdef"
NUMBERS = 6_000_000  # 24 MB
LAST = "these were the warnings"
RECEIPT, RECEIPT_BYTES = "ab", 100_000  # more than a pipe takes before somebody reads, as after some tens of steps


class Faults:
    """What a dishonest or unlucky donor does instead; its name is set by the test and read in both processes."""

    def __init__(self) -> None:
        self.kind = mp.Array(ctypes.c_char, 64)
        self._given = self._blocks = 0
        self._upload = protocol.upload
        giving.upload, giving.encode = self.upload, self.encode  # type: ignore[attr-defined]

    def encode(self, record: Record) -> bytes:
        header = record.model_dump()
        match self.kind.value.decode():
            case "garbage header":
                return os.urandom(100)
            case "endless header":
                return bytes(protocol.MAX_HEADER_BYTES + 1)
            case "too large":
                header["total"] += 16
            case "too small":
                header["total"] -= 16
            case "garbage metadata":
                header["metadata"] = os.urandom(1000)
            case "endless metadata":
                header["metadata"] = bytes(protocol.MAX_METADATA_BYTES + 1)
        return encode(type(record).model_construct(**header))

    async def upload(
        self, stream: Stream, block: memoryview, line_free: asyncio.Event, moved: Callable[[], None]
    ) -> None:
        self._blocks += 1
        match self.kind.value.decode():
            case "breaks off" if self._blocks % 3 == 0:
                await self._upload(stream, block[: len(block) // 2], line_free, moved)
                raise OSError("enough")
            case "endless message":
                stream.writer.write((2**31).to_bytes(4, "big"))
            case "garbage content":
                block = memoryview(os.urandom(len(block)))
            case "says nothing but hello":
                while True:
                    await stream.send(b"")
                    await asyncio.sleep(0.05)
            case "dies" if self._given > NUMBERS:
                os.killpg(0, signal.SIGKILL)
            case "stalls" if self._given > NUMBERS:
                os.killpg(0, signal.SIGSTOP)
        await self._upload(stream, block, line_free, moved)
        self._given += len(block)


class CountingReader:
    """A stream that counts what it gives."""

    def __init__(self, reader: Reader, counts: Counter[str], donor: str) -> None:
        self._reader, self._counts, self._donor = reader, counts, donor

    async def read(self, size: int) -> bytes:
        data = await self._reader.read(size)
        self._counts[self._donor] += len(data)
        return data


class Counting(TransferService):
    """As in a volunteer, and what the test wants to know or to change in its process."""

    def __init__(self, endpoint: Endpoint, donor: Donor) -> None:
        super().__init__(endpoint, donor)
        self._counts: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def _open(self, donor: str) -> AsyncIterator[Stream]:
        async with super()._open(donor) as stream:
            reader: Any = CountingReader(stream.reader, self._counts, donor)
            yield Stream(reader, stream.writer)

    async def begin_count(self) -> None:
        self._counts.clear()

    async def received(self) -> Counter[str]:
        """From each donor, in bytes."""
        return self._counts

    async def end_warnings(self) -> None:
        logging.getLogger("dedloc_kit").warning(LAST)

    async def line(self, free: bool) -> None:
        self._donor.line_free.set() if free else self._donor.line_free.clear()

    async def keep(self, names: dict[str, Any]) -> None:
        self._donor.keep(average_of(**names))

    async def held(self) -> tuple[int, int]:
        """How many places are taken, and contents held."""
        return len(self._donor._places["state"]), len(self._donor._contents)


def state_of(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    large = torch.randn(NUMBERS, generator=generator)
    return [torch.tensor(seed), large[:3].half(), large.view(2, -1), large[:5] > 0, large[:7].double()]


def average_of(after: str, round: str, step: int, seed: int) -> RecentAverage:
    generator = torch.Generator().manual_seed(seed)
    tensors = [serialize_torch_tensor(torch.randn(100_000, generator=generator)) for _ in range(10)]
    parts = tuple(tensor.SerializeToString() for tensor in tensors)
    return RecentAverage(after, round, step, f"of {round}".encode(), parts)


def digest_of_state(tensors: Sequence[torch.Tensor]) -> str:
    described = b"".join(f"{t.dtype}{t.shape}".encode() + t.numpy().tobytes() for t in tensors)
    return hashlib.sha256(described).hexdigest()


def digest_of_average(average: RecentAverage) -> str:
    names = f"{average.after} {average.round} {average.step} {average.metadata!r}".encode()
    return hashlib.sha256(names + b"".join(average.parts)).hexdigest()


class Peer:
    """Does what the test says, one line after the other; a download goes on in the background."""

    def __init__(self, who: dict[str, Any]) -> None:
        protocol.SLOW_SECONDS, giving.LINGER_SECONDS = 3.0, 3.0
        places.STALL_SECONDS = 3.0
        protocol.BLOCK_BYTES = 2**20  # several for each stream
        torch.set_num_threads(1)
        self.faults, self.snapshots, self.warned = Faults(), 0, SimpleQueue[str]()
        Warnings(self.warned.put)
        self.be(step=0, round="", seed=0)
        folder = Path(who["folder"])
        config = PeerConfig(folder=folder, swarm_host="127.0.0.1", client_mode=who.get("client_mode", False))
        self.node = open_node(config, Identity(folder / "identity.key"), who["peers"])
        source = StateSource(self.current_state, lambda: self.state[0])

        @contextlib.asynccontextmanager
        async def make(owner: Owner) -> AsyncIterator[Sequence[object]]:
            p2p = await self.node.replicate_p2p()
            endpoint = Endpoint(p2p, RUN)
            service = Counting(endpoint, Donor(owner.query, source.layout))
            await endpoint.add(service)
            try:
                yield [service]
            finally:
                await p2p.shutdown()

        self.host = Host(make, source.newest)
        self.transfers = Transfers(self.host, RUN)
        answer({"peer": self.node.peer_id.to_base58(), "addresses": addresses_of(self.node)})

    def be(self, step: int, round: str, seed: int, run: str = RUN) -> None:
        # Both at once: somebody may be downloading.
        self.state = StateInfo(run_id=run, step=step, rounds=(round,) if round else ()), state_of(seed)

    @contextlib.contextmanager
    def current_state(self) -> Iterator[tuple[dict[str, Any], list[torch.Tensor]]]:
        self.snapshots += 1
        info, tensors = self.state
        receipt = Receipt(step=info.step, round=RECEIPT, time=1.0, seconds=1.0, record=bytes(RECEIPT_BYTES))
        yield {"info": info.model_dump(), "receipts": [receipt.model_dump()]}, tensors

    def received(self) -> Counter[str]:
        return self.host.call(Counting.received).result()

    def download(self, job: dict[str, Any]) -> None:
        progress, transfers = list[tuple[int, int]](), self.transfers
        self.host.call(Counting.begin_count).result()
        self.stop = threading.Event()

        def on_progress(received: int, total: int) -> None:
            if not progress:
                answer({"started": True})
            progress.append((received, total))

        if "after" in job:
            average = transfers.download_average(
                job["after"], job["donors"], check=read_part, max_bytes=10_000_000, stop=self.stop
            )
            result = None if average is None else {"digest": digest_of_average(average)}
        else:
            like = [torch.empty_like(tensor) for tensor in self.state[1]]
            question = partial(self.question, job["donors"][0]) if job["question"] else lambda _: True
            state = transfers.download_state(
                job["donors"], like, on_version=question, on_progress=on_progress, stop=self.stop
            )
            result = None if state is None else {"digest": digest_of_state(state[1]), "info": state[0]["info"]}
        received = self.received()
        counts = [received[donor] for donor in job["donors"]]
        self.host.call(Counting.end_warnings).result()
        warnings = list(iter(self.warned.get, LAST))
        answer({"result": result, "progress": progress, "warnings": warnings, "counts": counts})

    def question(self, donor: str, version: str) -> bool:
        """Ask when all has come and the other process would hand it over."""
        wait_until(lambda: self.received()[donor] >= 4 * NUMBERS, "the state does not come", 30.0)
        time.sleep(2 * REPORT_SECONDS)  # once it tries to
        answer = self.transfers.ask_for_sketch(donor, version, bytes(SEED_BYTES))
        with contextlib.suppress(TimeoutError):
            header = answer.result(10.0)
            return header is not None and header.answer == "here"
        return False

    def do(self, job: dict[str, Any]) -> None:
        match job.pop("do"):
            case "share":
                self.transfers.share(job["on"])
                answer({"shares": job["on"]})
            case "be":
                self.be(**job)
                answer({"digest": digest_of_state(self.state[1])})
            case "fault":
                self.faults.kind.value = job["kind"].encode()
                answer({"fault": job["kind"]})
            case "line":
                self.host.call(Counting.line, job["free"]).result()
                answer({"free": job["free"]})
            case "keep":
                self.host.call(Counting.keep, job).result()
                answer({"digest": digest_of_average(average_of(**job))})
            case "download":
                threading.Thread(target=self.download, args=[job]).start()
            case "stop":
                self.stop.set()
            case "tell":
                places, contents = self.host.call(Counting.held).result()
                answer({"snapshots": self.snapshots, "places": places, "contents": contents})


def answer(values: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def main() -> None:
    peer = Peer(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        peer.do(json.loads(line))


if __name__ == "__main__":
    main()
