"""One all-reduce: everyone in the group ends with the same bits, or nobody uses the result.

hivemind sends each sender its own difference to the average and goes on without peers that failed, so that peers
drift apart and may apply half an average. Here a reducer sends every member the same average, and any missing part
fails the round for whoever misses it; the optimizer then keeps its samples and tries again.
"""

import asyncio
import math
import statistics
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from hivemind import DHT, DecentralizedAverager
from hivemind.averaging.allreduce import AllreduceException, AllReduceRunner, AveragingMode
from hivemind.averaging.control import StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.load_balancing import load_balance_peers
from hivemind.averaging.partition import BannedException
from hivemind.compression import (
    CompressionBase,
    CompressionInfo,
    Float16Compression,
    NoCompression,
    deserialize_torch_tensor,
)
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils import amap_in_executor, enter_asynchronously, get_dht_time

from dedloc_kit.records import Contribution
from dedloc_kit.run import RunConfig
from dedloc_kit.swarm.node import kept_alive
from dedloc_kit.swarm.signing import Signer

COMPRESSIONS: dict[str, type[CompressionBase]] = {"none": NoCompression, "float16": Float16Compression}

# A member that sends nothing for so long is taken for dead. It must outlast a busy machine's pauses.
SENDER_TIMEOUT = 10.0
REDUCER_TIMEOUT = 20.0

State = tuple[dict[str, Any], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Round:
    """What became of one all-reduce, as this peer saw it."""

    outcome: Literal["complete", "refused", "poisoned", "failed"]
    """`refused`: the group is too small to take a global step, so it did not average; all members see the same.
    `poisoned`: complete, but the average is not finite; all members see the same and drop it."""
    id: str = ""
    contributions: dict[str, Contribution] = field(default_factory=dict)
    """Of every member of the group, by peer id; signatures are checked."""
    signed: tuple[bytes, ...] = ()
    """The same as their authors signed them."""
    detail: str = ""


class GradientAverager(DecentralizedAverager):
    """Averages gradients weighted by samples, and hands the training state to newcomers.

    :param gradients: this peer's mean gradients, float32 on the CPU; a complete round replaces them by the average
    :param current_state: called in this process when a newcomer asks for the state (metadata, CPU tensors)
    """

    def __init__(
        self,
        gradients: Sequence[torch.Tensor],
        *,
        dht: DHT,
        signer: Signer,
        run: RunConfig,
        current_state: Callable[[], State],
    ) -> None:
        self._signer, self._run_id, self._global_batch = signer, run.run_id, run.global_batch
        self._current_state = current_state
        self._round_timeout = 60.0
        self._next_step = 0
        self._preparations: deque[dict[str, Any]] = deque()
        super().__init__(
            gradients,
            dht,
            start=True,
            prefix=run.run_id,
            client_mode=dht.client_mode,
            compression=COMPRESSIONS[run.averaging.compression](),
            allow_state_sharing=False,
            min_matchmaking_time=4.0,
            request_timeout=3.0,
            sender_timeout=SENDER_TIMEOUT,
            reducer_timeout=REDUCER_TIMEOUT,
            next_chunk_timeout=REDUCER_TIMEOUT,
            declare_state_period=10.0,
            shutdown_timeout=3.0,
        )

    def begin_round(
        self, mine: Contribution, *, after: str, group_size: int, window: float, timeout: float
    ) -> StepControl:
        """Look for the group of this global step and average with it, in the background.

        :param after: the round that led to this peer's state; only peers with the same state can meet
        :param group_size: how many peers are expected; the group starts as soon as they are there, and does nothing
            if it holds no more than half of them: two groups must never take the same step apart
        :param window: seconds to wait for missing peers before the group starts without them
        :param timeout: seconds for the all-reduce itself
        :returns: a future whose result is a Round
        """
        preparation = {"step": mine.step, "after": after, "group_size": group_size, "timeout": timeout}
        self._outer_pipe.send(("_prepare", [], preparation))
        # The earliest deadline leads. Clients cannot lead, and a leader refuses whoever would not wait as long as it
        # does, so clients are willing to wait longer.
        patience = window * (2 if self.client_mode else 1)
        control: StepControl = self.step(
            gather=[group_size, self._signer.sign(mine)],
            scheduled_time=get_dht_time() + patience,
            weight=float(mine.samples),
            timeout=2 * window + 10.0,
            allow_retries=False,
            wait=False,
        )
        return control

    def get_current_state(self) -> tuple[dict[str, Any], Sequence[torch.Tensor], None]:
        """What a newcomer downloads: the training state instead of the gradient buffers it does not need."""
        return (*self._current_state(), None)

    # What follows runs in the averager's own process.

    _load_state_from_peers = kept_alive(DecentralizedAverager._load_state_from_peers)

    async def _prepare(self, **preparation: Any) -> None:
        """What the next `_step` is to do; hivemind's step has no room for it."""
        self._preparations.append(preparation)

    @kept_alive
    async def _step(self, **kwargs: Any) -> None:
        """One round, prepared once the one before is over: a cancelled search must not go on under the new key."""
        preparation = self._preparations.popleft()
        async with self._matchmaking.lock_looking_for_group:
            pass
        self._set_up(**preparation)
        await super()._step(**kwargs)

    def _set_up(self, step: int, after: str, group_size: int, timeout: float) -> None:
        # Peers in different states look under different keys, so they can never average together.
        self._matchmaking.group_key_manager.group_bits = f"{step:b}{int(after[:8] or '0', 16):032b}"
        # hivemind waits its whole window unless the group has reached its target size.
        self._matchmaking.target_group_size = max(2, group_size)
        self._next_step, self._round_timeout = step, timeout

    async def _aggregate_with_group(self, group_info: GroupInfo, min_vector_size: int, **kwargs: Any) -> Round:
        """Average with this group; every way to fail becomes a Round, so the optimizer decides in one place."""
        round_id = group_info.group_id.hex()
        contributions: dict[str, Contribution] = {}
        try:
            bandwidths, contributions, signed, expected = self._members(group_info)
            # All members see the same numbers, so all of them refuse alike and go back to accumulating.
            samples = sum(contribution.samples for contribution in contributions.values())
            if samples < self._global_batch:
                return Round("refused", round_id, contributions, detail=f"{samples} of {self._global_batch} samples")
            if 2 * len(contributions) <= expected:
                return Round("refused", round_id, contributions, detail=f"{len(contributions)} of {expected:g} peers")
            loop = asyncio.get_running_loop()
            fractions = await loop.run_in_executor(
                None, load_balance_peers, self.total_size, bandwidths, min_vector_size
            )
            weights = [float(contributions[peer.to_base58()].samples) for peer in group_info.peer_ids]
            async with enter_asynchronously(self.get_tensors()) as tensors:
                averages = await asyncio.wait_for(
                    self._all_reduce(tensors, group_info, weights, peer_fractions=fractions, **kwargs),
                    self._round_timeout,
                )
                if not all(bool(average.isfinite().all()) for average in averages):
                    return Round("poisoned", round_id, contributions, detail="the average is not finite")
                for tensor, average in zip(tensors, averages, strict=True):
                    tensor.copy_(average)
            return Round("complete", round_id, contributions, tuple(signed))
        except Exception as error:
            return Round("failed", round_id, contributions, detail=repr(error)[:200])

    def _members(self, group: GroupInfo) -> tuple[list[float | None], dict[str, Contribution], list[bytes], float]:
        """Bandwidths (None: unknown, 0: client), contributions, the same signed, and how many peers there should be.

        That number is the median of what the members expect, so that one of them cannot block the others.
        Raises ValueError if a member lies.
        """
        bandwidths: list[float | None] = []
        contributions = {}
        expected, receipts = [], []
        for peer_id, gathered in zip(group.peer_ids, group.gathered, strict=True):
            peer = peer_id.to_base58()
            bandwidth, mode, own = self.serializer.loads(gathered)
            group_size, signed = self.serializer.loads(own)
            if bandwidth is not None and not (isinstance(bandwidth, float) and 0 <= bandwidth < math.inf):
                raise ValueError(f"{peer} claims an impossible bandwidth")
            author, contribution = self._signer.open(Contribution, signed)
            if author != peer or contribution.run_id != self._run_id or contribution.step != self._next_step:
                raise ValueError(f"{peer} brought a contribution that is not its own or not for this step")
            if not isinstance(group_size, int):
                raise ValueError(f"{peer} does not say how many peers it expects")
            expected.append(group_size)
            receipts.append(signed)
            bandwidths.append(0.0 if AveragingMode(mode) == AveragingMode.CLIENT else bandwidth)
            contributions[peer] = contribution
        return bandwidths, contributions, receipts, statistics.median(expected)

    async def _all_reduce(
        self, tensors: Sequence[torch.Tensor], group: GroupInfo, weights: list[float], **kwargs: Any
    ) -> list[torch.Tensor]:
        kwargs["weight"] = weights[group.peer_ids.index(self.peer_id)]
        runner = ExactAllReduce(
            p2p=self._p2p,
            servicer_type=type(self),
            prefix=self.prefix,
            tensors=tensors,
            group_id=group.group_id,
            ordered_peer_ids=group.peer_ids,
            weights=weights,
            **kwargs,
        )
        self._running_groups[group.group_id].set_result(runner)
        return await runner.averages()


class ExactAllReduce(AllReduceRunner):
    """Butterfly all-reduce in which every member receives the same average, all of it or an error.

    :param weights: samples of each member, from their signed contributions: a sender's own claim is not believed
    """

    def __init__(self, *, weights: list[float], compression: CompressionBase, **kwargs: Any) -> None:
        super().__init__(compression=compression, **kwargs)
        self._compression = compression
        self._weights = dict(zip(self.ordered_peer_ids, weights, strict=True))
        self._sent: dict[int, asyncio.Future[tuple[runtime_pb2.Tensor, torch.Tensor]]] = {}
        self._failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def averages(self) -> list[torch.Tensor]:
        """The averaged tensors; raises AllreduceException if any part of them is missing or incomplete."""
        collecting = asyncio.create_task(self._collect())
        waiting: set[asyncio.Future[Any]] = {collecting, self._failure}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            collecting.cancel()  # closes every stream of this round, so that the others need not wait for a timeout
            await asyncio.wait({collecting})
            raise AllreduceException(self._failure.result())
        return await collecting

    async def _collect(self) -> list[torch.Tensor]:
        return [average async for average in self]

    def _fail(self, reason: str) -> None:
        if not self._failure.done():
            self._failure.set_result(reason)

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        if peer_id != self.peer_id:
            try:
                await super()._communicate_with_peer(peer_id)
            except Exception as error:
                self._fail(f"{peer_id} did not deliver its part ({error!r:.80})")
                raise
            return
        mine = self.ordered_peer_ids.index(self.peer_id)
        sender = self.sender_peer_ids.index(self.peer_id)
        for index, part in enumerate(self.parts_for_local_averaging):
            average = await self.tensor_part_reducer.accumulate_part(sender, index, part, weight=self.weight)
            _, restored = await self._encoded(index, average)
            self.tensor_part_container.register_processed_part(mine, index, restored)

    async def _accumulate_parts_streaming(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], sender_index: int
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        sender = self.sender_peer_ids[sender_index]
        index = 0
        try:
            async for part in amap_in_executor(
                lambda message: deserialize_torch_tensor(message.tensor_part),
                stream,
                max_prefetch=self.tensor_part_container.prefetch,
            ):
                try:
                    average = await self.tensor_part_reducer.accumulate_part(
                        sender_index, index, part, weight=self._weights[sender]
                    )
                except BannedException:
                    break
                serialized, _ = await self._encoded(index, average)
                index += 1
                yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=serialized)
        finally:
            if index != self.tensor_part_reducer.num_parts:
                await self._ban_sender(sender)

    async def _encoded(self, index: int, average: torch.Tensor) -> tuple[runtime_pb2.Tensor, torch.Tensor]:
        """The average of a part as it travels and as everyone, this peer included, reads it; made once."""
        if index not in self._sent:
            self._sent[index] = asyncio.get_running_loop().run_in_executor(None, self._encode, average)
        # Several streams wait for it: one that breaks must not cancel it for the others.
        return await asyncio.shield(self._sent[index])

    def _encode(self, average: torch.Tensor) -> tuple[runtime_pb2.Tensor, torch.Tensor]:
        serialized = self._compression.compress(average, CompressionInfo.from_tensor(average))
        return serialized, deserialize_torch_tensor(serialized)

    async def _ban_sender(self, peer_id: PeerID) -> None:
        # Once every part of ours is summed up a sender can do no more harm, only fail to fetch its result.
        if not self.tensor_part_reducer.finished.is_set():
            self._fail(f"{peer_id} stopped sending")
        await super()._ban_sender(peer_id)
