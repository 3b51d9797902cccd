"""`python -m benchmarks.data --task causal`: packed tokens per second."""

import argparse
import json
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import Source
from dedloc_kit.learning.data.sources.stream import in_order, texts
from dedloc_kit.learning.tasks.batches import batches_of
from dedloc_kit.learning.tasks.causal import Causal
from dedloc_kit.organizer.prepare import prepare_tokenizer
from dedloc_kit.organizer.prepare_tokens import prepare_tokens, sources_toml
from dedloc_kit.resources import small_text

_ROW = "{:12}{:>14}{:>26}{:>10}"


def packed(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        print("preparing: tokenizer and shards of token ids", file=sys.stderr)
        text_run = _run(folder, [{"dataset": str(path)} for path in options.text or [small_text()]], options)
        prepare_tokenizer(text_run, 5_000_000)
        tokens = sum(made.tokens for made in prepare_tokens(text_run, folder / "tokens").values())
        shards = tomllib.loads(sources_toml(text_run, str(folder / "tokens"), None))["data"]["train"]
        token_run = _run(folder, shards, options)
        tokenizer = Causal(text_run).tokenizer
        documents = [text for source in text_run.data.train for text in in_order(source, texts, warn=print)]
        ways: dict[str, Callable[[], Iterator[Any]]] = {
            "usual": lambda: _usual(tokenizer, documents, options),
            # Each time a new task: it has no word in its memory yet.
            "from text": lambda: batches_of(text_run, Causal(text_run), options.microbatch, 0, print),
            "from tokens": lambda: batches_of(token_run, Causal(token_run), options.microbatch, 0, print),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(options.repeats):
            for name, batches in ways.items():
                rates[name].append(_rate(batches(), tokens))
                print(f"{number + 1} of {options.repeats}: {name}", file=sys.stderr)

    print(f"{len(documents)} documents, sequences of {options.sequence_length} tokens, {options.microbatch} in a batch")
    print(_ROW.format("", "tokens/s", "(each)", "ratio"))
    speed = {name: statistics.median(each) for name, each in rates.items()}
    for name, each in rates.items():
        shown = f"{speed[name]:,.0f}", f"{min(each):,.0f}..{max(each):,.0f}", f"{speed[name] / speed['usual']:.2f} x"
        print(_ROW.format(name, *shown))
    if options.json:
        ratios = {
            "ratio": speed["from text"] / speed["usual"],
            "ratio_pretokenized": speed["from tokens"] / speed["usual"],
            "padding": 0.0,  # every token of a pack is one of a document, see tests/learning/data/test_packing.py
        }
        options.json.write_text(json.dumps({**ratios, "tokens_per_second": rates}) + "\n")
    return 0


def _usual(tokenizer: Any, documents: list[str], options: argparse.Namespace) -> Iterator[Any]:
    """All documents once, as transformers' example prepares them."""
    from datasets import Dataset, disable_progress_bars
    from torch.utils.data import DataLoader
    from transformers import default_data_collator

    disable_progress_bars()
    length = options.sequence_length

    def group(examples: dict[str, Any]) -> dict[str, Any]:
        concatenated = {key: list(chain(*examples[key])) for key in examples}
        total = len(concatenated["input_ids"]) // length * length
        result = {key: [t[at : at + length] for at in range(0, total, length)] for key, t in concatenated.items()}
        result["labels"] = result["input_ids"].copy()
        return result

    how = {"batched": True, "load_from_cache_file": False, "keep_in_memory": True}
    raw = Dataset.from_dict({"text": documents})
    tokenized = raw.map(lambda examples: tokenizer(examples["text"]), remove_columns=["text"], **how)
    grouped = tokenized.map(group, **how)
    yield from DataLoader(grouped, batch_size=options.microbatch, shuffle=True, collate_fn=default_data_collator)


def _rate(batches: Iterator[Any], wanted: int) -> float:
    """Tokens per second of processor time over so many of them, or to the end."""
    tokens, began = 0, time.process_time()
    for batch in batches:
        tokens += batch["input_ids"].numel()
        if tokens >= wanted:
            break
    return tokens / (time.process_time() - began)


def _run(folder: Path, train: list[dict[str, Any]], options: argparse.Namespace) -> RunConfig:
    task = {"name": "causal", "tokenizer": str(folder / "tokenizer"), "language": options.language}
    task |= {"vocab_size": options.vocabulary, "sequence_length": options.sequence_length}
    data = {"train": [Source(**source).model_dump() for source in train]}
    return parse_run({"name": "data", "global_batch": 1, "task": task, "data": data})
