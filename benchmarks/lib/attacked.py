"""A swarm of which some are hostile, played in one process: the package's records, weights, codec, error feedback and
reducers, without its network.

Whoever sends what cannot be read is left out of the round, as in a real one, and a round that cannot be completed moves
nothing.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from hivemind.proto import runtime_pb2
from torch import Tensor

from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.allreduce.encoding.codec import Codec, check, decode, read_part
from dedloc_kit.swarm.allreduce.encoding.compression import LARGEST, ChunkCompression
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding, Feedback
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.allreduce.reduction.reducer import MakeReducer
from dedloc_kit.swarm.averaging.pledges.pledges import Pledges
from dedloc_kit.swarm.directory.contributions import possible
from dedloc_kit.swarm.trust.weight import Weigh, claims_in

RUN = "attacks-0123456789abcdef"
REDUCERS = 4
"""Of the peers, the first ones."""


@dataclass(frozen=True, eq=False)
class Brought:
    """What a peer brings to a round.

    :ivar work: lines, where members are checked
    """

    vector: Tensor
    samples: int
    work: tuple[bytes, ...] = ()


class Averaged(NamedTuple):
    """What comes of a round."""

    values: Tensor
    """What all decode, float32 [size]."""
    contributions: dict[str, Contribution]
    """Of those who were not left out, by their numbers."""


class _Sent(NamedTuple):
    contribution: Contribution
    messages: list[runtime_pb2.Tensor]


class Swarm:
    """Peers that average; those who reduce take equal shares.

    :param global_batch: samples that claims are measured against
    :param pledges: of each peer, where members are checked
    """

    def __init__(
        self,
        layout: FlatLayout,
        codec: Codec,
        peers: int,
        global_batch: int,
        make_reducer: MakeReducer,
        weigh: Weigh,
        pledges: Sequence[Pledges] = (),
    ) -> None:
        self._layout, self._global_batch = layout, global_batch
        self._make_reducer, self._weigh, self.pledges = make_reducer, weigh, pledges
        self.codings = [Coding(codec, Feedback(layout.size), Feedback(layout.size)) for _ in range(peers)]
        shares = (1,) * REDUCERS + (0,) * (peers - REDUCERS)
        self._plan = Plan(tuple(map(str, range(peers))), layout, shares)

    @property
    def chunks(self) -> list[tuple[int, int, int]]:
        """Who reduces it, begin and end."""
        return [(owner, *chunk) for owner, chunk in zip(self._plan.first.makers, self._plan.chunks, strict=True)]

    def average(self, step: int, brought: Mapping[int, Brought]) -> Averaged | None:
        """None if the round fails. Runs in an event loop, as reducers do.

        :param brought: by each member; those who reduce are among them
        """
        group = hashlib.sha256(f"{step}".encode()).hexdigest()
        sent = {peer: self._sent(group, step, peer, each) for peer, each in brought.items()}
        counted = {peer: each for peer, each in sent.items() if each is not None}
        weights = self._weigh(claims_in({str(peer): each.contribution for peer, each in counted.items()}))
        average = torch.empty(self._layout.size)
        try:
            for peer in sent:
                self.codings[peer].averaged.begin(float(sum(weights.values())))
            for number, (reducer, begin, end) in enumerate(self.chunks):
                parts = {
                    str(peer): self._part(each, brought[peer].vector, peer, number) for peer, each in counted.items()
                }
                coding, out = self.codings[reducer], average[begin:end]
                coding.averaged.encode(self._averages(begin), self._reduced(parts, weights), begin, out)
        except ValueError:  # the average holds what is no number
            for peer in sent:
                self.codings[peer].sent.discard()
                self.codings[peer].averaged.discard()
            return None
        for peer in sent:
            self.codings[peer].sent.commit() if peer in counted else self.codings[peer].sent.discard()
            self.codings[peer].averaged.commit()
            if self.pledges and peer in counted:
                self.pledges[peer].counted()
        return Averaged(average, {str(peer): each.contribution for peer, each in counted.items()})

    def _reduced(self, parts: Mapping[str, Tensor], weights: Mapping[str, int]) -> Tensor:
        counted = {peer: float(weight) for peer, weight in weights.items() if weight}
        (size,) = {len(part) for part in parts.values()}
        reducer = self._make_reducer([torch.empty(size)])
        reducer.expect(counted)
        for peer, weight in counted.items():
            reducer.add(peer, 0, parts[peer], weight)
        return reducer.made(0)

    def _part(self, sent: _Sent, vector: Tensor, peer: int, number: int) -> Tensor:
        reducer, begin, end = self.chunks[number]
        if peer == reducer and not self.pledges:
            return self.codings[peer].sent.exact(vector[begin:end], begin)
        return decode(sent.messages[number], end - begin)

    def _sent(self, group: str, step: int, peer: int, brought: Brought) -> _Sent | None:
        """What a peer sends; none if those who reduce it cannot read it."""
        told, coding = self._contribution(step, peer, brought.samples), self.codings[peer]
        coding.sent.begin(float(told.samples))
        if not self.pledges:
            messages = self._encoded(coding, brought.vector)
            return None if messages is None else _Sent(told, messages)
        if not _can_be_sent(brought.vector):
            return None
        pledges = self.pledges[peer]
        pledged, sealed = pledges.seal(group, told, brought.work, self._plan, brought.vector, coding)
        assert sealed is not None, "everybody brings samples"
        return _Sent(pledged, list(map(read_part, sealed.parts)))

    def _encoded(self, coding: Coding, vector: Tensor) -> list[runtime_pb2.Tensor] | None:
        messages = []
        for _, begin, end in self.chunks:
            way = self._coding(begin)
            if _can_be_sent(vector[begin:end]):
                message = coding.sent.encode(way, vector[begin:end], begin)
            else:
                message = _forged(way, vector[begin:end])
            try:
                check(message, end - begin)
            except ValueError:
                return None
            messages.append(message)
        return messages

    def _coding(self, begin: int) -> ChunkCompression:
        return self.codings[0].of_gradients(begin, self._layout)

    def _averages(self, begin: int) -> ChunkCompression:
        return self.codings[0].of_averages(begin, self._layout)

    def _contribution(self, step: int, peer: int, samples: int) -> Contribution:
        claimed = Contribution(
            run_id=RUN,
            step=step,
            session="ab",
            samples=samples,
            session_samples=samples,
            loss=None,
            name=str(peer),
            time=1e9,
        )
        return possible(claimed, RUN, self._global_batch)


def _can_be_sent(values: Tensor) -> bool:
    return float(values.abs().amax()) <= LARGEST  # not so of what is no number


def _forged(way: ChunkCompression, values: Tensor) -> runtime_pb2.Tensor:
    """What no honest encoder makes: the message of such values, by its first two bytes, which are a block's scale, or a
    number in half precision."""
    message = way.compress(torch.ones_like(values))
    half = np.float32(values[0]).tobytes()[2:] if way.tag.startswith("block") else values[:1].half().numpy().tobytes()
    message.buffer = half + message.buffer[2:]
    return message
