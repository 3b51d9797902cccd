"""How well does our loop feed a card? By a card that is not there: see `benchmarks.lib.null_card`."""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.lib.null_card import NullCards, NullCopies, Waits, drive, host_rate
from benchmarks.lib.null_runs import Data, Trained, batches_ahead, batches_here, trained
from dedloc_kit.learning.task import Batch, Loss
from dedloc_kit.learning.train.computing.card import Card, samples_in
from dedloc_kit.learning.train.computing.microbatch import MAX_SECONDS
from dedloc_kit.learning.train.flat_model import FlatModel

_ROW = "{:15}{:>10}{:>7}{:>14}{:>16}{:>9}{:>8}{:>8}{:>7}{:>12}"
_TOKENS = 16_384
"""Of a microbatch of text."""
_WARM = 4
"""Microbatches before the first turn, in addition to as many as a turn has."""
_DATA = 16
"""Microbatches that are made to see what they cost."""
_FASTER = 0.5


@dataclass(frozen=True)
class Kind:
    """A kind of card."""

    half: torch.dtype
    peak: float
    """Operations per second in half precision, dense."""
    seconds: dict[str, float]
    """Of a microbatch of 16,384 tokens."""
    reached: dict[str, float]
    """For other tasks the share of the peak that it reaches: text-to-image as was measured on an H200 (20.5 samples/s),
    on a T4 as ALBERT; SwAV half of what the slowest other one does, for it waits for memory (normalisation)."""
    limits: dict[str, float]
    """Of wall over busy, by source."""


KINDS = {
    "h200": Kind(
        torch.bfloat16,
        989e12,
        {"albert": 0.093, "causal": 0.095, "encoder": 0.100},
        {"swav": 0.08, "text-to-image": 0.184},
        {"shards": 1.03},
    ),
    "t4": Kind(
        torch.float16,
        65e12,
        {"albert": 1.4, "causal": 1.1, "encoder": 1.1},
        {"swav": 0.11, "text-to-image": 0.33},
        {"shards": 1.10, "text": 1.10},
    ),
}
_OPERATIONS = {"swav": 76e9, "text-to-image": 8.9e12}
"""Of a sample, forward and backward: ResNet-50 takes 8.2e9 for a picture of 224 pixels, 1.5e9 for one of 96; 64 layers
of 16.8e6 weights see 1,279 places, and the output layers all words and codes."""


@dataclass(frozen=True)
class Fed:
    """What a loop made of a card."""

    microbatch: float
    """Seconds that it is busy with one."""
    ratios: list[float]
    """Wall over busy, turn by turn."""
    faster: list[float]
    """The same with half the time."""
    loop: float
    """Processor seconds of the loop's thread for a microbatch."""
    data: float
    """The same of whoever makes the batches."""
    waits: float
    operations: int
    """Of torch for a microbatch."""
    full: float
    """The mean part of a whole microbatch that they were."""


def size_of(name: str, kind: Kind, samples: int) -> tuple[int, float]:
    """The samples of a microbatch, of which a slow card takes fewer, and the seconds that it is busy with them."""
    if name in kind.seconds:
        return samples, kind.seconds[name]
    each = _OPERATIONS[name] / (kind.reached[name] * kind.peak)
    while samples * each > MAX_SECONDS:
        samples //= 2
    return samples, samples * each


def fed(name: str, made: Trained, kind: Kind, source: str, microbatches: int, repeats: int) -> Fed:
    """Train for a while.

    :param microbatches: between two global steps; each turn is as long
    """
    samples, seconds = size_of(name, kind, made.samples)
    busy = [seconds, _FASTER * seconds]
    cards = NullCards(busy)
    model = made.narrow.model()
    drive(cards, model)
    size = sum(each.numel() for each in model.parameters())
    copies = NullCopies(cards, made.parameters / size, host_rate())
    replica = FlatModel(model, torch.device("cpu"), copies)

    def loss(model: nn.Module, batch: Batch, step: int) -> Loss:
        with cards.elsewhere():
            few = made.few(batch)
        cards.begin_microbatch(samples_in(batch) / samples)
        found = made.narrow.loss(model, few, step)
        cards.put_output()
        return found

    card = Card(replica, loss, kind.half, prepare=made.task.prepare)
    data = _cost_of_data(made, samples)
    decoded = name == "swav"  # before
    counted = 0.0 if decoded or source == "ready" else data
    turns: list[list[float]] = [[], []]
    loops, full, waits = [], [], 0
    flat = replica.read()
    with batches_ahead(made, samples, "ready" if decoded else source, copies.memory) as batches:
        operations = _warm_up(card, cards, batches, _WARM + microbatches)
        card.load(flat)  # as at the end of each turn
        for _ in range(repeats):
            begun, before, shares, own = cards.mark(), cards.waits, cards.shares, time.thread_time()
            for _ in range(microbatches):
                assert card.submit(next(batches))
                card.results()
            with cards.elsewhere():
                card.snapshot()  # a round's thread copies it
            card.load(flat)
            loops.append((time.thread_time() - own) / microbatches)
            waits += cards.waits - before
            share = (cards.shares - shares) / microbatches
            # From when a card is done with what it has got to when it is done with this turn.
            for found, begin, end, each in zip(turns, begun, cards.mark(), busy, strict=True):
                found.append(max((end - begin) / microbatches, share * counted) / (share * each))
            full.append(share)
    loop, waited = statistics.median(loops), waits / microbatches / repeats
    return Fed(busy[0], turns[0], turns[1], loop, data, waited, operations, statistics.mean(full))


def _warm_up(card: Card, cards: NullCards, batches: Iterator[Batch], microbatches: int) -> int:
    """Compute some, until memory has settled; returns how many operations one has."""
    waits = Waits(cards)
    for number in range(microbatches):
        with waits if number == 1 else nullcontext():  # the first one may make what is kept
            assert card.submit(next(batches))
        card.results()
    return waits.operations


def _cost_of_data(made: Trained, samples: int) -> float:
    """Processor seconds for a microbatch, of all threads that make it."""
    batches = batches_here(made, samples)
    for _ in range(2):
        next(batches)
    began = time.process_time()
    for _ in islice(batches, _DATA):
        pass
    return (time.process_time() - began) / _DATA


def table(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Print and return a row for each task."""
    kind, source = KINDS[options.null_card], options.source
    print(
        _ROW.format("", "wall/busy", "limit", "range", "faster kernels", "busy", "loop", "data", "waits", "operations")
    )
    rows = []
    for name in options.tasks:
        with tempfile.TemporaryDirectory() as folder:
            data = Data(tuple(options.text), options.language, options.vocabulary)
            made = trained(name, source, Path(folder), _TOKENS, data)
            each = fed(name, made, kind, source, options.microbatches, options.repeats)
        limit = kind.limits.get(source)
        row = {
            "task": name,
            "wall_over_busy": statistics.median(each.ratios),
            "limit": limit,
            "range": [min(each.ratios), max(each.ratios)],
            "faster": statistics.median(each.faster),
            "faster_range": [min(each.faster), max(each.faster)],
            "busy_ms": 1000 * each.microbatch,
            "loop_ms": 1000 * each.loop,
            "data_ms": 1000 * each.data,
            "waits": each.waits,
            "operations": each.operations,
            "full": each.full,
            "card": options.null_card,
            "source": source,
        }
        rows.append(row)
        shown = f"{min(each.ratios):.3f}..{max(each.ratios):.3f}"
        times = (f"{1000 * seconds:.1f}" for seconds in (each.microbatch, each.loop, each.data))
        told = f"{row['wall_over_busy']:.3f}", f"{limit:.2f}" if limit else "", shown, f"{row['faster']:.3f}"
        print(_ROW.format(name, *told, *times, f"{each.waits:.2f}", each.operations), flush=True)
    print("  milliseconds of a microbatch: busy: the card; loop: its thread; data: whoever makes the batches")
    return rows
