"""Which tokenizers llama.cpp has too, and under which name."""

from typing import Any

from dedloc_kit.learning.data.tokenizers import qwen35

_ENGLISH, _LAYOUT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD, _OTHER = r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD_WITH_MARKS, _OTHER_THAN_MARKS = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
_SPLITS = {
    qwen35.PATTERN: qwen35.NAME,
    "|".join([_ENGLISH, _WORD_WITH_MARKS, r"\p{N}", _OTHER_THAN_MARKS, _LAYOUT]): "qwen35",
    "|".join([_ENGLISH, _WORD, r"\p{N}", _OTHER, _LAYOUT]): "qwen2",
    "|".join([_ENGLISH, _WORD, r"\p{N}{1,3}", _OTHER, _LAYOUT]): "llama-bpe",
}
"""Ours, and those of published models: Qwen3.5, Qwen2 and 3, Llama 3."""


def llama_cpp_name(tokenizer: dict[str, Any]) -> str | None:
    """Return the name (`tokenizer.ggml.pre`) under which llama.cpp makes the same tokens, None if it has no such form.

    Ours are the same for every text. Those of published models are what llama.cpp's own files of them are: it knows no
    character later than Unicode 15.1, and composes none, as Qwen's tokenizers do first (NFC). `'ſ` is no `'s` for it.

    :param tokenizer: a tokenizer.json; whatever it holds, this raises nothing
    """
    model: Any = tokenizer.get("model")
    split, composes = _split(tokenizer.get("pre_tokenizer"))
    if not _is_byte_level(model) or _type(tokenizer.get("decoder")) != "ByteLevel":
        return None
    if bool(model.get("ignore_merges")) != (split == "llama-bpe"):
        return None
    normalizer = tokenizer.get("normalizer")
    if normalizer is not None and not (composes and _type(normalizer) == "NFC"):
        return None
    return split if _are_plain(tokenizer.get("added_tokens")) else None


def _split(pre_tokenizer: Any) -> tuple[str | None, bool]:
    """What llama.cpp calls the splitting of a byte-level tokenizer, and whether it may compose characters first."""
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, **bytes_} if bytes_.get("use_regex", True) is True:
            return "gpt-2", False
        case {"type": "Sequence", "pretokenizers": [first, {"type": "ByteLevel", "add_prefix_space": False, **bytes_}]}:
            uses_regex = bytes_.get("use_regex", True)
            match first:
                case {"type": "Digits", "individual_digits": True} if uses_regex is True:
                    return "smollm", False
                case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False}:
                    name = _SPLITS.get(pattern) if uses_regex is False else None
                    return name, pattern != qwen35.PATTERN and name in ("qwen35", "qwen2")
    return None, False


def _is_byte_level(model: Any) -> bool:
    """Whether the model is byte pair encoding and does nothing besides.

    Published vocabularies may lack bytes, SmolLM's those of some control characters: both sides leave them out.
    """
    if _type(model) != "BPE" or any(
        model.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    ):
        return False
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict):
        return False
    return not model.get("unk_token") or all(letter in vocabulary for letter in qwen35.ALPHABET)


def _are_plain(added: Any) -> bool:
    """Whether the added tokens are found in a text just where they stand."""
    return isinstance(added, list) and not any(
        not isinstance(token, dict) or any(token.get(name) for name in ("single_word", "lstrip", "rstrip"))
        for token in added
    )


def _type(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else None
