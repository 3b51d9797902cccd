"""Tokenizers of plain text: whatever a text from elsewhere spells, it never becomes a special token."""

import json
from collections.abc import Iterable
from secrets import choice
from string import ascii_lowercase
from typing import Any

from tokenizers import Tokenizer


class PlainTokenizer:
    """A copy of a tokenizer that takes the spelling of special tokens, such as `[MASK]`, for ordinary text.

    A tokenizer looks for them in every text, and a Unigram vocabulary may hold them as words besides, which
    `encode_special_tokens` does not change. So the copy spells each of them with random letters that no text can know.
    Ids stay the same, and so do all other texts. Added tokens that are not special stay words.

    The copy truncates and pads nothing: a tokenizer keeps such settings from its file, or from its last caller.

    :param tokenizer: a fast one of transformers, or of tokenizers
    :param control: further tokens that a text must not become

    :ivar backend: the copy
    :ivar secret: how it spells each special token
    """

    def __init__(self, tokenizer: Any, control: Iterable[str] = ()) -> None:
        content = json.loads(getattr(tokenizer, "backend_tokenizer", tokenizer).to_str())
        named = {*getattr(tokenizer, "all_special_tokens", ()), *control}
        special = [token for token in content["added_tokens"] if token["special"] or token["content"] in named]
        self.secret = {token["content"]: "".join(choice(ascii_lowercase) for _ in range(24)) for token in special}
        for token in special:
            token["content"] = self.secret[token["content"]]
        _rename(content["model"], self.secret)
        self.backend: Tokenizer = Tokenizer.from_str(json.dumps(content, ensure_ascii=False))
        self.backend.no_truncation()
        self.backend.no_padding()

    def ids(self, text: str, edges: bool = False) -> list[int]:
        """The tokens of a text; with `edges` between those that the tokenizer itself puts around it."""
        found: list[int] = self.backend.encode(text, add_special_tokens=edges).ids
        return found


def _rename(model: dict[str, Any], secret: dict[str, str]) -> None:
    """Rename words of a model, as a tokenizer's file describes it."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {secret.get(word, word): number for word, number in vocabulary.items()}
    else:
        model["vocab"] = [[secret.get(word, word), score] for word, score in vocabulary]
    if model.get("unk_token") in secret:
        model["unk_token"] = secret[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if secret.keys().isdisjoint([*pair, "".join(pair)])]
