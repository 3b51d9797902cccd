"""Texts as token ids that know where their sentences end."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dedloc_kit.data.sentences import sentences

Ids = NDArray[np.unsignedinteger[Any]]

_TEXTS_AT_ONCE = 32
_LONGEST_PIECE = 50_000
"""Characters. A longer text is taken as several documents: its tokens need two hundred times its size for a moment."""


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A tokenized text without special tokens."""

    ids: Ids
    """[tokens]"""
    ends: Ids
    """[sentences]: the number of tokens up to each sentence's end, ascending; the last one is all of them."""


class DocumentTokenizer:
    """Tokenizes many texts at a time, each in one go, with a fast tokenizer of transformers."""

    def __init__(self, tokenizer: Any, language: str) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._separator: str = tokenizer.sep_token
        self._separator_id: int = tokenizer.sep_token_id
        self._dtype = ids_dtype(len(tokenizer))
        self._language = language

    def documents(self, items: Iterable[str | Document]) -> Iterator[Document]:
        """The documents of a stream of texts; those that are tokenized already pass through in their place."""
        items = iter(items)
        while some := list(islice(items, _TEXTS_AT_ONCE)):
            made = self._tokenized([piece for item in some if isinstance(item, str) for piece in _pieces(item)])
            for item in some:
                if isinstance(item, str):
                    yield from islice(made, sum(1 for _ in _pieces(item)))
                else:
                    yield item

    def _tokenized(self, texts: list[str]) -> Iterator[Document]:
        # The separator is one token, and what stands around it is tokenized by itself: so the ids alone tell where the
        # sentences end, and the tokenizer need not trace each token back to its characters. A text that spells it out
        # has one sentence more.
        joined = [self._separator.join(sentences(text, self._language)) for text in texts]
        for encoding in self._backend.encode_batch_fast(joined, add_special_tokens=False):
            ids = np.array(encoding.ids, dtype=self._dtype)
            is_separator = ids == self._separator_id
            between = np.flatnonzero(is_separator)
            ends = np.append(between - np.arange(len(between)), len(ids) - len(between))
            yield Document(ids[~is_separator], np.unique(ends[ends > 0]).astype(np.uint32))


def ids_dtype(vocabulary: int) -> type[np.unsignedinteger[Any]]:
    """The smallest type that holds the ids of so many tokens."""
    return np.uint16 if vocabulary <= 2**16 else np.uint32


def vocabulary_hash(tokenizer: Any) -> str:
    """Names a vocabulary: two tokenizers that have the same tokens in the same order have the same one."""
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    return hashlib.sha256("\x00".join(tokens).encode()).hexdigest()[:16]


def _pieces(text: str) -> Iterator[str]:
    """The text in parts of a bounded length, cut between words where there are any."""
    start = 0
    while len(text) - start > _LONGEST_PIECE:
        end = text.rfind(" ", start + _LONGEST_PIECE // 2, start + _LONGEST_PIECE)
        end = end if end > 0 else start + _LONGEST_PIECE
        yield text[start:end]
        start = end
    yield text[start:]
