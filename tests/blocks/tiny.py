"""Tiny random models of every family of transformers that is divided into spans in the tests."""

from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

LAYERS = 4
_COMMON = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GATED = {**_COMMON, "intermediate_size": 64, "num_key_value_heads": 2, **_ENDS}
_GEMMA = {**_GATED, "head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8}
_EXPERTS = {**_GATED, "num_experts_per_tok": 2}
_MIXED = ["sliding_attention", "full_attention"] * (LAYERS // 2)
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": _GATED,
    "Mistral": {**_GATED, "sliding_window": 6},
    "Qwen2": {**_GATED, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2},
    "Qwen3": {**_GATED, "head_dim": 8},
    "Qwen3Moe": {
        **_EXPERTS,
        **{"head_dim": 8, "num_experts": 4, "moe_intermediate_size": 16, "mlp_only_layers": [3]},
    },
    "Mixtral": {**_EXPERTS, "num_local_experts": 4},
    "Gemma2": _GEMMA,
    "Gemma3Text": {**_GEMMA, "layer_types": _MIXED, "tie_word_embeddings": False},
    "Bloom": {"vocab_size": 97, "hidden_size": 32, "n_layer": LAYERS, "n_head": 4, **_ENDS},
    "Falcon": {**_COMMON, "new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False, **_ENDS},
    "GPTNeoX": {**_COMMON, "intermediate_size": 64, **_ENDS},
    "Phi3": _GATED,
    "Olmo2": _GATED,
    "SmolLM3": {**_GATED, "no_rope_layers": [1, 0, 1, 1]},
    "GptOss": {**_EXPERTS, "head_dim": 8, "num_local_experts": 4, "sliding_window": 6},
    "GPT2": {"vocab_size": 97, "n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_positions": 64, **_ENDS},
    "OPT": {**_COMMON, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64, **_ENDS},
}


def config(family: str, **changed: Any) -> Any:
    return getattr(transformers, f"{family}Config")(**{**FAMILIES[family], **changed})


def model(family: str, **changed: Any) -> Any:
    """Its weights are large enough for its layers to matter, also to the tokens that it writes."""
    torch.manual_seed(0)
    whole = AutoModelForCausalLM.from_config(config(family, **changed)).eval().requires_grad_(False)
    for name, values in whole.named_parameters():
        if values.ndim > 1:
            values.normal_(std=0.2 if "embed" not in name else 1.0)
        elif "norm" in name or "ln_" in name:
            values.add_(torch.randn_like(values) * 0.1)
    return whole
