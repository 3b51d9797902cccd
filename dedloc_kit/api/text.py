"""From tokens to text, piece by piece: whole characters, and nothing of the text that ends an answer."""

from collections.abc import Sequence
from typing import Any

_UNFINISHED = "\ufffd"
"""Stands for bytes that are no character, or not yet."""


class Detokenizer:
    """Tells text as its tokens come; a character that several of them make up with the last one.

    Each time it looks only at the tokens of the last piece that was whole and at those since: whether a word begins
    with a space shows only behind another one.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._begin(list(prompt))

    def add(self, token: int) -> str:
        """What this token has made certain."""
        self._window.append(token)
        text = self._decoded()
        whole = text.rstrip(_UNFINISHED)
        new = whole[self._told :]
        self._told += len(new)
        if new and whole == text:
            self._begin(self._window[self._before :])
        return new

    def end(self) -> str:
        """What is left: bytes that have not become a character."""
        return self._decoded()[self._told :]

    def _begin(self, before: list[int]) -> None:
        self._window, self._before = before, len(before)
        self._told = len(self._decoded().rstrip(_UNFINISHED))  # characters of the window's text

    def _decoded(self) -> str:
        return str(self._tokenizer.decode(self._window, skip_special_tokens=True, clean_up_tokenization_spaces=False))


class Stops:
    """Lets text through up to the first of the texts that end it, however it is cut into pieces."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._held = ""
        self.hit = False

    def add(self, piece: str) -> str:
        """What is certain to stand before the end; nothing more may be added once it was a `hit`."""
        held = self._held + piece
        found = [place for text in self._texts if (place := held.find(text)) >= 0]
        self.hit = bool(found)
        certain = min(found) if found else len(held) - self._begun(held)
        self._held = held[certain:]
        return held[:certain]

    def end(self) -> str:
        """What was held back, if it has not become the end of an answer."""
        return "" if self.hit else self._held

    def _begun(self, held: str) -> int:
        """How many of the last characters might be the first ones of such a text."""
        longest = max(map(len, self._texts), default=1) - 1
        return next(
            (
                size
                for size in range(min(longest, len(held)), 0, -1)
                if any(text.startswith(held[-size:]) for text in self._texts)
            ),
            0,
        )
