"""How many tokens a vocabulary needs for a text: the fewer, the more text a sample holds and a step learns from."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dedloc_kit.config.task import Source
from dedloc_kit.learning.data.sources.patience import Warn
from dedloc_kit.learning.data.sources.stream import in_order, texts
from dedloc_kit.learning.data.text.plain import PlainTokenizer

_CHARACTERS, _EXCERPT = 2_000_000, 20_000
_AT_ONCE = 64


@dataclass(frozen=True)
class Fertility:
    """What some texts are in tokens."""

    tokens: int
    words: int
    bytes: int

    @property
    def tokens_per_word(self) -> float:
        """Words are what white space separates; Thai and Chinese have none."""
        return self.tokens / self.words

    @property
    def bytes_per_token(self) -> float:
        """Of UTF-8."""
        return self.bytes / self.tokens


def held_out_texts(source: Source, warn: Warn) -> list[str]:
    """Two million characters of a source at most, of its first documents the beginning of each."""
    taken: list[str] = []
    left = _CHARACTERS
    for text in in_order(source, texts, warn=warn):
        taken.append(text[: min(_EXCERPT, left)])
        left -= len(taken[-1])
        if left <= 0:
            break
    return taken


def fertility(tokenizer: Any, some: Iterable[str]) -> Fertility:
    """Of a fast tokenizer of transformers on texts, without special tokens. There has to be a word in them."""
    backend = PlainTokenizer(tokenizer).backend
    tokens = words = size = 0
    for batch in _batches(some):
        tokens += sum(len(each.ids) for each in backend.encode_batch_fast(batch, add_special_tokens=False))
        words += sum(len(text.split()) for text in batch)
        size += sum(len(text.encode()) for text in batch)
    return Fertility(tokens, words, size)


def _batches(some: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(some)
    while batch := list(islice(remaining, _AT_ONCE)):
        yield batch
