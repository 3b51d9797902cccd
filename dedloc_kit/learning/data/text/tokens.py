"""Texts as token ids that know where their sentences end."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dedloc_kit.learning.data.text.plain import PlainTokenizer
from dedloc_kit.learning.data.text.sentences import sentences

Ids = NDArray[np.unsignedinteger[Any]]

MAX_TOKENS = 2**16
"""Of a document; a longer one is cut into several."""

_PARTS_AT_ONCE, _CHARACTERS_AT_ONCE = 32, 200_000
"""What is tokenized together. A tokenizer takes a hundred bytes and more for a token while it works."""
_MAX_PIECE = 50_000
"""Characters. A longer text is taken as several documents, so that one huge text needs no huge memory."""
_ENDS = (". ", "! ", "? ", "\n", "। ", "۔ ", "؟ ", "。", "！", "？")
"""The end of a sentence in the scripts that mark it: where a text is cut, if it must be."""


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A tokenized text without special tokens."""

    ids: Ids
    """[tokens]"""
    ends: Ids
    """[sentences]: the number of tokens up to each sentence's end, ascending; the last one is all of them."""


class DocumentTokenizer:
    """Tokenizes texts with a fast tokenizer of transformers, each of them once.

    :param language: decides where sentences end; none: a document is taken as it is, as one sentence
    """

    def __init__(self, tokenizer: Any, language: str | None) -> None:
        plain = PlainTokenizer(tokenizer)
        self._backend = plain.backend
        self._separator: str = plain.secret.get(tokenizer.sep_token, tokenizer.sep_token)  # no text can spell it
        self._separator_id: int = tokenizer.sep_token_id
        self._dtype = ids_dtype(len(tokenizer))
        self._language = language

    def documents(self, items: Iterable[str | Document]) -> Iterator[Document]:
        """The documents of a stream of texts; those that are tokenized already pass through in their place."""
        parts = (part for item in items for part in ([item] if isinstance(item, Document) else _pieces(item)))
        while some := list(_first(parts)):
            made = self._tokenized([part for part in some if isinstance(part, str)])
            for part in some:
                yield from cut(next(made)) if isinstance(part, str) else [part]

    def _tokenized(self, texts: list[str]) -> Iterator[Document]:
        # The separator is one token, and what stands around it is tokenized by itself: so the ids alone tell where the
        # sentences end, and the tokenizer need not trace each token back to its characters.
        if self._language is not None:
            texts = [self._separator.join(sentences(text, self._language)) for text in texts]
        for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False):
            ids = np.array(encoding.ids, dtype=self._dtype)
            if self._language is None:
                yield Document(ids, np.array([len(ids)] if len(ids) else [], dtype=np.uint32))
                continue
            is_separator = ids == self._separator_id
            at = np.flatnonzero(is_separator)
            ends = np.append(at - np.arange(len(at)), len(ids) - len(at))
            yield Document(ids[~is_separator], np.unique(ends[ends > 0]).astype(np.uint32))


def ids_dtype(vocabulary: int) -> type[np.unsignedinteger[Any]]:
    """The smallest type that holds the ids of so many tokens."""
    return np.uint16 if vocabulary <= 2**16 else np.uint32


def vocabulary_hash(tokenizer: Any) -> str:
    """Names a vocabulary: two tokenizers that have the same tokens in the same order have the same one."""
    return hash_of_tokens(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))


def hash_of_tokens(tokens: Iterable[str]) -> str:
    """The same of its tokens in their order."""
    return hashlib.sha256("\x00".join(tokens).encode()).hexdigest()[:16]


def _first(parts: Iterator[str | Document]) -> Iterator[str | Document]:
    """Some parts of texts, and documents between them."""
    characters = 0
    for part in islice(parts, _PARTS_AT_ONCE):
        yield part
        characters += len(part) if isinstance(part, str) else 0
        if characters >= _CHARACTERS_AT_ONCE:
            return


def cut(document: Document, most: int = MAX_TOKENS) -> Iterator[Document]:
    """The document in parts of at most `most` tokens, cut at the ends of sentences where there are any."""
    start, length = 0, len(document.ids)
    while length - start > most:
        last = int(np.searchsorted(document.ends, start + most, side="right")) - 1
        end = int(document.ends[last]) if last >= 0 and document.ends[last] > start + most // 2 else start + most
        yield _part(document, start, end)
        start = end
    yield _part(document, start, length) if start else document


def _part(document: Document, start: int, end: int) -> Document:
    ends = document.ends[(document.ends > start) & (document.ends < end)] - start
    return Document(document.ids[start:end].copy(), np.append(ends, end - start).astype(document.ends.dtype))


def _pieces(text: str) -> Iterator[str]:
    """The text in parts of a bounded length, cut between sentences where there are any, or between words."""
    start = 0
    while len(text) - start > _MAX_PIECE:
        window = start + _MAX_PIECE // 2, start + _MAX_PIECE
        end = max(text.rfind(mark, *window) for mark in _ENDS) + 1
        if not end:
            space = text.rfind(" ", *window)
            end = space if space >= 0 else start + _MAX_PIECE
        yield text[start:end]
        start = end
    yield text[start:]
