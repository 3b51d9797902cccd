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
from hivemind.averaging.control import AveragingStage
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2

from dedloc_kit.records import Contribution, StateInfo
from dedloc_kit.run import PeerConfig
from dedloc_kit.swarm.averaging import allreduce
from dedloc_kit.swarm.averaging import averager as averaging
from dedloc_kit.swarm.averaging.group import Gathering, Round
from dedloc_kit.swarm.network.bootstrap import addresses_of, open_node
from dedloc_kit.swarm.network.identity import Identity
from dedloc_kit.swarm.network.signing import Signer
from dedloc_kit.training.flat import FlatLayout
from tests.swarm.harness import wait_until
from tests.tiny import tiny_run

SIZE = 2_000_000  # 8 MB: some parts for each member


class FaultyAllReduce(allreduce.ExactAllReduce):
    """Sends its first part and then dies or stalls, cuts its parts short, claims a weight that it does not have, adds
    nothing and begins when the others have nearly finished, never goes to one member, or hangs up on one."""

    fault = ""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.fault == "claims weight":
            self.weight *= 1e6
        self.last = [peer for peer in self.ordered_peer_ids if peer != self.peer_id][-1]
        self.last_has_a_part = asyncio.Event()

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        if self.fault == "follows late":
            await asyncio.sleep(2.0)
        if peer_id == self.last:
            if self.fault == "hangs up on one":
                exchange = asyncio.create_task(super()._communicate_with_peer(peer_id))
                await self.last_has_a_part.wait()
                exchange.cancel()
            if self.fault in ("misses one", "hangs up on one"):
                await asyncio.Event().wait()
        await super()._communicate_with_peer(peer_id)

    async def _generate_input_for_peer(self, peer_index: int) -> AsyncIterator[averaging_pb2.AveragingData]:
        async for message in super()._generate_input_for_peer(peer_index):
            if self.fault == "truncates" and not message.group_id:  # a part, not the introduction
                message.tensor_part.buffer = message.tensor_part.buffer[:-4]
            yield message
            if not message.group_id and self.ordered_peer_ids[peer_index] == self.last:
                self.last_has_a_part.set()
            if self.fault == "dies":
                os.killpg(0, signal.SIGKILL)
            if self.fault == "stalls":
                FaultyAllReduce.fault = ""  # who wakes it up wants to see it go on
                os.killpg(0, signal.SIGSTOP)


def main() -> None:
    who = json.loads(sys.stdin.readline())
    run = tiny_run(global_batch=10, averaging={"compression": who["compression"]})
    FaultyAllReduce.fault = who["fault"]
    averaging.ExactAllReduce = FaultyAllReduce  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    folder = Path(who["folder"])
    identity = Identity(folder / "identity.key")
    config = PeerConfig(folder=folder, host="127.0.0.1", client_mode=who["client_mode"])
    node = open_node(config, identity, who["peers"])
    signer = Signer(identity)
    gradient = torch.full((SIZE,), float("nan") if who["fault"] == "sends nan" else who["value"])
    averager = averaging.GradientAverager(
        FlatLayout.of([gradient]),
        dht=node,
        signer=signer,
        run=run,
        current_state=lambda: contextlib.nullcontext(({}, [])),
        current_info=lambda: StateInfo(run_id=run.run_id, step=0, rounds=()),
    )
    with averager.get_tensors() as (flat,):
        flat.copy_(gradient)
    answer({"peer": signer.peer, "addresses": addresses_of(node)})
    for line in sys.stdin:
        job = json.loads(line)
        mine = Contribution(
            run_id=run.run_id,
            step=job["step"],
            session="ab",
            samples=who["samples"],
            session_samples=who["samples"],
            loss=1.0,
            name="",
            time=time.time(),
        )
        search = {"leaders": job["leaders"], "expected": job["expected_peers"], "window": job["window"]}
        began = time.monotonic()
        if who["fault"] == "calls off haltingly":
            call_off_haltingly(averager, averager.gather(step=job["step"] + 100, after="", **search))
        gathering = averager.gather(step=job["step"], after="", **search)
        if who["fault"] == "calls off the group":
            wait_until(lambda g=gathering: g.gathered() is not None, "there is no group")  # type: ignore[misc]
            averager.call_off(gathering)
        else:
            averager.begin(gathering, mine, patience=job["patience"], start_patience=2 * job["patience"], limit=60.0)
        try:
            outcome = gathering.control.result()
        except Exception as error:  # as hivemind reports that there is no group
            outcome = Round("failed", detail=str(error))
        with averager.get_tensors() as (tensor,):
            digest = hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
            right = float((tensor / job["expected"] - 1.0).abs().lt(job["tolerance"]).float().mean())
            unchanged = bool((tensor == who["value"]).all())
        seconds = time.monotonic() - began
        answer(
            {
                "outcome": outcome.outcome,
                "detail": outcome.detail,
                "members": len(outcome.contributions),
                "culprits": sorted(outcome.culprits),
                "named": sorted(outcome.named),
                "seconds": seconds,
                "digest": digest,
                "right": right,
                "unchanged": unchanged,
            }
        )
    averager.shutdown()
    node.shutdown()


def call_off_haltingly(averager: averaging.GradientAverager, gathering: Gathering) -> None:
    """As on a busy machine: whoever the call goes to runs before the caller does again."""
    wait_until(lambda: gathering.control.stage == AveragingStage.LOOKING_FOR_GROUP, "the search does not begin")
    control = gathering.control
    told = control._cancel.set_result

    def tell(result: None) -> None:
        told(result)
        time.sleep(1.0)

    control._cancel.set_result = tell
    averager.call_off(gathering)


def answer(values: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
