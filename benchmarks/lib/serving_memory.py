"""What serving takes of memory: a span in each format, what a user keeps of a session, sessions that are over."""

import gc
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Self, cast, get_args

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.lib.served import ServedOn
from benchmarks.lib.smollm2 import model_folder
from dedloc_kit.blocks.architecture import configuration
from dedloc_kit.blocks.past import Past
from dedloc_kit.blocks.served import read_model
from dedloc_kit.blocks.span import CachedSpan, Span
from dedloc_kit.blocks.weights import weights
from dedloc_kit.serving.config import WeightFormat
from dedloc_kit.swarm.serving.client.history import History
from dedloc_kit.worker import KEPT_MEMORY

LENGTH, CHUNK = 1024, 256
"""Tokens of a session, computed in such chunks."""
TOKENS, HISTORIES = 1000, 100
SESSIONS = 1000
_NAP_SECONDS = 0.002


def memory_figures() -> dict[str, Any]:
    """By name; prints them as they come. Each format is measured in a process of its own. Raises UserError."""
    model_folder()
    figures: dict[str, Any] = {"weights": {}, "peak_over_needed": {}}
    for form in get_args(WeightFormat):
        command = [sys.executable, "-m", "benchmarks.lib.serving_memory", form]
        as_a_server = {**os.environ, **KEPT_MEMORY}  # with glibc's own ways freed memory lies about in pieces
        said = subprocess.check_output(command, text=True, env=as_a_server)
        held, peak, needed = map(float, said.split())
        figures["weights"][form], figures["peak_over_needed"][form] = held, peak / needed
        part = held / figures["weights"]["float32"]
        took = (
            f"{form}: weights {held / 1e6:.0f} MB ({part:.2f} of float32), peak {peak / needed:.2f} of what is needed"
        )
        print(took, flush=True)
    figures["history_over_numbers"] = _history()
    print(f"a user keeps {figures['history_over_numbers']:.2f} times the numbers that went into a span", flush=True)
    figures |= _sessions()
    print(
        f"{SESSIONS} sessions opened and dropped: {figures['left_sessions']} are left with {figures['left_tokens']} "
        f"tokens, the server has grown by {figures['grown_bytes'] / 1e6:.1f} MB"
    )
    return figures


class _Peak:
    """The most memory of this process's own, files that are mapped left out."""

    def __enter__(self) -> Self:
        self.bytes, self._over = own_memory(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_NAP_SECONDS):
            self.bytes = max(self.bytes, own_memory())


def own_memory(process: int | str = "self") -> int:
    """Bytes that only this process has."""
    status = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")))


def _span(form: WeightFormat) -> tuple[int, int, int]:
    """Bytes of all layers' weights, the peak with a session, and what weights, cache and a chunk's activations need."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        served = read_model(str(model_folder()), Path(folder))
    config = configuration(served.config)
    dtype = torch.bfloat16 if form == "bfloat16" else torch.float32
    (torch.ones(CHUNK, CHUNK, dtype=dtype) @ torch.ones(CHUNK, CHUNK, dtype=dtype)).sum()  # what this takes once
    gc.collect()
    before = own_memory()
    with _Peak() as peak:
        span = Span(config, 0, config.num_hidden_layers).requires_grad_(False)
        wanted = span.wanted(served.manifest.tensors)
        read = weights.read(served.folder, served.manifest, wanted)
        weights.load(span, span.merged(wanted, read), form)
        held = own_memory() - before
        session = CachedSpan(span)
        for at in range(0, LENGTH, CHUNK):
            positions = torch.arange(at, at + CHUNK)[None]
            session(torch.randn(1, CHUNK, config.hidden_size, dtype=dtype), None, positions, Past(at))
    layers, kept = config.num_hidden_layers, 2 * config.num_key_value_heads * config.head_dim
    cache = LENGTH * layers * kept * dtype.itemsize
    scores, repeated = config.num_attention_heads * LENGTH, 2 * LENGTH * config.hidden_size // CHUNK
    numbers = 4 * config.hidden_size + 3 * config.intermediate_size + scores + repeated
    activations = CHUNK * numbers * dtype.itemsize
    return held, peak.bytes - before, held + cache + activations


def _history() -> float:
    size: int = configuration(_read_config()).hidden_size
    before = own_memory()
    kept = [History() for _ in range(HISTORIES)]
    for _ in range(TOKENS):
        for history in kept:
            history.add(torch.zeros(1, 1, size, dtype=torch.float16))
    return (own_memory() - before) / (HISTORIES * TOKENS * size * 2)


def _read_config() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return read_model(str(model_folder()), Path(folder)).config


def _sessions() -> dict[str, int]:
    """What many sessions leave behind on a server of a tiny model."""
    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    with tempfile.TemporaryDirectory(prefix="dedloc-serving-") as name:
        folder = Path(name)
        LlamaForCausalLM(config).save_pretrained(folder / "model")
        with ServedOn(None, folder, folder / "model", ["0:2"]) as served:
            user, (server,) = served.users[0], served.servers
            for number in range(2 * SESSIONS):  # the first ones fill what is kept for good
                if number == SESSIONS:
                    before = own_memory(server.pid)
                user.written(range(1, 9), 2)
            grown = own_memory(server.pid) - before
            seen = len(server.events)
            mine = server.wait_for("served", lambda event: event in server.events[seen:])["mine"]
    return {
        "left_sessions": mine["sessions"],
        "left_tokens": mine["cache_tokens"] - mine["free_tokens"],
        "grown_bytes": grown,
    }


if __name__ == "__main__":
    print(*_span(cast(WeightFormat, sys.argv[1])))
