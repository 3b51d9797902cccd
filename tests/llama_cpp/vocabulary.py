"""A GGUF file of a tokenizer alone, for what llama.cpp makes of texts."""

from pathlib import Path
from typing import Any


def write_vocabulary(tokenizer: dict[str, Any], name: str, path: Path) -> Path:
    """Write a byte-level tokenizer.json as a file without weights.

    :param name: what llama.cpp calls its splitting
    """
    import gguf

    words: dict[str, int] = tokenizer["model"]["vocab"]
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    spelled = {number: word for word, number in words.items()} | {each: added[each]["content"] for each in added}
    kinds = {
        each: gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
        for each, token in added.items()
    }
    numbers = range(max(spelled) + 1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list([spelled.get(number, f"[{number}]") for number in numbers])
    writer.add_token_types([kinds.get(number, gguf.TokenType.NORMAL) for number in numbers])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_add_bos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
