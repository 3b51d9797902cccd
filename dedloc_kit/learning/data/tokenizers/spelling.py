"""What each token of a vocabulary spells, whichever way its tokenizer writes it down."""

import json
import re
from collections.abc import Iterator
from typing import Any

_BYTE = re.compile("<0x([0-9A-F]{2})>")
_METASPACE = "▁"


def spellings(tokenizer: Any) -> list[bytes | None]:
    """For each id of a fast tokenizer of transformers the UTF-8 that its token stands for; none of special tokens.

    Where a token begins a word the space before it belongs to it, as it does to the text that tokens spell one after
    the other. A token may be a part of a character.
    """
    tokens: list[str | None] = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    special = set(tokenizer.all_special_ids)
    spell = _way_of(backend)
    return [None if token is None or number in special else spell(token) for number, token in enumerate(tokens)]


def _way_of(backend: dict[str, Any]) -> Any:
    """How a token of this tokenizer (as its file describes it) is turned into what it spells."""
    kinds = set(_kinds([backend["decoder"], backend["pre_tokenizer"]]))
    if "ByteLevel" in kinds:
        return _from_byte_level
    if backend["model"]["type"] == "WordPiece":
        goes_on = backend["model"]["continuing_subword_prefix"]
        return lambda token: (token.removeprefix(goes_on) if token.startswith(goes_on) else f" {token}").encode()
    # Of SentencePiece's vocabularies, as they come in several forms: their files write the sign somewhere.
    space = (
        _METASPACE
        if _METASPACE
        in json.dumps([backend["normalizer"], backend["pre_tokenizer"], backend["decoder"]], ensure_ascii=False)
        else " "
    )
    falls_back = bool(backend["model"].get("byte_fallback"))

    def spell(token: str) -> bytes:
        if falls_back and (byte := _BYTE.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        return token.replace(space, " ").encode()

    return spell


def _kinds(part: Any) -> Iterator[str]:
    """The types of all parts of a tokenizer's file within this one."""
    if isinstance(part, list):
        for each in part:
            yield from _kinds(each)
    elif isinstance(part, dict):
        if isinstance(part.get("type"), str):
            yield part["type"]
        for each in part.values():
            yield from _kinds(each)


def _byte_characters() -> dict[str, int]:
    """The characters that byte-level vocabularies (Radford et al. 2019) write bytes with."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_characters()


def _from_byte_level(token: str) -> bytes:
    if any(character not in _BYTE_OF for character in token):  # added by hand, as it is
        return token.encode()
    return bytes(map(_BYTE_OF.__getitem__, token))
