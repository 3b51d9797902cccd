"""What llama.cpp computes for each architecture: keys and tensors of a GGUF file that say exactly the same.

Sources: llama.cpp's `src/models/*.cpp` and `conversion/*.py` (2026), and transformers' modelling code.
"""

import logging
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dedloc_kit.errors import UserError
from dedloc_kit.export.gguf.config import Gemma3, Llama, ModernBert, Rope, parsed
from dedloc_kit.export.gguf.refusing import refused
from dedloc_kit.export.gguf.weights import Floats, Tensor
from dedloc_kit.pretrained import CONFIG

_log = logging.getLogger(__name__)

_GEMMA3_PERIOD = 6
"""llama.cpp and ollama take for granted that each sixth layer of gemma3 sees everything."""
_GEMMA3_LOCAL_THETA = 10_000.0
"""And that the others turn with this base."""
_GEMMA3_27B = 62
"""Layers of the one gemma3 whose scores llama.cpp scales in another way."""
_MEAN_POOLING = 1


@dataclass(frozen=True)
class Plan:
    """What is written of a model, beside its tokenizer."""

    architecture: str
    """In GGUF."""
    values: dict[str, int | float | bool | str]
    """Keys of the file, without the architecture in front."""
    tensors: list[Tensor]
    context: int
    """Tokens that the model takes at most."""
    computed: dict[str, Floats] = field(default_factory=dict)
    """Vectors that no checkpoint has."""
    ignored: frozenset[str] = frozenset()
    """Weights of a checkpoint that llama.cpp needs not."""
    generates: bool = True


def planned(values: dict[str, Any], folder: Path, names: Collection[str]) -> Plan:
    """How a model is written; raises UserError if llama.cpp does not compute exactly the same.

    :param values: as `read_config` gives it
    :param names: of the weights in the folder
    """
    path = folder / CONFIG
    match values["model_type"]:
        case "llama" | "mistral" | "qwen3" as name:
            return _llama(parsed(Llama, values, path), name)
        case "gemma3_text":
            return _gemma3(parsed(Gemma3, values, path))
        case _:
            return _modernbert(parsed(ModernBert, values, path), names)


def _llama(model: Llama, name: str) -> Plan:
    # In GGUF a mistral is a llama.
    architecture = "qwen3" if name == "qwen3" else "llama"
    if name != "llama" and (model.attention_bias or model.mlp_bias):
        raise refused(f"layers with biases, which llama.cpp's {architecture} lacks,")
    windows = name == "mistral" or "sliding_attention" in model.layer_types
    values, tensors = _decoder(model, pairs=model.head_dim if architecture == "llama" else 0)
    rope, computed = _scaled(model.rope_parameters, model.head_dim)
    for number in range(model.num_hidden_layers):
        ours, theirs = f"blk.{number}", f"model.layers.{number}"
        tensors.append(
            Tensor(f"{ours}.ffn_norm.weight", f"{theirs}.post_attention_layernorm.weight", (model.hidden_size,))
        )
        if architecture == "qwen3":
            tensors += _head_norms(model, number)
        if model.attention_bias:
            tensors += _biases(model, number, ("attn_q", "attn_k", "attn_v", "attn_output"))
        if model.mlp_bias:
            tensors += _biases(model, number, ("ffn_gate", "ffn_up", "ffn_down"))
    context = _within(model.max_position_embeddings, model.sliding_window if windows else None)
    values |= {"context_length": context, "rope.freq_base": model.rope_parameters.rope_theta, **rope}
    return Plan(architecture, values, tensors, context, computed, _needless(model))


def _gemma3(model: Gemma3) -> Plan:
    layers, rope = model.num_hidden_layers, model.rope_parameters
    if model.attention_bias:
        raise refused("layers with biases, which llama.cpp's gemma3 lacks,")
    if any((kind == "full_attention") == bool(at % _GEMMA3_PERIOD) for at, kind in enumerate(model.layer_types, 1)):
        raise refused(f"layer_types other than llama.cpp's, where each {_GEMMA3_PERIOD}th layer sees everything,")
    if rope.sliding_attention != Rope(rope_theta=_GEMMA3_LOCAL_THETA):
        raise refused(f"a rope_theta other than {_GEMMA3_LOCAL_THETA:.0f} in layers with a window")
    if model.sliding_window is None:
        raise refused("a gemma3 without sliding_window")
    values, tensors = _decoder(model, shift=1.0)
    # llama.cpp divides scores by the root of the size of a head, or of what it takes for that in the one of 62 layers.
    size = model.hidden_size / model.num_attention_heads if layers == _GEMMA3_27B else model.head_dim
    for number in range(layers):
        for ours, theirs in (
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ):
            names = f"blk.{number}.{ours}.weight", f"model.layers.{number}.{theirs}.weight"
            tensors.append(Tensor(*names, (model.hidden_size,), shift=1.0))
        tensors += _head_norms(model, number, shift=1.0, scale=math.sqrt(size / model.query_pre_attn_scalar))
    scaled, computed = _scaled(rope.full_attention, model.head_dim)
    if computed:
        raise refused("positions scaled as llama3's, which llama.cpp's gemma3 lacks,")
    values |= {
        "context_length": model.max_position_embeddings,
        "attention.sliding_window": model.sliding_window,
        "rope.freq_base": rope.full_attention.rope_theta,
        "rope.freq_base_swa": rope.sliding_attention.rope_theta,
        **scaled,
    }
    return Plan("gemma3", values, tensors, model.max_position_embeddings, ignored=_needless(model))


def _modernbert(model: ModernBert, names: Collection[str]) -> Plan:
    rope, width, layers = model.rope_parameters, model.hidden_size, model.num_hidden_layers
    if model.attention_bias or model.mlp_bias:
        raise refused("layers with biases, which llama.cpp's ModernBERT lacks,")
    if {rope.full_attention.rope_type, rope.sliding_attention.rope_type} != {"default"}:
        raise refused("scaled positions, which llama.cpp's ModernBERT lacks,")
    if width % model.num_attention_heads:
        raise UserError(f"{CONFIG}: num_attention_heads must divide hidden_size; export the model again")
    period = _period(model.layer_types)
    if not period:
        raise refused("layer_types of no regular pattern, which begins with a layer that sees everything,")
    front = "model." if any(name.startswith("model.") for name in names) else ""
    tensors = [
        Tensor("token_embd.weight", f"{front}embeddings.tok_embeddings.weight", (model.vocab_size, width)),
        Tensor("token_embd_norm.weight", f"{front}embeddings.norm.weight", (width,)),
        Tensor("output_norm.weight", f"{front}final_norm.weight", (width,)),
    ]
    for number in range(layers):
        shapes: dict[tuple[str, str], tuple[int, ...]] = {
            ("attn_norm", "attn_norm"): (width,),
            ("attn_qkv", "attn.Wqkv"): (3 * width, width),
            ("attn_output", "attn.Wo"): (width, width),
            ("ffn_norm", "mlp_norm"): (width,),
            ("ffn_up", "mlp.Wi"): (2 * model.intermediate_size, width),
            ("ffn_down", "mlp.Wo"): (width, model.intermediate_size),
        }
        for (ours, theirs), shape in shapes.items():
            if number or ours != "attn_norm":  # the embeddings' norm stands in front of the first layer
                name = f"{front}layers.{number}.{theirs}.weight"
                tensors.append(Tensor(f"blk.{number}.{ours}.weight", name, shape))
    values: dict[str, int | float | bool | str] = {
        **_sizes(model, model.num_attention_heads),
        "context_length": model.max_position_embeddings,
        "attention.layer_norm_epsilon": model.norm_eps,
        "attention.causal": False,
        "rope.freq_base": rope.full_attention.rope_theta,
        "rope.scaling.type": "none",
        "pooling_type": _MEAN_POOLING,
    }
    if period > 1:
        values |= {
            "attention.sliding_window": model.local_attention,
            "attention.sliding_window_pattern": period,
            "rope.freq_base_swa": rope.sliding_attention.rope_theta,
        }
    # What fills in masked words is of no use for embeddings.
    head = frozenset(name for name in names if name.startswith(("head.", "decoder.")))
    return Plan("modern-bert", values, tensors, model.max_position_embeddings, ignored=head, generates=False)


def _sizes(model: Llama | Gemma3 | ModernBert, key_value_heads: int) -> dict[str, int | float | bool | str]:
    if model.num_attention_heads % key_value_heads:
        raise UserError(f"{CONFIG}: num_key_value_heads must divide num_attention_heads; export the model again")
    return {
        "vocab_size": model.vocab_size,
        "embedding_length": model.hidden_size,
        "block_count": model.num_hidden_layers,
        "feed_forward_length": model.intermediate_size,
        "attention.head_count": model.num_attention_heads,
        "attention.head_count_kv": key_value_heads,
    }


def _decoder(
    model: Llama | Gemma3, pairs: int = 0, shift: float = 0.0
) -> tuple[dict[str, int | float | bool | str], list[Tensor]]:
    """Keys and tensors that all decoders have.

    :param pairs: as `Tensor` has it, of queries and keys
    :param shift: of norms
    """
    if model.head_dim % 2:
        raise refused("heads of an odd size")
    width, head = model.hidden_size, model.head_dim
    queries, keys = head * model.num_attention_heads, head * model.num_key_value_heads
    values = _sizes(model, model.num_key_value_heads) | {
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": model.rms_norm_eps,
        "rope.dimension_count": head,
    }
    tensors = [
        Tensor("token_embd.weight", "model.embed_tokens.weight", (model.vocab_size, width)),
        Tensor("output_norm.weight", "model.norm.weight", (width,), shift),
    ]
    if not model.tie_word_embeddings:
        tensors.append(Tensor("output.weight", "lm_head.weight", (model.vocab_size, width)))
    for number in range(model.num_hidden_layers):
        ours, theirs = f"blk.{number}", f"model.layers.{number}"
        tensors += [
            Tensor(f"{ours}.attn_norm.weight", f"{theirs}.input_layernorm.weight", (width,), shift),
            Tensor(f"{ours}.attn_q.weight", f"{theirs}.self_attn.q_proj.weight", (queries, width), pairs=pairs),
            Tensor(f"{ours}.attn_k.weight", f"{theirs}.self_attn.k_proj.weight", (keys, width), pairs=pairs),
            Tensor(f"{ours}.attn_v.weight", f"{theirs}.self_attn.v_proj.weight", (keys, width)),
            Tensor(f"{ours}.attn_output.weight", f"{theirs}.self_attn.o_proj.weight", (width, queries)),
            Tensor(f"{ours}.ffn_gate.weight", f"{theirs}.mlp.gate_proj.weight", (model.intermediate_size, width)),
            Tensor(f"{ours}.ffn_up.weight", f"{theirs}.mlp.up_proj.weight", (model.intermediate_size, width)),
            Tensor(f"{ours}.ffn_down.weight", f"{theirs}.mlp.down_proj.weight", (width, model.intermediate_size)),
        ]
    return values, tensors


def _head_norms(model: Llama | Gemma3, number: int, shift: float = 0.0, scale: float = 1.0) -> list[Tensor]:
    """Norms of each head's queries and keys; the scale is the queries'."""
    ours, theirs, shape = f"blk.{number}", f"model.layers.{number}.self_attn", (model.head_dim,)
    return [
        Tensor(f"{ours}.attn_q_norm.weight", f"{theirs}.q_norm.weight", shape, shift, scale),
        Tensor(f"{ours}.attn_k_norm.weight", f"{theirs}.k_norm.weight", shape, shift),
    ]


def _biases(model: Llama, number: int, names: Collection[str]) -> list[Tensor]:
    head, width = model.head_dim, model.hidden_size
    queries, keys = head * model.num_attention_heads, head * model.num_key_value_heads
    known = {
        "attn_q": ("self_attn.q_proj", queries, head),
        "attn_k": ("self_attn.k_proj", keys, head),
        "attn_v": ("self_attn.v_proj", keys, 0),
        "attn_output": ("self_attn.o_proj", width, 0),
        "ffn_gate": ("mlp.gate_proj", model.intermediate_size, 0),
        "ffn_up": ("mlp.up_proj", model.intermediate_size, 0),
        "ffn_down": ("mlp.down_proj", width, 0),
    }
    return [
        Tensor(f"blk.{number}.{ours}.bias", f"model.layers.{number}.{theirs}.bias", (size,), pairs=pairs)
        for ours, (theirs, size, pairs) in known.items()
        if ours in names
    ]


def _needless(model: Llama | Gemma3) -> frozenset[str]:
    """transformers ties, whatever the file holds; frequencies are computed."""
    frequencies = {f"model.layers.{number}.self_attn.rotary_emb.inv_freq" for number in range(model.num_hidden_layers)}
    return frozenset(frequencies | ({"lm_head.weight"} if model.tie_word_embeddings else set()))


def _scaled(rope: Rope, head: int) -> tuple[dict[str, int | float | bool | str], dict[str, Floats]]:
    """Keys and vectors that say how positions are scaled."""
    match rope.rope_type:
        case "default":
            return {"rope.scaling.type": "none"}, {}
        case "linear":
            if rope.factor is None:
                raise UserError(f"{CONFIG}: rope_parameters has no factor; export the model again")
            return {"rope.scaling.type": "linear", "rope.scaling.factor": rope.factor}, {}
        case "llama3":
            return {"rope.scaling.type": "none"}, {"rope_freqs.weight": _llama3(rope, head)}


def _llama3(rope: Rope, head: int) -> Floats:
    """By what each frequency is divided: long waves by `factor`, short ones by 1, others by something between."""
    low, high, factor, length = (
        rope.low_freq_factor, rope.high_freq_factor, rope.factor, rope.original_max_position_embeddings,
    )  # fmt: skip
    if low is None or high is None or factor is None or length is None or low >= high:
        raise UserError(f"{CONFIG}: rope_parameters of llama3 are incomplete; export the model again")
    waves = 2 * math.pi * rope.rope_theta ** (np.arange(0, head, 2, dtype=np.float64) / head)
    smooth = np.clip((length / waves - low) / (high - low), 0.0, 1.0)
    found: Floats = (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
    return found


def _period(layers: tuple[str, ...]) -> int:
    """Of how many layers the first sees everything, and the others a window; 0 if they are not so regular."""
    for period in range(1, len(layers) + 1):
        if all((kind == "full_attention") == (at % period == 0) for at, kind in enumerate(layers)):
            return period
    return 0


def _within(longest: int, window: int | None) -> int:
    """A context in which a window hides nothing, since GGUF's llama and qwen3 have none."""
    if window is None or window >= longest:
        return longest
    _log.warning("the file says that the model takes %d tokens, for llama.cpp does not know its sliding window", window)
    return window
