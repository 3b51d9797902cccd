"""A swarm of which some are hostile, played in one process: the package's records, weights, codec, error feedback and
reducers, without its network.

Whoever sends what cannot be read is left out of the round, as in a real one, and a round that cannot be completed moves
nothing.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from hivemind.proto import runtime_pb2
from torch import Tensor

from dedloc_kit.records import Contribution
from dedloc_kit.swarm.averaging.compression import LARGEST, ChunkCompression, Codec, check, decode
from dedloc_kit.swarm.averaging.feedback import Coding, Feedback
from dedloc_kit.swarm.averaging.reducer import MakeReducer
from dedloc_kit.swarm.directory.contributions import possible
from dedloc_kit.swarm.trust.weight import Weigh
from dedloc_kit.training.flat import FlatLayout

RUN = "attacks-0123456789abcdef"
REDUCERS = 4
"""Of the peers, the first ones: so chunks of a tiny model are about as long as those of a real one."""


class Swarm:
    """Peers that average; those who reduce take equal shares.

    :param global_batch: samples that claims are measured against
    """

    def __init__(
        self,
        layout: FlatLayout,
        codec: Codec,
        peers: int,
        global_batch: int,
        make_reducer: MakeReducer,
        weigh: Weigh,
    ) -> None:
        self._layout, self._global_batch = layout, global_batch
        self._make_reducer, self._weigh = make_reducer, weigh
        self._codings = [Coding(codec, Feedback(layout.size), Feedback(layout.size)) for _ in range(peers)]
        cuts = [layout.size * peer // REDUCERS for peer in range(REDUCERS + 1)]
        shares = [end - begin for begin, end in pairwise(cuts)]
        self.chunks = [(p, begin, end) for p, chunks in enumerate(layout.chunks(shares)) for begin, end in chunks]
        """Who reduces it, begin and end."""

    def average(self, step: int, vectors: Sequence[Tensor], claims: Sequence[int]) -> Tensor | None:
        """What all decode, float32 [size]; none if the round fails. Runs in an event loop, as reducers do."""
        told = {str(peer): self._contribution(step, peer, claim) for peer, claim in enumerate(claims)}
        for peer, coding in enumerate(self._codings):
            coding.sent.begin(float(told[str(peer)].samples))
        sent = {peer: self._encoded(peer, vector) for peer, vector in enumerate(vectors)}
        counted = [peer for peer, parts in sent.items() if parts is not None]
        weights = self._weigh({str(peer): told[str(peer)].samples for peer in counted})
        average = torch.empty(self._layout.size)
        try:
            for coding in self._codings:
                coding.averaged.begin(float(sum(weights.values())))
            for number, (reducer, begin, end) in enumerate(self.chunks):
                parts = {str(peer): self._part(sent, vectors, peer, number) for peer in counted}
                coding, out = self._codings[reducer], average[begin:end]
                coding.averaged.encode(self._averages(begin), self._reduced(parts, weights), begin, out)
        except ValueError:  # the average holds what is no number
            for coding in self._codings:
                coding.sent.discard()
                coding.averaged.discard()
            return None
        for peer, coding in enumerate(self._codings):
            coding.sent.commit() if peer in counted else coding.sent.discard()
            coding.averaged.commit()
        return average

    def _reduced(self, parts: Mapping[str, Tensor], weights: Mapping[str, int]) -> Tensor:
        counted = {peer: float(weight) for peer, weight in weights.items() if weight}
        (size,) = {len(part) for part in parts.values()}
        reducer = self._make_reducer([torch.empty(size)])
        reducer.expect(counted)
        for peer, weight in counted.items():
            reducer.add(peer, 0, parts[peer], weight)
        return reducer.made(0)

    def _part(
        self, sent: Mapping[int, list[runtime_pb2.Tensor] | None], vectors: Sequence[Tensor], peer: int, number: int
    ) -> Tensor:
        messages, (reducer, begin, end) = sent[peer], self.chunks[number]
        assert messages is not None
        if peer == reducer:
            return self._codings[peer].sent.exact(vectors[peer][begin:end], begin)
        return decode(messages[number], end - begin)

    def _encoded(self, peer: int, vector: Tensor) -> list[runtime_pb2.Tensor] | None:
        """What a peer sends; none if those who reduce it cannot read it."""
        messages = []
        for _, begin, end in self.chunks:
            way = self._coding(begin)
            if _can_be_sent(vector[begin:end]):
                message = self._codings[peer].sent.encode(way, vector[begin:end], begin)
            else:
                message = _forged(way, vector[begin:end])
            try:
                check(message, end - begin)
            except ValueError:
                return None
            messages.append(message)
        return messages

    def _coding(self, begin: int) -> ChunkCompression:
        return self._codings[0].of_gradients(begin, self._layout)

    def _averages(self, begin: int) -> ChunkCompression:
        return self._codings[0].of_averages(begin, self._layout)

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
