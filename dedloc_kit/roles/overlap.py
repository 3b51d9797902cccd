"""Fingerprints of samples: what is held out is looked for among the training data, whatever form either has."""

import re
import unicodedata
from collections.abc import Callable, Iterable

from dedloc_kit.learning.data.pictures.codes import Captioned
from dedloc_kit.learning.data.text.tokens import Document, DocumentTokenizer, Ids

_LETTERS = 10_000
"""Of a text; two that begin with the same ones are taken for the same. A tokenizer divides longer ones later."""
_UNSEEN = re.compile(r"[\s\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufe00-\ufe0f\ufeff]+")
"""White space, and characters that nobody sees."""


class Fingerprints:
    """Equal for texts that differ in white space, in case or in compatible characters, and for equal pictures.

    :param tokenizer: where some data holds token ids: all texts are then compared as it spells them
    :param spell: what ids stand for
    """

    def __init__(
        self, tokenizer: DocumentTokenizer | None = None, spell: Callable[[list[int]], str] = lambda _: ""
    ) -> None:
        self._tokenizer, self._spell = tokenizer, spell

    def of(self, item: str | bytes | Document | Captioned) -> int:
        """:param item: a text, the file of a picture, or what stands for them in a run's data"""
        match item:
            case bytes():
                return hash(item)
            case Captioned():
                return hash(item.codes.tobytes())
            case Document():
                return self._of_ids([item.ids])
            case str() if self._tokenizer is not None:
                return self._of_ids(part.ids for part in self._tokenizer.documents([item[: 2 * _LETTERS]]))
            case str():
                return _of_letters(item)

    def _of_ids(self, parts: Iterable[Ids]) -> int:
        return _of_letters("".join(self._spell(ids.tolist()) for ids in parts))


def _of_letters(text: str) -> int:
    letters = _UNSEEN.sub("", unicodedata.normalize("NFKC", text[: 2 * _LETTERS]).casefold())
    return hash(letters[:_LETTERS])
