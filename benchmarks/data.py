"""How fast do masked sentence-order pairs come from text, and from token ids, beside the way of the first sahajBERT?

All rows read the same documents on one core, masking and collation included, each token masked by itself. They take
turns, and the seconds are the processor's, so that other work on the machine hits none of them.

- *original*: every sentence is tokenized alone to count its tokens, the joined pair once more, and transformers'
  `DataCollatorForLanguageModeling` pads and masks (written after the description of DeDLOC's recipe);
- *from text* and *from tokens*: what a volunteer runs, on text and on shards of `dedloc prepare tokens`;
- *bare tokenizer*: the documents through the tokenizer, its ids thrown away. Its instances are those of *from text*.

*Padding* is the share of the batches' tokens that carry no text.

With `--task causal`: how fast do packed sequences come, beside transformers' usual way? *Usual* is what its example
for causal models does (`run_clm.py`): tokenize and then concatenate and cut in two calls of `datasets.map`, and
transformers' collator over a `DataLoader`. Each row goes once through as many tokens as the text has.

With `--task text-to-image`: how fast do samples come from shards of `dedloc prepare images` (*read*), beside decoding
and encoding the same pictures on each volunteer's machine with the small picture model of the kit (*encoded*)?
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.code_data import coded
from benchmarks.lib.packed_data import packed
from benchmarks.lib.small_parquet import as_parquet
from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.task import Source
from dedloc_kit.learning.data.sources.shards import find_shards
from dedloc_kit.learning.data.sources.stream import in_order, texts
from dedloc_kit.learning.data.text.sentences import sentences
from dedloc_kit.learning.data.text.token_shards import shard_path, write_token_shard
from dedloc_kit.learning.data.text.tokens import DocumentTokenizer, vocabulary_hash
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer
from dedloc_kit.learning.tasks.albert import Albert
from dedloc_kit.learning.tasks.batches import batches_of

_ROW = "{:16}{:>13}{:>20}{:>10}{:>16}{:>10}"
_WINDOW = 32
"""Batches that come at once, since they are sorted by length together: only whole windows are timed."""

Batches = Iterator[dict[str, Any]]


def main() -> int:
    options = _parse()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return {"albert": pairs, "causal": packed, "text-to-image": coded}[options.task](options)


def pairs(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        print("preparing: tokenizer and shards of token ids", file=sys.stderr)
        sources = [Source(dataset=str(path)) for path in options.text or [as_parquet(Path(folder) / "text")]]
        documents = [text for source in sources for text in in_order(source, texts, warn=print)]
        train_tokenizer(islice(cycle(documents), 5_000), options.vocabulary, folder / "tokenizer")
        _write_tokens(documents, folder, options.language)
        text_task = Albert(_run(folder, sources, options))
        original_task = Albert(text_task.run)  # its tokenizer is set to truncate
        token_task = Albert(_run(folder, [Source(dataset=str(folder / "tokens"), tokenized=True)], options))
        ways: dict[str, Callable[[], Batches]] = {
            "original": lambda: _original(original_task, documents, options.microbatch),
            "from text": lambda: batches_of(text_task.run, text_task, options.microbatch, 0, print),
            "from tokens": lambda: batches_of(token_task.run, token_task, options.microbatch, 0, print),
        }
        results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
        bare: list[float] = []
        for number in range(options.repeats):
            for name, batches in ways.items():
                results[name].append(_measure(batches(), options.seconds))
                print(f"{number + 1} of {options.repeats}: {name}", file=sys.stderr)
            bare.append(_characters_per_second(text_task, documents, options.seconds))
        rows = _rows_per_second(sources, options.seconds, options.repeats)

    print(f"microbatches of {options.microbatch}, {options.sequence_length} tokens, vocabulary of {options.vocabulary}")
    print(_ROW.format("", "instances/s", "(each)", "ratio", "tokens/instance", "padding"))
    speed = {name: statistics.median(found[0] for found in each) for name, each in results.items()}
    for name, each in results.items():
        shown = [found[0] for found in each]
        attended, padding = each[0][1:]
        row = _ROW.format(
            name,
            f"{speed[name]:.0f}",
            f"{min(shown):.0f}..{max(shown):.0f}",
            f"{speed[name] / speed['original']:.2f} x",
            f"{attended:.0f}",
            f"{padding:.1%}",
        )
        print(row)
    instances = _instances_per_character(text_task, documents)
    limit = statistics.median(bare) * instances
    print(_ROW.format("bare tokenizer", f"{limit:.0f}", "", f"{limit / speed['original']:.2f} x", "", ""))
    for name, found in rows.items():
        print(f"{name}: {statistics.median(found):.0f} rows/s ({min(found):.0f}..{max(found):.0f})")
    if options.json:
        ratios = {
            "ratio": speed["from text"] / speed["original"],
            "ratio_pretokenized": speed["from tokens"] / speed["original"],
            "padding": max(results[name][0][2] for name in ("from text", "from tokens")),
        }
        options.json.write_text(json.dumps({**ratios, "instances_per_second": results, "rows_per_second": rows}) + "\n")
    return 0


def _original(task: Albert, documents: list[str], microbatch: int) -> Batches:
    from transformers import DataCollatorForLanguageModeling

    collate = DataCollatorForLanguageModeling(task.tokenizer, mlm_probability=task.options.mlm_probability)
    instances = _original_instances(task, documents)
    while True:
        yield dict(collate(list(islice(instances, microbatch))))


def _original_instances(task: Albert, documents: list[str]) -> Iterator[dict[str, Any]]:
    generator = np.random.default_rng(0)
    budget = task.options.sequence_length - 3
    for document in cycle(documents):
        found = sentences(document, task.options.language)
        chunk: list[str] = []
        length = 0
        for number, sentence in enumerate(found):
            chunk.append(sentence)
            length += len(task.tokenizer.tokenize(sentence))
            if length < budget and number < len(found) - 1:
                continue
            if len(chunk) >= 2:
                middle = int(generator.integers(1, len(chunk)))
                pair = " ".join(chunk[:middle]), " ".join(chunk[middle:])
                swapped = int(generator.integers(2))
                instance = task.tokenizer(
                    *(pair[::-1] if swapped else pair),
                    truncation="longest_first",
                    max_length=task.options.sequence_length,
                    return_special_tokens_mask=True,
                )
                yield {**instance, "sentence_order_label": swapped}
            chunk, length = [], 0


def _measure(batches: Batches, seconds: float) -> tuple[float, float, float]:
    """Instances per second, tokens in each, and the share of padding."""
    instances = attended = tokens = 0
    for _ in range(_WINDOW):
        next(batches)
    began = time.process_time()
    while time.process_time() - began < seconds:
        for batch in islice(batches, _WINDOW):
            mask = batch["attention_mask"]
            instances += len(mask)
            attended += int(mask.sum())
            tokens += mask.numel()
    return instances / (time.process_time() - began), attended / instances, 1 - attended / tokens


def _characters_per_second(task: Albert, documents: list[str], seconds: float) -> float:
    backend = task.tokenizer.backend_tokenizer
    characters = 0
    endless = cycle(documents)
    began = time.process_time()
    while time.process_time() - began < seconds:
        some = list(islice(endless, 32))
        backend.encode_batch_fast(some, add_special_tokens=False)
        characters += sum(map(len, some))
    return characters / (time.process_time() - began)


def _instances_per_character(task: Albert, documents: list[str]) -> float:
    made = DocumentTokenizer(task.tokenizer, task.options.language).documents(documents)
    batches = task.pairs.batches(made, 32, np.random.default_rng(0))
    return sum(len(batch["input_ids"]) for batch in batches) / sum(map(len, documents))


def _rows_per_second(sources: list[Source], seconds: float, repeats: int) -> dict[str, list[float]]:
    """Of reading alone: through our stream of documents, and with `datasets` as it comes."""
    from datasets import load_dataset

    files = [shard.path for source in sources for shard in find_shards(source, print)]

    def ours() -> Iterator[Any]:
        return (text for source in cycle(sources) for text in in_order(source, texts, warn=print))

    def bare() -> Iterator[Any]:
        while True:
            yield from load_dataset("parquet", data_files={"train": files}, split="train", streaming=True)

    found: dict[str, list[float]] = {"reading, ours": [], "reading, datasets": []}
    for _ in range(repeats):
        for name, rows in zip(found, (ours(), bare()), strict=True):
            next(rows)
            began, count = time.perf_counter(), 0
            while time.perf_counter() - began < seconds:
                next(rows)
                count += 1
            found[name].append(count / (time.perf_counter() - began))
    return found


def _write_tokens(documents: list[str], folder: Path, language: str) -> None:
    tokenizer = load_tokenizer(str(folder / "tokenizer"))
    (folder / "tokens").mkdir()
    made = DocumentTokenizer(tokenizer, language).documents(documents)
    written = write_token_shard(made, shard_path(folder / "tokens", 0), vocabulary_hash(tokenizer), len(tokenizer))
    size = sum(file.stat().st_size for file in (folder / "tokens").iterdir())
    print(f"{written.tokens} tokens in {size / 1e6:.1f} MB of shards", file=sys.stderr)


def _run(folder: Path, sources: list[Source], options: argparse.Namespace) -> RunConfig:
    task = {"name": "albert", "tokenizer": str(folder / "tokenizer"), "language": options.language}
    return parse_run(
        {
            "name": "data",
            "global_batch": 1,
            "task": {**task, "sequence_length": options.sequence_length, "masking": options.masking},
            "data": {"train": [source.model_dump() for source in sources]},
        }
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--text",
        nargs="*",
        default=[],
        metavar="DATASET",
        help="Parquet folders or files, or OWNER/NAME on the Hub; default: the demo's text",
    )
    parser.add_argument("--task", choices=["albert", "causal", "text-to-image"], default="albert")
    parser.add_argument("--language", default="en", help="of the text (default: en)")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--microbatch", type=int, default=16)
    parser.add_argument("--masking", choices=["tokens", "words"], default="tokens", help="of our rows")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row and turn")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
