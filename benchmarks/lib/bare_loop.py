"""Our loop beside what anybody would write: see `benchmarks.task`."""

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dedloc_kit.config.loading import local, parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.data.sources.stream import Prefetch
from dedloc_kit.learning.task import Task, create_task
from dedloc_kit.learning.tasks.batches import batches_of
from dedloc_kit.learning.train.computing.card import Batch, Card
from dedloc_kit.learning.train.computing.device import half_precision
from dedloc_kit.learning.train.flat_model import FlatModel
from dedloc_kit.organizer.prepare import prepare_tokenizer

TASKS = ("albert", "causal", "encoder")
_ROW = "{:10}{:>14}{:>14}{:>8}"
_READY = 8
"""Batches that the bare loop goes through again and again."""
_PEAKS = {"H200": 989e12}
"""Operations per second in dense bfloat16, by what a device's name holds (NVIDIA's data sheet)."""
_NANOCHAT = "nanochat: 36 to 41 % of it"
"""The share of the peak that a program for one model alone reaches on this kind of card."""


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Print and return the tokens per second of both loops."""
    device = torch.device(options.device)
    found: dict[str, Any] = {}
    print(_ROW.format("tokens/s", "ours", "bare", "ratio"))
    with tempfile.TemporaryDirectory() as folder:
        for name in options.tasks:
            run = _run(name, Path(folder), options)
            task = create_task(run)
            model: Any = task.model().to(device)
            ours, bare = _measure(task, model, name, options)
            found[name] = {"ratio": statistics.median(ours) / statistics.median(bare), "ours": ours, "bare": bare}
            shown = f"{statistics.median(ours):.0f}", f"{statistics.median(bare):.0f}"
            print(_ROW.format(name, *shown, f"{found[name]['ratio']:.3f}"), flush=True)
            print(f"  ours {min(ours):.0f}..{max(ours):.0f}, bare {min(bare):.0f}..{max(bare):.0f}")
            if device.type == "cuda":
                rate = statistics.median(ours) * _operations(model, options.sequence_length)
                found[name] |= _utilisation(rate, device)
    return found


def _utilisation(rate: float, device: torch.device) -> dict[str, float]:
    """Print and return what such a rate of operations is of what the device can."""
    name, memory = torch.cuda.get_device_name(device), torch.cuda.max_memory_allocated(device) / 2**30
    found = {"operations_per_second": rate, "utilisation": rate / _fastest(device)}
    shown = f"{found['utilisation']:.0%} of large products"
    for part, peak in _PEAKS.items():
        if part in name:
            found["share_of_peak"] = rate / peak
            shown += f", {rate / peak:.0%} of the peak of {peak / 1e12:.0f} TFLOP/s ({_NANOCHAT})"
    print(f"  {name}, {half_precision(device)}: {rate / 1e12:.0f} TFLOP/s, {shown}; at most {memory:.1f} GiB")
    torch.cuda.reset_peak_memory_stats(device)
    return found


def _measure(task: Task, model: Any, name: str, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Tokens per second of ours and of the bare loop, in turns."""
    device = torch.device(options.device)
    ready = [
        {key: values.to(device) for key, values in batch.items()}
        for batch in islice(batches_of(task.run, task, options.microbatch, 0, print), _READY)
    ]
    bare_model = copy.deepcopy(model)  # it sets gradients to None, and ours are part of a vector
    bare = _bare(name, bare_model, half_precision(device), options.compile)
    steps: dict[str, Callable[[Batch], object]] = {"ours": _ours(task, model, device), "bare": bare}
    rates: dict[str, list[float]] = {"ours": [], "bare": []}
    with Prefetch(batches_of(task.run, task, options.microbatch, 1, print), size=4) as batches:
        for _ in range(options.repeats):
            for loop, source in (("ours", batches), ("bare", cycle(ready))):
                for _ in range(3):
                    steps[loop](next(source))
                rates[loop].append(_rate(steps[loop], source, options.seconds, device))
                bare_model.zero_grad(set_to_none=True)
    return rates["ours"], rates["bare"]


def _rate(step: Callable[[Batch], object], batches: Iterator[Batch], seconds: float, device: torch.device) -> float:
    clock = time.process_time if device.type == "cpu" else time.monotonic  # each step waits for a loss
    tokens, began = 0, clock()
    while (spent := clock() - began) < seconds:
        batch = next(batches)
        step(batch)
        tokens += batch["input_ids"].numel()
    return tokens / spent


def _ours(task: Task, model: nn.Module, device: torch.device) -> Callable[[Batch], object]:
    card = Card(FlatModel(model, device), task.loss, half_precision(device), prepare=task.prepare)

    def step(batch: Batch) -> None:
        assert card.submit(batch)
        assert all(each.finite for each in card.results())

    return step


def _bare(name: str, model: Any, half: torch.dtype | None, compiled: bool) -> Callable[[Batch], object]:
    device_type = model.device.type
    forward: Any = torch.compile(model, dynamic=False) if compiled else model

    def step(batch: Batch) -> None:
        with torch.autocast(device_type, dtype=half or torch.bfloat16, enabled=half is not None):
            if name == "albert":
                loss = forward(**batch).loss
            else:
                scores = forward(**_inputs(name, model, batch)).logits
                loss = functional.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        loss.item()

    return step


def _operations(model: Any, length: int) -> float:
    """Of the forward and backward pass, for each token; what a causal layer hides counts as if it were seen."""
    config, embeddings = model.config, model.get_input_embeddings().weight
    times = config.num_hidden_layers // getattr(config, "num_hidden_groups", config.num_hidden_layers)
    weights = embeddings.numel() if config.tie_word_embeddings else 0
    for name, each in model.named_parameters():
        if each.ndim == 2 and each is not embeddings:  # a layer may be applied several times
            weights += each.numel() * (times if any(part.isdigit() for part in name.split(".")) else 1)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    seen = sum(length if kind == "full_attention" else min(length, 2 * config.sliding_window) for kind in kinds)
    return float(6 * weights + 12 * config.hidden_size * seen)


def _fastest(device: torch.device) -> float:
    """Operations per second of large matrix products in half precision."""
    one, other = (torch.randn(8192, 8192, device=device, dtype=half_precision(device)) for _ in range(2))
    rates = []
    for _ in range(20):
        torch.cuda.synchronize(device)
        began = time.monotonic()
        for _ in range(10):
            one @ other
        torch.cuda.synchronize(device)
        rates.append(10 * 2 * 8192**3 / (time.monotonic() - began))
    return statistics.median(rates)


def _inputs(name: str, model: Any, batch: Batch) -> dict[str, Any]:
    """What lets transformers keep documents apart."""
    positions = batch["position_ids"]
    inputs: dict[str, Any] = {"input_ids": batch["input_ids"], "position_ids": positions}
    if name == "causal":
        return {**inputs, "use_cache": False}
    document = (positions == 0).cumsum(dim=1)
    mask = (document[:, :, None] == document[:, None, :])[:, None]
    near = (positions[:, :, None] - positions[:, None, :]).abs()[:, None] <= model.config.sliding_window
    return {**inputs, "attention_mask": {"full_attention": mask, "sliding_attention": mask & near}}


def _run(name: str, folder: Path, options: argparse.Namespace) -> RunConfig:
    heads = max(1, options.width // 64)
    model = {"hidden_size": options.width, "num_hidden_layers": options.layers, "num_attention_heads": heads}
    run = parse_run(
        {
            "name": "bench",
            "global_batch": 64,
            "task": {
                "name": name,
                "tokenizer": str(folder / f"tokenizer-{name}"),
                "vocab_size": options.vocabulary,
                "language": options.language,
                "sequence_length": options.sequence_length,
                "model": {**model, "intermediate_size": 3 * options.width},
            },
            "data": {"train": [{"dataset": local(path, Path())} for path in options.text]},
        }
    )
    prepare_tokenizer(run, 5_000_000)
    return run
