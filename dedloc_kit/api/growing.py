"""One answer as it grows, token by token."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from dedloc_kit.api.sampling import Choice
from dedloc_kit.api.text import Detokenizer, Stops

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Noted:
    """What was noted about a token, and where its text begins in the answer."""

    choice: Choice
    offset: int


@dataclass(frozen=True)
class Piece:
    """What is new in one of the answers to a request.

    :ivar tokens: empty unless logarithms of probabilities were asked for
    :ivar finish: why the answer ends with this piece
    """

    answer: int
    text: str
    tokens: tuple[Noted, ...]
    finish: Finish | None

    def __bool__(self) -> bool:
        return bool(self.text or self.tokens or self.finish)


class Growing:
    """Turns the tokens of one answer into pieces, until it is finished."""

    def __init__(self, answer: int, text: Detokenizer, stops: Stops, ends: Collection[int], most: int) -> None:
        """
        :param answer: its number among those to one request
        :param ends: tokens that end it
        :param most: tokens that it has at most
        """
        self.tokens = 0
        self.finish: Finish | None = None
        self._answer, self._text, self._stops, self._ends, self._most = answer, text, stops, ends, most
        self._decoded = self._told = 0  # characters
        self._waiting: list[Noted] = []  # whose text has not been told

    def add(self, token: int, choice: Choice | None) -> Piece:
        """What can be told now; `choice` is what was noted about the token."""
        self.tokens += 1
        new = ""
        if token in self._ends:
            self.finish = "stop"
        else:
            if choice is not None:
                self._waiting.append(Noted(choice, self._decoded))
            new = self._text.add(token)
            if self.tokens == self._most:
                self.finish = "length"
        if self.finish is not None:
            new += self._text.end()
        self._decoded += len(new)
        text = self._stops.add(new)
        if self._stops.hit:
            self.finish = "stop"
        elif self.finish is not None:
            text += self._stops.end()
        self._told += len(text)
        return Piece(self._answer, text, self._tokens_told(), self.finish)

    def _tokens_told(self) -> tuple[Noted, ...]:
        """Those whose text has been told by now; at the end also those that have none."""
        all_of_them = self.finish is not None and not self._stops.hit
        told = tuple(noted for noted in self._waiting if all_of_them or noted.offset < self._told)
        self._waiting = self._waiting[len(told) :]
        return told
