"""What has gone into a span in a session, so that another server can catch up with it."""

import numpy as np
import torch
from torch import Tensor

from dedloc_kit.blocks.past import Past

_SMALL = 32
"""So many steps of few tokens become one piece: a tensor for each token would take as much again."""


class History:
    """Hidden states [rows, tokens, hidden], in the form in which they travelled.

    Rows that are moved are only noted down: beams move at each step, and what is remembered may be long.
    """

    def __init__(self) -> None:
        self._pieces: list[tuple[Tensor, np.ndarray | None]] = []  # and which rows of it are meant, None for all

    @property
    def tokens(self) -> int:
        return sum(piece.shape[1] for piece, _ in self._pieces)

    def add(self, hidden: Tensor) -> None:
        self._pieces.append((hidden, None))
        last = self._pieces[-_SMALL:]
        if len(last) == _SMALL and all(piece.shape[1] < _SMALL for piece, _ in last):
            kinds = {piece.dtype for piece, _ in last}
            if len(kinds) == 1:
                self._pieces[-_SMALL:] = [(_joined(last), None)]

    def follow(self, past: Past) -> None:
        """Let only what a step follows be there."""
        self.keep(past.tokens)
        if past.rows is not None:
            rows = np.array(past.rows, dtype=np.uint16)
            self._pieces = [(piece, rows if chosen is None else chosen[rows]) for piece, chosen in self._pieces]

    def keep(self, tokens: int) -> None:
        """Forget what comes after the first tokens."""
        while (surplus := self.tokens - tokens) > 0:
            piece, chosen = self._pieces.pop()
            if surplus < piece.shape[1]:
                self._pieces.append((piece[:, :-surplus].clone(), chosen))

    def all(self) -> Tensor:
        return _joined(self._pieces)


def _joined(pieces: list[tuple[Tensor, np.ndarray | None]]) -> Tensor:
    chosen = [piece if rows is None else piece[torch.from_numpy(rows.astype(np.int64))] for piece, rows in pieces]
    return torch.cat(chosen, 1)
