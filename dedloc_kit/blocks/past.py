"""What of a session's past stays before a step, said in a way that does not depend on a version of transformers."""

from dataclasses import dataclass
from typing import Any

import torch

MAX_ROWS = 2**12


@dataclass(frozen=True)
class Past:
    """The past that a step follows. It says what stays: to `Cache.crop` a number was what stays, and is what goes.

    Raises ValueError for numbers that cannot be.
    """

    tokens: int
    """How many from the beginning on."""
    rows: tuple[int, ...] | None = None
    """Which of its rows each row of the batch follows, for beams are reordered, repeated and dropped; None: its own."""
    undoable: bool = False
    """Some of this step's tokens may go again, so windows must not forget what slides out of them meanwhile."""

    def __post_init__(self) -> None:
        fits = self.rows is None or (self.tokens > 0 and 0 < len(self.rows) <= MAX_ROWS and min(self.rows) >= 0)
        if self.tokens < 0 or not fits:
            raise ValueError(f"no past has {self.tokens} tokens and the rows {(self.rows or ())[:16]}")

    def restore(self, cache: Any, batch: int) -> None:
        """Let a cache of transformers, of a batch of this size, hold that alone.

        Raises ValueError if it does not; then the cache is of no use any more.
        """
        held = cache.get_seq_length()
        if self.tokens > held or max(self.rows or (0,)) >= max(batch, 1):
            raise ValueError(
                f"a past of {held} tokens and {batch} rows, not of {self.tokens}, {(self.rows or ())[:16]}"
            )
        recording = any(getattr(layer, "record_past", False) for layer in cache.layers)
        if self.tokens < held or (held and recording):  # without recording, crop(0) left nothing in early 5.x
            try:
                cache.crop(self.tokens - held)
            except (RuntimeError, ValueError) as error:  # of early 5.x the latter
                raise ValueError(f"tokens before {self.tokens} have slid out of a window") from error
        for layer in cache.layers:
            if held and getattr(layer, "is_sliding", False):
                needed = min(self.tokens, layer.sliding_window - 1)
                if layer.keys.shape[-2] < needed:  # crop does not look
                    raise ValueError(f"tokens before {self.tokens} have slid out of a window")
            if hasattr(layer, "record_past"):
                layer.record_past = self.undoable
        if self.rows is not None:
            cache.batch_select_indices(torch.tensor(self.rows))
