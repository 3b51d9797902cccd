"""Tokens that are no text: which ones each kind of task needs, how they are spelled, and what they stand for."""

from collections.abc import Iterable, Mapping
from typing import Any

from dedloc_kit.errors import UserError

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
END_OF_TEXT, PADDING = "<|endoftext|>", "<|padding|>"

MASKED = {"pad_token": PAD, "cls_token": CLS, "sep_token": SEP, "mask_token": MASK}
"""What a task needs that fills in masked tokens: names of transformers' tokenizers and how a new one spells them."""
CAUSAL = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "pad_token": PADDING}
"""What a task needs that goes on writing. Padding is a token of its own: who fine-tunes the model must not take the end
of a text for it, or the model never learns to end."""

_SAME_USE = {"cls_token": "bos_token", "sep_token": "eos_token", "bos_token": "cls_token", "eos_token": "sep_token"}


def require(tokenizer: Any, names: Iterable[str]) -> None:
    """Raise UserError unless a tokenizer of transformers has the special tokens of these names."""
    for name in names:
        if getattr(tokenizer, name) is None:
            raise UserError(f"the tokenizer has no {name}; make one with: dedloc prepare tokenizer RUN.toml")


def bos_eos(tokenizer: Any, special: Mapping[str, str]) -> tuple[int, int]:
    """The tokens before and after each document, by the special tokens that its task needs.

    Where a task needs `[CLS]` and `[SEP]` they are these. Elsewhere a tokenizer may have one token for both, or call
    them by the masked tasks' names. Raises UserError if one is lacking.
    """
    if "cls_token" in special:
        require(tokenizer, (name for name in special if name != "pad_token"))
        return tokenizer.cls_token_id, tokenizer.sep_token_id
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if end is None:
        raise UserError(
            "the tokenizer has no eos_token, which ends documents; make one with: dedloc prepare tokenizer RUN.toml"
        )
    return tokenizer.bos_token_id if tokenizer.bos_token_id is not None else end, end


def counterparts(new: Any, old: Any) -> dict[int, int]:
    """Which special token of the old tokenizer has the use of which of the new one, by id; not all have one.

    What begins and ends a text is `cls` and `sep` in masked tasks, `bos` and `eos` in causal ones.
    """
    found = {}
    for name in ("unk_token", "mask_token", "pad_token", "cls_token", "sep_token", "bos_token", "eos_token"):
        token = getattr(new, f"{name}_id")
        same = getattr(old, f"{name}_id")
        if same is None and name in _SAME_USE:
            same = getattr(old, f"{_SAME_USE[name]}_id")
        if token is not None and same is not None:
            found[token] = same
    return found
