"""What does our loop cost a task? Tokens per second beside a bare PyTorch loop, or how well it feeds a card.

**Beside a bare loop** (tasks of text), on one core, without peers, between two global steps. *Ours* is what a volunteer
runs: reading, tokenizing and packing text in the background, the task's loss, the check whether all is finite, and the
sum of gradients. *Bare* is what anybody would write: transformers' own forward pass over ready-made batches of the same
kind, one cross-entropy over all scores, and gradients that add up in place; its batches cost it nothing. The two take
turns, and the seconds are the processor's, so that other work on the machine hits neither.

With `--device cuda` both compute in half precision, the bare model is compiled (`--no-compile`: it is not), and the
seconds are the clock's. Beside it stand the model's operations (six for each parameter and token, embeddings left out,
and attention's: Kaplan et al. 2020, section 2.1) as a share of what large matrix products of that precision reach in
the same call, and of an H200 as a share of its peak; what layers share counts as often as it is applied, and of a
sliding window only what it sees. Peak memory is not compared; but the bare loop's scores of all tokens stand in memory
at once.

**With `--null-card h200|t4`** no GPU is needed, nor a quiet machine: how much longer than the card is busy does our
loop take (wall over busy)? 1 is perfect. What is real and what is assumed:

- real: batches of the real size from the real source (`--source shards`: token ids, pictures that are decoded, codes of
  pictures; `text`: raw text; `ready`: a few batches again and again), what a task prepares of them, `Card.submit` and
  `Card.results`, the copies as far as the processor makes them, the sum of gradients, a snapshot and a load of all
  parameters every `--microbatches`;
- the model is as deep as the real one but narrow, and computes a few tokens of the batch, so that its arithmetic on the
  processor takes about as long as starting kernels on a GPU takes;
- assumed: how long the card is busy with a microbatch (of 16,384 tokens, as measured or estimated for today's kernels;
  SwAV and text-to-image: their operations over the share of the peak that such models reach), how that divides over the
  layers, the rates of copies. Half of that time (faster kernels) is told too, without a limit;
- the clock is virtual: the loop's thread counts with its own processor time, waits for the card are computed;
- batches are made in a process of their own, on a core of its own: what one costs (*data*) counts where it is more than
  all else of a microbatch takes. Of SwAV it does not: its pictures are decoded before.

The table tells the limits; no time makes the program fail.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import torch

from benchmarks.lib import bare_loop, fed_card
from benchmarks.lib.null_runs import TASKS
from dedloc_kit.resources import small_text


def main() -> int:
    options = _parse()
    if options.device == "cpu":
        if options.null_card is None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        torch.set_num_threads(1)
    found = bare_loop.compare(options) if options.null_card is None else fed_card.table(options)
    if options.json:
        options.json.write_text(json.dumps(found) + "\n")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, help="default: all that can be")
    parser.add_argument("--text", nargs="*", default=[str(small_text())], metavar="DATASET")
    parser.add_argument("--language", default="en", help="of the text (default: en)")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    bare = parser.add_argument_group("beside a bare loop")
    bare.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    bare.add_argument("--compile", action=argparse.BooleanOptionalAction, help="the bare model (default: on a GPU)")
    bare.add_argument("--width", type=int, default=256)
    bare.add_argument("--layers", type=int, default=6)
    bare.add_argument("--sequence-length", type=int, default=512)
    bare.add_argument("--microbatch", type=int, default=4)
    bare.add_argument("--seconds", type=float, default=20.0, help="for each loop and turn")
    null = parser.add_argument_group("before a card that is not there")
    null.add_argument("--null-card", choices=tuple(fed_card.KINDS))
    null.add_argument("--source", choices=("shards", "text", "ready"), default="shards")
    null.add_argument("--microbatches", type=int, default=32, help="of a turn, and between two global steps")
    options = parser.parse_args()
    known = bare_loop.TASKS if options.null_card is None else TASKS
    options.tasks = options.tasks or list(known)
    if unknown := [name for name in options.tasks if name not in known]:
        parser.error(f"there is no bare loop for {unknown[0]}")
    if options.compile is None:
        options.compile = options.device == "cuda"
    return options


if __name__ == "__main__":
    sys.exit(main())
