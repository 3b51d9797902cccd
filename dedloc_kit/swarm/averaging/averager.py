"""Finding a group and averaging gradients with it, in a process of its own beside the training.

A round has two halves, so that nobody waits for the slow one: the group gathers while the batch still fills up
(hivemind's matchmaking), and begins when its members say so. Everyone ends with the same bits, or nobody uses the
result: hivemind goes on without members that failed, so that peers drift apart and may apply half an average.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from typing import Any, AsyncIterator  # noqa: UP035 (hivemind finds streams by typing's name)

import torch
from hivemind import DHT, DecentralizedAverager
from hivemind.averaging.allreduce import AllreduceException
from hivemind.averaging.control import StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.load_balancing import load_balance_peers
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MPFuture, enter_asynchronously, get_dht_time
from hivemind.utils.asyncio import achain, as_aiter

from dedloc_kit.records import Contribution, Notice, StateInfo
from dedloc_kit.run import RunConfig
from dedloc_kit.swarm.averaging.allreduce import ExactAllReduce, Refused, gave_up, told
from dedloc_kit.swarm.averaging.compression import codec_of
from dedloc_kit.swarm.averaging.feedback import Feedback
from dedloc_kit.swarm.averaging.group import Begin, Gathering, Nonsense, Round, Search, read_members, sorted_group
from dedloc_kit.swarm.averaging.grouping import Grouping, OneGroup
from dedloc_kit.swarm.averaging.handshake import Introductions
from dedloc_kit.swarm.averaging.matchmaking import MATCHMAKING_TIME, REQUEST_TIMEOUT, Matchmaking
from dedloc_kit.swarm.averaging.reducer import MeanReducer, Reducer
from dedloc_kit.swarm.directory.contributions import possible
from dedloc_kit.swarm.network.gate import Gate
from dedloc_kit.swarm.network.node import kept_alive
from dedloc_kit.swarm.network.signing import Signer
from dedloc_kit.swarm.transfer.contents import RecentAverage
from dedloc_kit.swarm.transfer.service import CurrentState, StateSharing
from dedloc_kit.training.flat import FlatLayout

_search: ContextVar[Search] = ContextVar("search")


class GradientAverager(StateSharing):
    """Averages gradients weighted by samples, and hands the training state to newcomers.

    `get_tensors()` gives one flat vector: this peer's mean gradient (FlatLayout), which a complete round replaces by
    the average.

    :param grouping: who averages together; everybody with the same state if none is given
    :param make_reducer: what becomes of the members' values: for one round, given room for each part
    :param current_state: entered in this process when a newcomer asks for the state (metadata, CPU tensors)
    """

    _matchmaking: Matchmaking

    def __init__(
        self,
        layout: FlatLayout,
        *,
        dht: DHT,
        signer: Signer,
        run: RunConfig,
        current_state: CurrentState,
        current_info: Callable[[], StateInfo],
        grouping: Grouping | None = None,
        make_reducer: Callable[[Sequence[torch.Tensor]], Reducer] = MeanReducer,
    ) -> None:
        self.grouping = grouping or OneGroup(run.global_batch)
        self._make_reducer = make_reducer
        self._signer, self._run_id, self._global_batch = signer, run.run_id, run.global_batch
        self._layout, self._codec = layout, codec_of(run.averaging.compression)
        self._sent, self._averaged = Feedback(layout.size), Feedback(layout.size)
        # Kept from round to round: memory that is new each time costs more than the arithmetic.
        self._average, self._sums = torch.empty(layout.size), torch.empty(layout.size)
        self._numbers = itertools.count()
        self._searches: deque[Search] = deque()
        self._begins: dict[int, asyncio.Future[Begin | None]] = {}
        self._search_began = 0.0
        self._waiting: dict[bytes, Search] = {}
        self._over: dict[bytes, list[averaging_pb2.AveragingData]] = {}  # the last group, and what late members hear
        super().__init__(
            [torch.zeros(layout.size)],
            dht,
            start=True,
            prefix=run.run_id,
            client_mode=dht.client_mode,
            current_state=current_state,
            current_info=current_info,
            min_matchmaking_time=MATCHMAKING_TIME,
            request_timeout=REQUEST_TIMEOUT,
            shutdown_timeout=3.0,
        )

    def gather(
        self,
        *,
        step: int,
        after: str,
        leaders: Sequence[str],
        expected: Collection[str],
        window: float,
        unwelcome: Collection[str] = (),
    ) -> Gathering:
        """Look for the group that will take this global step; it averages when its members `begin`.

        :param after: the round that led to this peer's state; only peers with the same state can meet
        :param leaders: whom to ask to lead this peer, best first; without any it leads itself, unless it is a client
        :param expected: the group stands as soon as these others are there, and does nothing if it holds no more than
            half of them all: two groups must never take the same step apart
        :param window: seconds to wait for missing peers before the group stands without them
        :param unwelcome: peers that this one would not lead
        """
        search = Search(
            next(self._numbers),
            step,
            after,
            tuple(leaders),
            frozenset(expected),
            frozenset(unwelcome),
            window,
            MPFuture(),
            MPFuture(),
        )
        self._outer_pipe.send(("_prepare", [], {"search": search}))
        control: StepControl = self.step(
            gather=[1 + len(search.expected)],
            scheduled_time=get_dht_time() + window,
            timeout=2 * window
            + 10.0,  # windows differ: whoever waits for a leader has to wait as long as that one does
            allow_retries=False,
            wait=False,
        )
        return Gathering(control, search)

    def begin(
        self, gathering: Gathering, mine: Contribution, *, patience: float, start_patience: float, limit: float
    ) -> None:
        """Average with the group as soon as it stands; the result of `gathering.control` is a Round.

        :param patience: seconds of silence after which a member counts as gone
        :param start_patience: the same until it has begun
        :param limit: seconds for the whole all-reduce
        """
        begin = Begin(self._signer.sign(mine), patience, start_patience, limit)
        self._outer_pipe.send(("_begin", [], {"number": gathering.search.number, "begin": begin}))

    def call_off(self, gathering: Gathering) -> None:
        """Leave the group, unless the round is over."""
        if gathering.searching():
            # hivemind's `cancel` wakes the search before it marks the step as cancelled; one that looks in between goes
            # on to its end, and the next round waits for it. So the mark comes first.
            MPFuture.cancel(gathering.control)
            gathering.control.cancel()
        self._outer_pipe.send(("_begin", [], {"number": gathering.search.number, "begin": None}))

    def follow(self, gate: Gate) -> None:
        """Who may take part has changed, as this process knows."""
        self._outer_pipe.send(("_follow", [], {"token": gate.token, "notice": gate.notice}))

    def forget_feedback(self) -> None:
        """Another state was loaded: what compression lost on the way to the old one is of no use."""
        self._outer_pipe.send(("_forget_feedback", [], {}))

    # What follows runs in the averager's own process.

    async def _prepare(self, search: Search) -> None:
        if not isinstance(self._matchmaking, Matchmaking):
            self._matchmaking = Matchmaking(
                self._p2p, self.schema_hash, self.dht, client_mode=self.client_mode, **self.matchmaking_kwargs
            )
        self._searches.append(search)
        self._begins[search.number] = asyncio.get_running_loop().create_future()
        await self.serve_also_as_client()  # last: `_step` is already on its way and needs the search

    async def _follow(self, token: bytes, notice: Notice) -> None:
        gate: Gate = self.dht.gate
        gate.follow(token, notice)

    async def _begin(self, number: int, begin: Begin | None) -> None:
        waiting = self._begins.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(begin)

    async def _forget_feedback(self) -> None:
        self._sent.reset()
        self._averaged.reset()

    @kept_alive
    async def _step(self, **kwargs: Any) -> None:
        """One round, prepared once the search before is over: a cancelled one must not go on under the new key."""
        search = self._searches.popleft()
        try:
            async with self._matchmaking.lock_looking_for_group:
                pass
            _search.set(search)
            # Peers in different states look under different keys, so they can never average together.
            bits = f"{search.step:b}{int(search.after[:8] or '0', 16):032b}"
            self._matchmaking.prepare(bits, search.leaders, search.expected, search.unwelcome, search.window)
            self._search_began = time.monotonic()
            await DecentralizedAverager._step(self, **kwargs)
        finally:
            del self._begins[search.number]

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """As hivemind's; who begins before us also tells us that it is time."""
        first = await anext(stream)
        search = self._waiting.get(first.group_id)
        if search is not None and not search.called.done():
            search.called.set_result(None)
        if first.group_id not in self._running_groups:
            await self._pending_groups_registered.wait()
        if first.group_id in self._running_groups:
            # hivemind awaits it bare: a member that breaks off before we begin would cancel it for all others.
            await asyncio.wait({self._running_groups[first.group_id]})
        if first.group_id in self._over:
            for message in self._over[first.group_id]:
                yield message
        else:
            async for message in super().rpc_aggregate_part(achain(as_aiter(first), stream), context):
                yield message
        # Who gives a round up says whose fault it is; if that is lost with the stream, it seems to be its own (see
        # ExactAllReduce: the other side closes).
        await asyncio.sleep(REQUEST_TIMEOUT)

    async def _aggregate_with_group(self, group_info: GroupInfo, min_vector_size: int, **_: Any) -> Round:
        """Average with this group; every way to fail becomes a Round, so the optimizer decides in one place."""
        search, round_id, group_info = _search.get(), group_info.group_id.hex(), sorted_group(group_info)
        runner: ExactAllReduce | None = None
        culprits = named = frozenset[str]()
        known: list[averaging_pb2.AveragingData] = []
        try:
            bandwidths, expected = read_members(group_info)
            seconds = time.monotonic() - self._search_began
            search.members.set_result((seconds, [peer.to_base58() for peer in group_info.peer_ids]))
            if not self.grouping.enough_members(len(bandwidths), expected):
                return Round("refused", round_id, detail=f"{len(bandwidths)} of {expected:g} peers")
            self._waiting[group_info.group_id] = search
            begin = await self._begins[search.number]
            if begin is None:
                return Round("failed", detail="called off")
            began = time.monotonic()
            self._line_free.clear()
            loop = asyncio.get_running_loop()
            shares = await loop.run_in_executor(None, load_balance_peers, self.total_size, bandwidths, min_vector_size)

            def introduced(peer: PeerID, introduction: bytes) -> Contribution:
                return self._introduced(peer, introduction, search.step)

            async with enter_asynchronously(self.get_tensors()) as (flat,):
                weight = float(introduced(self.peer_id, begin.introduction).samples)
                self._sent.begin(weight)
                runner = ExactAllReduce(
                    p2p=self._p2p,
                    servicer_type=type(self),
                    prefix=self.prefix,
                    group_id=group_info.group_id,
                    ordered_peer_ids=group_info.peer_ids,
                    weight=weight,
                    flat=flat,
                    average=self._average,
                    sums=self._sums,
                    layout=self._layout,
                    shares=shares,
                    introduction=begin.introduction,
                    introduced=introduced,
                    grouping=self.grouping,
                    make_reducer=self._make_reducer,
                    codec=self._codec,
                    sent=self._sent,
                    averaged=self._averaged,
                    patience=begin.patience,
                    start_patience=begin.start_patience,
                )
                self._running_groups[group_info.group_id].set_result(runner)
                await asyncio.wait_for(runner.complete(), begin.limit)
                flat.copy_(self._average)
            group = await runner.introductions()
            self._sent.commit()
            self._averaged.commit()
            self._keep(search, round_id, group, runner)
            return Round(
                "complete",
                round_id,
                group.contributions,
                group.signed,
                seconds=time.monotonic() - began,
                longest_silence=runner.longest_silence,
                upload_rate=runner.upload_rate,
            )
        except Refused as refusal:
            assert runner is not None
            self._forget_round()
            group = await runner.introductions()
            known.append(told(group))  # who comes late sees the same
            return Round("refused", round_id, group.contributions, detail=str(refusal))
        except Exception as error:
            self._forget_round()
            if runner is not None:
                culprits, named = frozenset(runner.culprits), frozenset(runner.named)
            elif isinstance(error, Nonsense):
                culprits = frozenset([error.peer])
            return Round("failed", round_id, detail=str(error)[:200] or repr(error), culprits=culprits, named=named)
        finally:
            self._line_free.set()
            self._waiting.pop(group_info.group_id, None)
            self._over = {group_info.group_id: [*known, gave_up(self.peer_id, culprits, named)]}
            running = self._running_groups.get(group_info.group_id)
            if runner is None and running is not None:  # members that began already wait for us
                running.set_exception(AllreduceException("called off"))
                running.exception()

    def _introduced(self, peer: PeerID, introduction: bytes, step: int) -> Contribution:
        """What a member contributes; raises ValueError unless it is its own, for this step and believable."""
        author, contribution = self._signer.open(Contribution, introduction)
        if (author, contribution.step) != (peer.to_base58(), step):
            raise ValueError(f"{peer} brought a contribution that is not its own or not for this step")
        return possible(contribution, self._run_id, self._global_batch)

    def _keep(self, search: Search, round_id: str, group: Introductions, runner: ExactAllReduce) -> None:
        """Hold the average for members that missed it."""
        parts = tuple(message for message in runner.messages if message is not None)
        metadata = self.serializer.dumps(list(group.signed))
        self.keep(RecentAverage(after=search.after, round=round_id, step=search.step, metadata=metadata, parts=parts))

    def _forget_round(self) -> None:
        """After a failure: a member that had stalled may still send its parts; they must not get into the next round,
        so the memory of this one is not used again."""
        self._average, self._sums = torch.empty(self._layout.size), torch.empty(self._layout.size)
        self._sent.discard()
        self._averaged.discard()
