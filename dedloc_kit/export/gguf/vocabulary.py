"""A tokenizer as GGUF has it: byte-level BPE whose way to split a text llama.cpp knows by name."""

import json
import logging
import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from gguf import TokenType
from jinja2 import TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dedloc_kit.errors import UserError
from dedloc_kit.export.gguf.config import read_json
from dedloc_kit.export.gguf.refusing import refused
from dedloc_kit.learning.data.tokenizers.known import llama_cpp_name
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer
from dedloc_kit.pretrained import GENERATION_CONFIG, TOKENIZER_FILES

_log = logging.getLogger(__name__)

_MAX_FILE = 2**27
"""Bytes of one of a tokenizer's files. That of a vocabulary of 260,000 tokens has 33 million."""
_MARKS = re.compile(r"{%([-+]?)\s*(?:end)?generation\s*([-+]?)%}")
"""What marks in a chat template of transformers who says what; it writes nothing, and other programs do not know it."""
_OTHER = "its GGUF file would read other tokens; export it with --to transformers, or start a run with a new tokenizer"


@dataclass(frozen=True)
class Vocabulary:
    """All that a GGUF file says of a tokenizer."""

    split: str
    """llama.cpp's name of the way a text is split before bytes are merged."""
    tokens: list[str]
    types: list[int]
    """`gguf.TokenType` of each."""
    merges: list[str]
    special: dict[str, int]
    """Token ids by their names in GGUF: `bos`, `eos`, `eot`, `unknown`, `seperator` (so spelled), `padding`, `mask`."""
    adds: dict[str, bool]
    """Whether a text gets the tokens `bos` in front and `eos` behind it."""
    chat_template: str
    """Jinja; empty if there is none."""

    @property
    def stops(self) -> list[str]:
        """Texts of the tokens that end an answer."""
        return list(dict.fromkeys(self.tokens[self.special[name]] for name in ("eos", "eot") if name in self.special))


def read_vocabulary(folder: Path, rows: int) -> Vocabulary:
    """The tokenizer in a folder of transformers.

    :param rows: of the model's embeddings; tokens that the tokenizer lacks are filled up with unused ones
    Raises UserError if there is no tokenizer, it is damaged, or llama.cpp would read other tokens.
    """
    for name in TOKENIZER_FILES:
        if (path := folder / name).is_file() and path.stat().st_size > _MAX_FILE:
            raise UserError(f"{path} has more than {_MAX_FILE} bytes; export the model again")
    tokenizer = load_tokenizer(str(folder.absolute()))
    form: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    split = _split(form)
    tokens, types = _tokens(form, rows)
    special = _special(tokenizer, folder)
    if max(special.values()) >= rows:
        raise UserError(f"the tokenizer has a special token {max(special.values())}, and the model {rows} tokens")
    adds = _around(tokenizer, special)
    if special["bos"] < 0:
        special["bos"] = special["eos"]  # else llama.cpp would take the eleventh token for it
    return Vocabulary(split, tokens, types, _merges(form), special, adds, _chat_template(tokenizer))


def _split(form: dict[str, Any]) -> str:
    """llama.cpp's name of the way a tokenizer splits; raises UserError if it has none.

    :param form: as tokenizer.json has it
    """
    if (kind := form["model"]["type"]) != "BPE":
        raise UserError(f"llama.cpp has no {kind} tokenizer that reads every text as this one does, so {_OTHER}")
    split = llama_cpp_name(form)
    if split is None:
        raise UserError(f"llama.cpp has no name for the way in which this tokenizer splits texts, so {_OTHER}")
    if form.get("normalizer") is not None:
        _log.warning("llama.cpp does not compose characters (NFC) as this tokenizer does; give it composed texts")
    return split


def _tokens(form: dict[str, Any], rows: int) -> tuple[list[str], list[int]]:
    """Texts and types of all tokens."""
    known = {number: (token, TokenType.NORMAL) for token, number in form["model"]["vocab"].items()}
    for added in form["added_tokens"]:
        kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
        known[added["id"]] = (added["content"], kind)
    if max(known) >= rows:
        raise UserError(f"the tokenizer has {max(known) + 1} tokens and the model {rows}; export both again")
    tokens, types = [], []
    for number in range(rows):
        token, kind = known.get(number, (f"[unused {number}]", TokenType.UNUSED))
        tokens.append(token)
        types.append(int(kind))
    if len(set(tokens)) < rows or "" in tokens:
        raise UserError(f"two tokens of this tokenizer have one text, so {_OTHER}")
    return tokens, types


def _merges(form: dict[str, Any]) -> list[str]:
    merges = [each if isinstance(each, str) else " ".join(each) for each in form["model"]["merges"]]
    if not merges or any(each.count(" ") != 1 for each in merges):
        raise UserError("this tokenizer has no merges that llama.cpp can read; train one with a larger vocabulary")
    return merges


def _special(tokenizer: Any, folder: Path) -> dict[str, int]:
    """Special tokens by their names in GGUF; `bos` is -1 if there is none."""
    found = {
        "bos": _first(tokenizer.bos_token_id, tokenizer.cls_token_id),
        "eos": _first(tokenizer.eos_token_id, tokenizer.sep_token_id),
        "unknown": tokenizer.unk_token_id,
        "seperator": tokenizer.sep_token_id,
        "padding": tokenizer.pad_token_id,
        "mask": tokenizer.mask_token_id,
    }
    if found["eos"] is None:
        raise UserError("the tokenizer has no eos_token, with which llama.cpp ends a text; export the model again")
    path = folder / GENERATION_CONFIG
    ends = read_json(path).get("eos_token_id") if path.is_file() else None
    numbers = [each for each in (ends if isinstance(ends, list) else [ends]) if isinstance(each, int) and each >= 0]
    found["eot"] = next((each for each in numbers if each != found["eos"]), None)
    return {"bos": -1} | {name: number for name, number in found.items() if number is not None}


def _first(*numbers: int | None) -> int | None:
    return next((number for number in numbers if number is not None), None)


def _around(tokenizer: Any, special: dict[str, int]) -> dict[str, bool]:
    """Whether a text gets the first and the last special token; raises UserError if it gets others."""
    bare, full = (list(tokenizer("a", add_special_tokens=around)["input_ids"]) for around in (False, True))
    for bos, eos in product((False, True), repeat=2):
        if [special["bos"]] * bos + bare + [special["eos"]] * eos == full:
            return {"bos": bos, "eos": eos}
    raise refused("a tokenizer that puts something else around a text than one token at each end")


def _chat_template(tokenizer: Any) -> str:
    """The template as llama.cpp takes it; raises UserError if it has a syntax error."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    if not isinstance(template, str):
        return ""
    plain = _MARKS.sub(r"{#\1\2#}", template)
    try:
        ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(plain)
    except TemplateSyntaxError as error:
        where = f"in line {error.lineno} of the chat template: {str(error.message)[:120]}"
        raise UserError(f"there is a syntax error {where}; correct chat_template.jinja, or remove it") from None
    except RecursionError:
        raise UserError("the chat template is nested too deeply; correct chat_template.jinja, or remove it") from None
    return plain
