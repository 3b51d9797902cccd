"""What a pipeline reaches at most, from the known speeds and lines of its peers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linprog

from dedloc_kit.swarm.remote import activations

ROWS, LENGTH, WIDTH = 1, 512, 1024
"""Of a microbatch's hidden states."""
TENSOR = activations.size((ROWS, LENGTH, WIDTH))
"""Bytes of these on a line."""


@dataclass(frozen=True)
class StagePeer:
    """A peer of a benchmark.

    :ivar seconds: of its device for a microbatch, forward and backward
    :ivar mbit: of its line, up and down
    :ivar chain: of fixed pipelines: to which it belongs
    """

    stage: int
    seconds: float
    mbit: float = 100.0
    client_mode: bool = False
    chain: int = 0


def served_tensors(stage: int, stages: int) -> tuple[int, int]:
    """That a stage peer receives and sends for one microbatch: hidden states twice and a gradient; hidden states and a
    gradient. The first gets no hidden states, the last one backward call only."""
    first, last = stage == 0, stage == stages - 1
    return (not first) * (2 - last) + (not last), (not last) + (not first)


def driven_tensors(stages: int) -> tuple[int, int]:
    """That a driver receives and sends for one microbatch through all stages."""
    each = [served_tensors(stage, stages) for stage in range(stages)]
    return sum(sent for _, sent in each), sum(received for received, _ in each)


def best_rate(peers: Sequence[StagePeer], tensor: int = TENSOR) -> float:
    """Microbatches a second: the slowest stage's, if peers share work as their devices and lines allow.

    A linear program over what each serves and drives. All that is driven counts as travelling, also to oneself.
    """
    count, stages = len(peers), 1 + max(peer.stage for peer in peers)
    ways, limits = [], []
    driven = driven_tensors(stages)
    for number, peer in enumerate(peers):
        for served, driving in zip(served_tensors(peer.stage, stages), driven, strict=True):
            row = np.zeros(2 * count + 1)
            row[number], row[count + number] = served * tensor, driving * tensor
            ways.append(row)
            limits.append(peer.mbit * 1e6 / 8)
    for shared in [[n for n, p in enumerate(peers) if p.stage == s] for s in range(stages)] + [range(count, 2 * count)]:
        row = np.zeros(2 * count + 1)
        row[list(shared)], row[-1] = -1.0, 1.0
        ways.append(row)
        limits.append(0.0)
    goal = np.zeros(2 * count + 1)
    goal[-1] = -1.0
    most = [(0, 1 / peer.seconds) for peer in peers] + [(0, None)] * (count + 1)
    return float(-linprog(goal, np.array(ways), limits, bounds=most).fun)


def in_chains(peers: Sequence[StagePeer]) -> tuple[StagePeer, ...]:
    """The n-th peer of each stage is in chain n."""
    seen, found = Counter[int](), list[StagePeer]()
    for peer in peers:
        found.append(replace(peer, chain=seen[peer.stage]))
        seen[peer.stage] += 1
    return tuple(found)


def chains(peers: Sequence[StagePeer]) -> list[list[StagePeer]]:
    """The same peers as fixed pipelines of one peer a stage."""
    found: dict[int, list[StagePeer]] = {}
    for peer in peers:
        found.setdefault(peer.chain, []).append(peer)
    return [found[chain] for chain in sorted(found)]


def shares(peers: Sequence[StagePeer], batch: int) -> list[int]:
    """How a batch is divided among fixed pipelines that know their speeds: at least one microbatch each."""
    rates = [best_rate(chain) for chain in chains(peers)]
    exact = [batch * rate / sum(rates) for rate in rates]
    found = [max(1, int(share)) for share in exact]
    for chain in sorted(range(len(found)), key=lambda number: found[number] - exact[number])[: batch - sum(found)]:
        found[chain] += 1
    return found
