"""One member of an all-reduce as a process of its own, for test_averaging.py; it may have a fault, by name.

Reads JSON lines on standard input: first who it is, then one line per round. Writes a JSON line per answer.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import torch
from hivemind.proto import runtime_pb2

from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.allreduce.link import Link
from dedloc_kit.swarm.allreduce.reduction.reducer import MeanReducer
from dedloc_kit.swarm.allreduce.round import Round
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.allreduce.wire import Kind, read_with_path, with_path
from dedloc_kit.swarm.averaging.service import Rules
from dedloc_kit.swarm.chain.branch import Branch
from dedloc_kit.swarm.gathering.messages import Attempt, Member
from dedloc_kit.swarm.network.connections import dial
from dedloc_kit.swarm.network.identity import Identity, Signer
from dedloc_kit.swarm.network.node import addresses_of
from dedloc_kit.swarm.network.service import Stream
from dedloc_kit.swarm.peer import exchange_of
from dedloc_kit.swarm.transfer.service import StateSource
from dedloc_kit.swarm.trust.pledge import Work
from dedloc_kit.swarm.trust.weight import claimed
from tests.swarm.harness import gate_of, open_node
from tests.tiny import tiny_run

SIZE = 2_000_000  # 8 MB: some parts for each member


class FaultyRound(Round):
    """Sends its first part and then dies or stalls, cuts its parts short or sends others than it has pledged, adds
    nothing and begins when the others have nearly finished, never goes to one member, or hangs up on one."""

    fault = ""

    def __init__(self, *arguments: Any) -> None:
        self._open = arguments[-1]
        super().__init__(*(*arguments[:-1], self._reach))
        self.last = max(index for index in range(len(self.plan.members)) if index != self.me)
        self.last_has_a_part = asyncio.Event()

    @contextlib.asynccontextmanager
    async def _reach(self, peer: str) -> AsyncIterator[Stream]:
        is_last = self.plan.members[self.last] == peer
        if self.fault == "follows late":
            await asyncio.sleep(2.0)
        if is_last and self.fault == "misses one":
            await asyncio.Event().wait()
        async with self._open(peer) as stream:
            hanging = asyncio.create_task(self._hang_up(stream)) if is_last else None
            yield stream
            if hanging is not None:
                hanging.cancel()

    async def _hang_up(self, stream: Stream) -> None:
        await self.last_has_a_part.wait()
        if self.fault == "hangs up on one":
            stream.close()

    def opened(self, member: int, link: Link) -> None:
        plain = link.send

        async def send(message: bytes) -> None:
            if message[0] != Kind.PART:
                await plain(message)
                return
            if self.fault == "truncates":
                part = runtime_pb2.Tensor.FromString(message[5:])
                part.buffer = part.buffer[:-4]
                message = message[:5] + part.SerializeToString()
            if self.fault == "breaks its pledge":
                path, encoded = read_with_path(message[5:])
                part = runtime_pb2.Tensor.FromString(encoded)
                part.buffer = bytes(len(part.buffer))
                message = message[:5] + with_path(path, part.SerializeToString())
            await plain(message)
            if member == self.last:
                self.last_has_a_part.set()

        link.send = send  # type: ignore[method-assign]
        super().opened(member, link)

    def heard(self, member: int, link: Link, kind: Kind, content: bytes) -> None:
        if kind == Kind.CAME and self.fault == "dies":
            os.killpg(0, signal.SIGKILL)
        if kind == Kind.CAME and self.fault == "stalls":
            FaultyRound.fault = ""  # who wakes it up wants to see it go on
            os.killpg(0, signal.SIGSTOP)
        super().heard(member, link, kind, content)


class LyingReducer(MeanReducer):
    """Counts what comes for much more than it is."""

    def add(self, sender: str, part: int, values: torch.Tensor, weight: float) -> None:
        super().add(sender, part, values, 1e6 * weight)


def main() -> None:
    who = json.loads(sys.stdin.readline())
    run = tiny_run(global_batch=10, averaging={"compression": who["compression"]}, trust={"checks": who["checks"]})
    FaultyRound.fault = who["fault"]
    reducer = LyingReducer if who["fault"] == "claims weight" else MeanReducer
    rules = Rules(claimed, reducer, FaultyRound)
    torch.set_num_threads(1)
    folder = Path(who["folder"])
    identity = Identity(folder / "identity.key")
    config = PeerConfig(folder=folder, swarm_host="127.0.0.1", client_mode=who["client_mode"])
    signer = Signer(identity)
    organizer = who["peers"][0].rpartition("/p2p/")[2] if who["peers"] else signer.peer
    node = open_node(config, identity, who["peers"], gate_of(identity, run.run_id, organizer))
    gradient = torch.full((SIZE,), float("nan") if who["fault"] == "sends nan" else who["value"])
    info = StateInfo(run_id=run.run_id, step=0, rounds=())
    source = StateSource(lambda: contextlib.nullcontext(({}, [])), lambda: info)
    exchange = exchange_of(node, signer, run, FlatLayout.of([gradient]), source, folder, rules)
    averager = exchange.averager
    with averager.vector.held() as flat:
        flat.copy_(gradient)
    host = exchange.host
    if signer.peer == organizer:
        head = host.call(Branch.begin, 0, "", "7" * 64).result()
    else:
        head = host.call(Branch.load, bytes.fromhex(who["anchor"])).result()
    answer({"peer": signer.peer, "addresses": addresses_of(node), "anchor": head.anchor.hex()})
    work = (Work(0, None, 0, who["samples"], 0).content,) if who["samples"] and who["checks"] == "on" else ()
    for line in sys.stdin:
        job = json.loads(line)
        mine = Contribution(
            run_id=run.run_id,
            step=head.instance.step,
            session="ab",
            samples=who["samples"],
            session_samples=who["samples"],
            loss=1.0,
            name="",
            time=time.time(),
        )
        members = tuple(Member(peer=peer, client=client) for peer, client in sorted(job["members"].items()))
        attempt = Attempt(nonce=job["nonce"], previous=head.instance.previous, members=members)
        dial(node, {peer: job["addresses"][peer] for peer in job["addresses"] if peer != signer.peer}).result(30.0)
        began = time.monotonic()
        group = averager.stand(attempt)
        if who["fault"] == "calls off the group":
            averager.call_off(group)
        else:
            averager.begin(group, mine, Patience(job["patience"], 2 * job["patience"]), 60.0, work)
        outcome = group.result()
        if outcome.commit is not None:
            head = host.call(Branch.take, [outcome.commit]).result()
        with averager.vector.held() as tensor:
            digest = hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
            counted = [job["all"][peer] for peer in outcome.contributions if peer in job["all"]]
            samples = sum(each[0] for each in counted)
            mean = sum(each[0] * each[1] for each in counted) / samples if samples else 0.0
            right = float((tensor / mean - 1.0).abs().lt(job["tolerance"]).float().mean())
            unchanged = bool((tensor == who["value"]).all())
        seconds = time.monotonic() - began
        answer(
            {
                "outcome": outcome.outcome,
                "detail": outcome.detail,
                "counts": signer.peer in outcome.contributions,
                "members": len(outcome.contributions),
                "culprits": sorted(outcome.culprits),
                "named": sorted(outcome.named),
                "seconds": seconds,
                "digest": digest,
                "right": right,
                "unchanged": unchanged,
            }
        )
    exchange.host.stop()
    node.shutdown()


def answer(values: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
